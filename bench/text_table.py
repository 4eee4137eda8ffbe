"""A table as lines of text, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def text(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        padded = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", padded[0], rule, *padded[1:], ""])
