"""Finds stop strings in text that arrives in pieces.

Owns what may be shown already and what must wait because it could become a stop string. The result
depends on the text alone, never on how it was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopAutomaton:
    """Progress of one stop string: how many of its first characters end the text so far.

    Linear in text and stop string (Knuth-Morris-Pratt), whatever a client sends.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._fallback = _fallbacks(stop)

    def step(self, matched: int, char: str) -> int:
        """Characters matched after `char`, from `matched` before; len(stop) is a hit."""
        while matched and (matched == len(self.stop) or self.stop[matched] != char):
            matched = self._fallback[matched - 1]
        return matched + 1 if self.stop[matched] == char else 0


class StopScanner:
    """One text. Automata may be shared between texts."""

    def __init__(self, automata: Sequence[StopAutomaton]) -> None:
        self._automata = automata
        self._matched = [0] * len(automata)
        self._held = ""
        self.is_hit = False

    def feed(self, text: str) -> str:
        """More text; returns what can be shown now. After a hit nothing more is shown."""
        if self.is_hit:
            return ""
        text = self._held + text
        for position in range(len(self._held), len(text)):
            num_hit = self._step(text[position])
            if num_hit:
                self.is_hit, self._held = True, ""
                return text[: position + 1 - num_hit]
        num_shown = len(text) - max(self._matched, default=0)
        self._held = text[num_shown:]
        return text[:num_shown]

    def flush(self) -> str:
        """The text ended: what was held is no stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> int:
        """Length of the longest stop string that ends with `char`, or 0."""
        matched = self._matched
        for index, automaton in enumerate(self._automata):
            matched[index] = automaton.step(matched[index], char)
        hits = (m for m, a in zip(matched, self._automata, strict=True) if m == len(a.stop))
        return max(hits, default=0)


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = table[length - 1]
        length += stop[index] == stop[length]
        table[index] = length
    return table
