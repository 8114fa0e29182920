"""Test doubles for programs that build on Everthread: implementations of its protocols without a provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summary.sections import Sections
from everthread.core.caching.shared_prefix import (
    PrefixDiff,
    compare_prefixes,
)
from everthread.core.messages import text_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta
from everthread.errors import SummaryError
from everthread.thread.events import Event, RequestReady, ToolsChanged


@dataclass
class ScriptedSummarizer:
    """A summariser that answers with fixed sections or with sections made from the request; it keeps the requests."""

    sections: Mapping[str, str] | Callable[[SummaryRequest], Sections] = field(default_factory=dict)
    name: str = "scripted"
    fails: str = ""
    """An error to raise instead of answering."""
    requests: list[SummaryRequest] = field(default_factory=list)

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        self.requests.append(request)
        if self.fails:
            raise SummaryError(self.fails, is_transient=True)
        sections = self.sections(request) if callable(self.sections) else dict(self.sections)
        return SummaryDraft(sections, self.name)


class SteppedClock:
    """A clock that moves only by `advance`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


ScriptStep = str | ModelReply | Exception
"""One step of a scripted model: a text, a reply, or an error."""


class ScriptedModel:
    """A model that plays a script step by step, or calls a function for each request.

    It counts tokens itself and reports usage like a provider. `requests` keeps the requests.
    """

    def __init__(
        self,
        script: Iterable[ScriptStep] | Callable[[ModelRequest], ScriptStep] = (),
        *,
        name: str = "gpt-4o",
        window: int = 128_000,
        api: Api = "openai_chat",
        base_url: str = "http://scripted.test/v1",
    ) -> None:
        self.name = name
        self.window = window
        self.api = api
        self.base_url = base_url
        self.requests: list[ModelRequest] = []
        self._script = script if callable(script) else _play_script(iter(script))
        self._counter = TokenCounter(name)

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        step = self._script(request)
        if isinstance(step, Exception):
            raise step
        reply = step
        if not isinstance(reply, ModelReply):
            reply = ModelReply({"role": "assistant", "content": reply}, "stop")
        if reply.usage is not None:
            return reply
        usage = self._make_usage(request, text_of(reply.message))
        return ModelReply(
            reply.message,
            reply.stop,
            usage=usage,
            model=reply.model or self.name,
            id=reply.id,
            raw=reply.raw,
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamDelta | ModelReply, None]:
        """Stream the words one by one."""
        reply = await self.complete(request)
        for word in text_of(reply.message).split(" "):
            yield StreamDelta("text", text=f"{word} ")
        yield reply

    def _make_usage(self, request: ModelRequest, text: str) -> dict[str, Any]:
        prompt = self._counter.request(request.messages, system=request.system, tools=request.tools)
        output = self._counter.text(text)
        if self.api == "openai_chat":
            return {
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt + output,
            }
        return {"input_tokens": prompt, "output_tokens": output}


def _play_script(script: Iterator[ScriptStep]) -> Callable[[ModelRequest], ScriptStep]:
    def next_step(_request: ModelRequest) -> ScriptStep:
        try:
            return next(script)
        except StopIteration:
            return AssertionError(
                "the scripted model got one more request than its script has steps"
            )

    return next_step


class PrefixWatch:
    """A listener that checks that each request of a session extends the one before, as prompt caches need.

    Text that is injected for one call is ignored. `broken` lists the differences of the requests that changed their
    beginning.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.broken: list[PrefixDiff] = []
        self._last_requests: dict[str, ModelRequest] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ToolsChanged) and event.is_immediate:
            self._last_requests.pop(event.session, None)  # the user allowed this break
        if isinstance(event, RequestReady):
            messages = event.request.messages[: len(event.request.messages) - event.injected_count]
            request = ModelRequest(
                event.request.model, messages, event.request.system, event.request.tools
            )
            previous = self._last_requests.get(event.session)
            if previous is not None and previous.model == request.model:
                difference = compare_prefixes(previous, request)
                if not difference.is_extension:
                    self.broken.append(difference)
            self._last_requests[event.session] = request

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the recorded events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]
