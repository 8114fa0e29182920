"""The simulated cache and prices of a replay, and its baselines: no management, caching alone, truncation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain, takewhile
from typing import Any

from everthread.context.policy import SPARE_OUTPUT
from everthread.core.cache_control import apply_cache_control, mark_system, marks_begin
from everthread.core.messages import Message, with_content
from everthread.core.pricing import CanonicalUsage, cost, prices_for
from everthread.core.tokens import TokenCounter
from everthread.core.types import Request, System
from everthread.lab.provider.cache import (
    CLAUDE_SECONDS,
    PREFIX_SECONDS,
    SMALLEST,
    STEP,
    Block,
    CacheUse,
    ClaudeCache,
    PrefixCache,
    Prompt,
    PromptReader,
)
from everthread.lab.provider.models import cache_minimum
from everthread.lab.replay import result
from everthread.lab.replay.plan import PlannedCall
from everthread.lab.replay.result import PlayedCall, ReplayWay
from everthread.testing import SteppedClock


def caches_by_marks(model: str) -> bool:
    """Whether the model's cache needs marks, as Claude's does; any other is automatic."""
    return "claude" in model.lower()


def cache_seconds(model: str, ttl: str) -> float:
    """The lifetime of an unused entry in the model's cache, in seconds."""
    return CLAUDE_SECONDS["1h" if ttl == "1h" else "5m"] if caches_by_marks(model) else PREFIX_SECONDS


class Prompts:
    """Reads requests of any models into blocks; a message object is read once."""

    def __init__(self) -> None:
        self._readers: dict[str, PromptReader] = {}
        self._blocks_by_message: dict[tuple[str, int], tuple[Message, Sequence[Block]]] = {}
        self._last: tuple[str, list[Message], list[Sequence[Block]]] = ("", [], [])

    def counter(self, model: str) -> TokenCounter:
        return self._reader(model).counter

    def read(self, request: Request) -> Prompt:
        head = self._reader(request.model).read("openai_chat", replace(request, messages=[], params={}), {})
        model, messages, read = self._last
        if model != request.model:
            messages, read = [], []
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(messages, request.messages, strict=False)))
        read = [*read[:same], *(self._blocks(request.model, message) for message in request.messages[same:])]
        self._last = request.model, request.messages, read
        blocks = [*head.blocks, *chain.from_iterable(read)]
        tokens = sum(block.tokens for block in blocks) + self.counter(request.model).request(())
        return Prompt(blocks, tokens)

    def _reader(self, model: str) -> PromptReader:
        if model not in self._readers:
            self._readers[model] = PromptReader(model)
        return self._readers[model]

    def _blocks(self, model: str, message: Message) -> Sequence[Block]:
        key = (model, id(message))
        if key not in self._blocks_by_message:
            read = self._reader(model).read("openai_chat", Request(model, [message]), {}).blocks
            self._blocks_by_message[key] = message, _move_mark(message, read)  # the reference keeps its id unique
        return self._blocks_by_message[key][1]


def _move_mark(message: Message, blocks: Sequence[Block]) -> Sequence[Block]:
    """Move a mark on the message itself to its last block, as the wire does."""
    mark = message.get("cache_control")
    if not mark or blocks[-1].mark:
        return blocks
    return [*blocks[:-1], replace(blocks[-1], mark="1h" if mark.get("ttl") == "1h" else "5m", marks=1)]


