"""How `everthread run` tells what happens: in words, or as lines of JSON."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console

from everthread.cli.chatting.lines import ToolLines, line_of
from everthread.cli.chatting.screen import Screen
from everthread.cli.output import json_text, short, visible
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import Event
from everthread.conversation.responses import Answer
from everthread.core.exchange import StreamDelta


class Words:
    """The answer on standard output; on standard error what happens on the way."""

    def __init__(self, *, quiet: bool) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._quiet = quiet
        self._tools = ToolLines()
        self._thread = ""

    def begin(self, conversation: Conversation) -> None:
        self._thread = conversation.id

    def item(self, item: StreamDelta | Event) -> None:
        if self._quiet or isinstance(item, StreamDelta):
            return
        line = self._tools.line_of(item) or line_of(item)
        if line is not None:
            self.screen.print(line)

    def end(self, answer: Answer) -> None:
        typer.echo(visible(answer.text))

    def failed(self, error: str) -> None:
        told = f"everthread: {error}\nGo on with: everthread chat --resume {short(self._thread)}"
        typer.echo(visible(told), err=True)


class JsonLines:
    """Everything as lines of JSON on standard output: `start`, `text`, the events, then `answer` or `error`."""

    def __init__(self) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._thread = ""

    def begin(self, conversation: Conversation) -> None:
        self._thread = conversation.id
        self._say("start", thread=conversation.id, session=conversation.session.id, model=conversation.route.name,
                  window=conversation.window, window_source=conversation.route.source)  # fmt: skip

    def item(self, item: StreamDelta | Event) -> None:
        if isinstance(item, Event):
            typer.echo(json_text(item.as_dict()))
        elif item.kind in ("text", "reasoning", "refusal"):
            self._say(item.kind, text=item.text)

    def end(self, answer: Answer) -> None:
        used, cost = answer.usage, answer.cost
        tokens = {"prompt": used.prompt_tokens, "cache_read": used.cache_read_tokens, "output": used.output_tokens}
        self._say("answer", text=answer.text, stop=answer.stop, usage=tokens,
                  cost=None if cost is None else float(cost), thread=self._thread)  # fmt: skip

    def failed(self, error: str) -> None:
        self._say("error", error=error, thread=self._thread)

    def _say(self, event: str, **values: Any) -> None:
        typer.echo(json_text({"event": event, **values}))


Shown = Words | JsonLines
