"""Test doubles for people who build on Everthread: ordinary implementations of its protocols."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.compaction.summary import Sections, SummaryDraft, SummaryRequest
from everthread.conversation.events import Event, RequestReady, ToolsChanged
from everthread.core.cache_control import PrefixDiff, shared_prefix
from everthread.core.messages import text_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request, StreamDelta
from everthread.errors import SummaryError


@dataclass
class ScriptedSummarizer:
    """Answers with sections given beforehand, or made from the request; remembers what it was asked."""

    sections: Mapping[str, str] | Callable[[SummaryRequest], Sections] = field(default_factory=dict)
    name: str = "scripted"
    fails: str = ""
    """An error to raise instead."""
    requests: list[SummaryRequest] = field(default_factory=list)

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        self.requests.append(request)
        if self.fails:
            raise SummaryError(self.fails, passing=True)
        made = self.sections(request) if callable(self.sections) else dict(self.sections)
        return SummaryDraft(made, self.name)


class SteppedClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


Said = str | Reply | Exception
"""What a scripted model does: says a text, gives a reply, or fails."""


class ScriptedModel:
    """A model that says what it was told to, in order, or what a function makes of the request.

    It reports the usage a provider would: the prompt by a count of its own, the words it said. What it was sent is kept
    in `requests`.
    """

    def __init__(
        self,
        script: Iterable[Said] | Callable[[Request], Said] = (),
        *,
        name: str = "gpt-4o",
        window: int = 128_000,
        api: Api = "openai_chat",
        base_url: str = "http://scripted.test/v1",
    ) -> None:
        self.name, self.window, self.api, self.base_url = name, window, api, base_url
        self.requests: list[Request] = []
        self._script = script if callable(script) else _in_turn(iter(script))
        self._counter = TokenCounter(name)

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        said = self._script(request)
        if isinstance(said, Exception):
            raise said
        reply = said if isinstance(said, Reply) else Reply({"role": "assistant", "content": said}, "stop")
        if reply.usage is not None:
            return reply
        usage = self._usage(request, text_of(reply.message))
        return Reply(reply.message, reply.stop, usage, reply.model or self.name, reply.id, reply.raw)

    async def stream(self, request: Request) -> AsyncGenerator[StreamDelta | Reply, None]:
        """The words one by one."""
        reply = await self.complete(request)
        for word in text_of(reply.message).split(" "):
            yield StreamDelta("text", text=f"{word} ")
        yield reply

    def _usage(self, request: Request, said: str) -> dict[str, Any]:
        prompt = self._counter.request(request.messages, system=request.system, tools=request.tools)
        words = self._counter.text(said)
        if self.api == "openai_chat":
            return {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
        return {"input_tokens": prompt, "output_tokens": words}


def _in_turn(script: Iterator[Said]) -> Callable[[Request], Said]:
    def say(_request: Request) -> Said:
        try:
            return next(script)
        except StopIteration:
            return AssertionError("the scripted model was asked once more than its script says")

    return say


class PrefixWatch:
    """A listener that checks what keeps a provider's cache warm: each request of a session extends the one before.

    What is injected for one call is no part of it. `broken` tells where it did not.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.broken: list[PrefixDiff] = []
        self._last: dict[str, Request] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ToolsChanged) and event.now:
            self._last.pop(event.session, None)  # somebody allowed it
        if isinstance(event, RequestReady):
            kept = event.request.messages[: len(event.request.messages) - event.injected]
            request = Request(event.request.model, kept, event.request.system, event.request.tools)
            before = self._last.get(event.session)
            if before is not None and before.model == request.model:
                found = shared_prefix(before, request)
                if not found.extends:
                    self.broken.append(found)
            self._last[event.session] = request

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]