class Cache:
    """The provider's caches of one conversation, for every model."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._claude, self._others = ClaudeCache(clock), PrefixCache(clock)

    def use(self, model: str, prompt: Prompt) -> CacheUse:
        if caches_by_marks(model):
            return self._claude.use(model, prompt.blocks, prompt=prompt.tokens, minimum=cache_minimum(model))
        return CacheUse(prompt.tokens, self._others.use(model, prompt.blocks, prompt=prompt.tokens))


class CacheMarker:
    """Puts the marks `system_and_3` on the requests of an unmanaged conversation."""

    def __init__(self, ttl: str) -> None:
        self._ttl = ttl
        self._last: int | None = None

    def request(
        self, model: str, messages: Sequence[Message], system: System, tools: Sequence[dict[str, object]]
    ) -> Request:
        if not caches_by_marks(model):
            return Request(model, list(messages), system, list(tools))
        last = None if self._last is not None and self._last >= len(messages) else self._last
        start = marks_begin(len(messages), last)
        near = apply_cache_control(
            messages[start:], ttl=self._ttl, native_anthropic=True, previous=None if last is None else last - start
        )
        self._last = len(messages) - 1
        marked = mark_system(system, ttl=self._ttl)
        return Request(model, [*messages[:start], *near], marked, list(tools))


@dataclass(slots=True)
class CallLedger:
    """Records the calls of one way of holding a conversation."""

    ttl: str
    began: float
    """The time of the first call, in seconds since 1970: prices change."""
    caching: bool = True
    _before: tuple[Request, CacheUse, float] | None = None

    def record_call(self, request: Request, use: CacheUse, output: int, at: float, *, reshaped: str = "") -> PlayedCall:
        """Record a call. `reshaped`: why its history does not extend that of the previous call."""
        cause, missed = self._miss(request, use, at, reshaped) if self.caching else ("", 0)
        self._before = request, use, at
        spent = self._costs(request.model, use, output, at)
        return PlayedCall(at, len(request.messages), use, output, *spent, cause, missed)

    def _costs(self, model: str, use: CacheUse, output: int, at: float) -> tuple[Decimal | None, Decimal | None]:
        moment = datetime.fromtimestamp(self.began + at, UTC)
        prices = prices_for(model, at=moment, prompt_tokens=use.prompt)
        if prices is None:
            return None, None
        prompt = CanonicalUsage(
            input_tokens=use.input,
            cache_read_tokens=use.read,
            cache_write_tokens=use.write,
            cache_write_1h_tokens=use.write_1h,
        )
        return cost(prompt, prices), cost(CanonicalUsage(output_tokens=output), prices)

    def _miss(self, request: Request, use: CacheUse, at: float, reshaped: str) -> tuple[result.Cause, int]:
        if self._before is None:
            return result.FIRST, 0
        before, previous_use, then = self._before
        cached = _cached_tokens(before.model, previous_use)
        if cached == 0:
            return (result.SHORT if use.read == 0 else ""), 0
        missed = cached - use.read
        if missed <= 0:
            return "", 0
        return self._cause(before, request, at - then, reshaped), missed

    def _cause(self, before: Request, request: Request, gap: float, reshaped: str) -> result.Cause:
        """The first possible cause, those that lose most first."""
        if before.model != request.model:
            return result.MODEL
        if gap >= cache_seconds(request.model, self.ttl):
            return result.FORGOTTEN
        if before.tools != request.tools:
            return result.TOOLS
        if reshaped:
            return reshaped
        return result.SYSTEM if before.system != request.system else result.CHANGED


def _cached_tokens(model: str, use: CacheUse) -> int:
    """The tokens of a prompt that the next one can read: with marks those read and written, else all but the end."""
    if caches_by_marks(model):
        return use.read + use.write
    cached = use.prompt - 2 * STEP
    return cached if cached >= SMALLEST else 0


UNCACHED, CACHED, TRUNCATED = "uncached", "cached", "truncated"


@dataclass(frozen=True, slots=True)
class ReplaySetting:
    """What all ways of holding one conversation have in common."""

    calls: tuple[PlannedCall, ...]
    models: tuple[str, ...]
    """The model of each call."""
    outputs: tuple[int, ...]
    """Tokens of each answer."""
    window: int
    ttl: str
    began: float
    system: System
    tools: list[dict[str, Any]]
    prompts: Prompts
    step: Callable[[], None]
    """Called after each call."""

    @property
    def fits(self) -> int:
        """The largest prompt that leaves room for an answer."""
        return self.window - min(SPARE_OUTPUT, self.window // 8)


def play_unmanaged(setting: ReplaySetting) -> tuple[ReplayWay, ReplayWay]:
    """Play the whole history in every request, without and with a cache, until it no longer fits the window."""
    uncached, cached = CallLedger(setting.ttl, setting.began, caching=False), CallLedger(setting.ttl, setting.began)
    clock, marker = SteppedClock(0.0), CacheMarker(setting.ttl)
    cache = Cache(clock)
    history: list[Message] = []
    uncached_calls: list[PlayedCall] = []
    cached_calls: list[PlayedCall] = []
    refused: int | None = None
    for number, call in enumerate(setting.calls):
        history += call.inputs
        request = marker.request(setting.models[number], history, setting.system, setting.tools)
        prompt = setting.prompts.read(request)
        if prompt.tokens > setting.window:
            refused = number
            break
        clock.now = call.at
        uncached_calls.append(uncached.record_call(request, CacheUse(prompt.tokens), setting.outputs[number], call.at))
        use = cache.use(request.model, prompt)
        cached_calls.append(cached.record_call(request, use, setting.outputs[number], call.at))
        history.append(call.answer)
        setting.step()
    return (
        ReplayWay(UNCACHED, "no management, no caching", uncached_calls, refused),
        ReplayWay(CACHED, "caching, no compaction", cached_calls, refused),
    )


def play_truncated(setting: ReplaySetting, cached: ReplayWay) -> tuple[ReplayWay, list[Message]]:
    """Play with a cache, dropping the oldest messages to fit; also return the messages left at the end."""
    if cached.refused is None and cached.peak <= setting.fits:  # nothing is dropped, so it is the same
        messages = [message for call in setting.calls for message in (*call.inputs, call.answer)]
        return replace(cached, name=TRUNCATED, what=result.DROPPED), messages
    ledger, clock, marker = CallLedger(setting.ttl, setting.began), SteppedClock(0.0), CacheMarker(setting.ttl)
    cache = Cache(clock)
    history: list[Message] = []
    record_call: list[PlayedCall] = []
    for number, call in enumerate(setting.calls):
        history += call.inputs
        end_of_history = _fit_history(setting, history, setting.models[number])
        has_dropped = len(end_of_history) < len(history)
        history, marker = end_of_history, CacheMarker(setting.ttl) if has_dropped else marker
        request = marker.request(setting.models[number], history, setting.system, setting.tools)
        prompt = setting.prompts.read(request)
        if prompt.tokens > setting.window:
            return ReplayWay(TRUNCATED, result.DROPPED, record_call, number), history
        clock.now = call.at
        use = cache.use(request.model, prompt)
        reshaped = result.DROPPED if has_dropped else ""
        record_call.append(ledger.record_call(request, use, setting.outputs[number], call.at, reshaped=reshaped))
        history.append(call.answer)
        setting.step()
    return ReplayWay(TRUNCATED, result.DROPPED, record_call), history


def _fit_history(setting: ReplaySetting, history: list[Message], model: str) -> list[Message]:
    """The end of the history that fits, in whole groups of calls and results."""
    counter = setting.prompts.counter(model)
    size = counter.request((), system=setting.system, tools=setting.tools) + counter.messages(history)
    start, remaining = 0, size
    for start, dropped in _possible_starts(history, counter.message):
        remaining = size - dropped
        if remaining <= setting.fits:
            return history[start:] if start else history
    return _cut_texts(history[start:], setting.fits / remaining, setting.fits // 2)


def _cut_texts(group: list[Message], share: float, least: int) -> list[Message]:
    """Cut the long texts of a last group that does not fit by itself."""
    return [
        with_content(message, text[: int(share * len(text) * 0.9)])
        if isinstance(text := message.get("content"), str) and len(text) > least
        else message
        for message in group
    ]


def _possible_starts(history: list[Message], count: Callable[[Message], int]) -> Iterator[tuple[int, int]]:
    """The possible starts of the history, with the tokens before each; a result never starts it."""
    before = 0
    for at, message in enumerate(history):
        if message["role"] != "tool":
            yield at, before
        before += count(message)
