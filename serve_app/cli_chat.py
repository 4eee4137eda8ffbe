"""`cachelane chat`: talk to the service and see where each turn went."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from serve_app.cli_common import (
    DEFAULT_STATE_DIR,
    StateDirOption,
    UrlOption,
    console,
    service_url,
)
from serve_app.client import Answer, first_model, stream_chat


def chat(
    message: Annotated[
        str | None, typer.Argument(help="One message; none: a conversation.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    request_type: Annotated[str | None, typer.Option(help="For the retention policy.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest.")] = 0.0,
    url: UrlOption = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Chat with the model; after each answer: worker, reason and cached tokens."""
    where = service_url(url, state_dir)
    options: dict[str, Any] = {
        "model": first_model(where),
        "max_tokens": max_tokens,
        "temperature": temperature,
        **({} if request_type is None else {"request_type": request_type}),
    }
    talk = Conversation(where, options, system, console())
    if message is not None:
        talk.say(message)
        return
    while (line := _ask()) is not None:
        if line:
            talk.say(line)


class Conversation:
    """The turns so far; every turn sends them all."""

    def __init__(self, url: str, options: dict[str, Any], system: str | None, out: Console) -> None:
        self._url = url
        self._options = options
        self._out = out
        self._messages: list[dict[str, str]] = []
        if system is not None:
            self._messages.append({"role": "system", "content": system})

    def say(self, text: str) -> Answer:
        """Print the answer as it comes. A turn that fails is not part of the conversation."""
        turn = [*self._messages, {"role": "user", "content": text}]
        answer = stream_chat(self._url, turn, self._print, **self._options)
        self._messages = [*turn, {"role": "assistant", "content": answer.text}]
        self._out.print()
        self._out.print(Text(footer(answer), "dim"), soft_wrap=True)
        return answer

    def _print(self, text: str) -> None:
        self._out.file.write(text)
        self._out.file.flush()


def footer(answer: Answer) -> str:
    """Where the turn went and what it cost."""
    return (
        f"[{answer.worker} · {answer.reason} · {answer.cached_tokens} of {answer.prompt_tokens} "
        f"prompt tokens cached · first token {answer.first_token_s * 1000:.0f} ms · "
        f"{answer.output_tokens} tokens in {answer.total_s:.1f} s]"
    )


def _ask() -> str | None:
    """The next line; None at the end of input."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        return input(prompt).strip()
    except EOFError:
        return None
