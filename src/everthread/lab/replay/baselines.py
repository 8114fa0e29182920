"""A provider within this process, its prices, and the ways of holding a conversation that ours is compared with."""

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
from everthread.lab.replay.result import Played, Way
from everthread.testing import SteppedClock


def by_marks(model: str) -> bool:
    """Whether the model's cache is asked by marks, as Claude's is; any other works by itself."""
    return "claude" in model.lower()


def remembered(model: str, ttl: str) -> float:
    """For how many seconds the model's cache holds what is not used."""
    return CLAUDE_SECONDS["1h" if ttl == "1h" else "5m"] if by_marks(model) else PREFIX_SECONDS


class Prompts:
    """Reads requests of any models; a message that was read before is known by its identity."""

    def __init__(self) -> None:
        self._readers: dict[str, PromptReader] = {}
        self._known: dict[tuple[str, int], tuple[Message, Sequence[Block]]] = {}
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
        if key not in self._known:
            read = self._reader(model).read("openai_chat", Request(model, [message]), {}).blocks
            self._known[key] = message, _marked(message, read)  # held, so that its id stays its own
        return self._known[key][1]


def _marked(message: Message, blocks: Sequence[Block]) -> Sequence[Block]:
    """A mark on the message itself stands on its last block when it is sent."""
    mark = message.get("cache_control")
    if not mark or message["role"] == "tool" or blocks[-1].mark:
        return blocks
    return [*blocks[:-1], replace(blocks[-1], mark="1h" if mark.get("ttl") == "1h" else "5m", marks=1)]


class Cache:
    """What one conversation's provider remembers, for every model that is asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._claude, self._others = ClaudeCache(clock), PrefixCache(clock)

    def use(self, model: str, prompt: Prompt) -> CacheUse:
        if by_marks(model):
            return self._claude.use(model, prompt.blocks, prompt=prompt.tokens, minimum=cache_minimum(model))
        return CacheUse(prompt.tokens, self._others.use(model, prompt.blocks, prompt=prompt.tokens))


class CacheMarker:
    """Puts the marks `system_and_3` on the requests of a conversation that nobody manages."""

    def __init__(self, ttl: str) -> None:
        self._ttl = ttl
        self._last: int | None = None

    def request(
        self, model: str, messages: Sequence[Message], system: System, tools: Sequence[dict[str, object]]
    ) -> Request:
        if not by_marks(model):
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
    """Writes down the calls of one way of holding a conversation."""

    ttl: str
    began: float
    """When the first call is sent, in seconds since 1970: prices change."""
    caching: bool = True
    _before: tuple[Request, CacheUse, float] | None = None

    def played(self, request: Request, use: CacheUse, output: int, at: float, *, reshaped: str = "") -> Played:
        """The call. `reshaped`: why its history is not the one of the call before with more behind it."""
        cause, missed = self._miss(request, use, at, reshaped) if self.caching else ("", 0)
        self._before = request, use, at
        spent = self._costs(request.model, use, output, at)
        return Played(at, len(request.messages), use, output, *spent, cause, missed)

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
        before, left, then = self._before
        kept = _kept(before.model, left)
        if kept == 0:
            return (result.SHORT if use.read == 0 else ""), 0
        missed = kept - use.read
        if missed <= 0:
            return "", 0
        return self._cause(before, request, at - then, reshaped), missed

    def _cause(self, before: Request, request: Request, gap: float, reshaped: str) -> result.Cause:
        """The first of the reasons there may be, the ones that lose most before the others."""
        if before.model != request.model:
            return result.MODEL
        if gap >= remembered(request.model, self.ttl):
            return result.FORGOTTEN
        if before.tools != request.tools:
            return result.TOOLS
        if reshaped:
            return reshaped
        return result.SYSTEM if before.system != request.system else result.CHANGED


def _kept(model: str, use: CacheUse) -> int:
    """How much of a prompt the next one can read: with marks what was read and written, else all but the last step."""
    if by_marks(model):
        return use.read + use.write
    kept = use.prompt - 2 * STEP
    return kept if kept >= SMALLEST else 0


UNCACHED, CACHED, TRUNCATED = "uncached", "cached", "truncated"
_DROPPED = "oldest messages dropped"


@dataclass(frozen=True, slots=True)
class Setting:
    """What all ways of holding one conversation share."""

    calls: tuple[PlannedCall, ...]
    models: tuple[str, ...]
    """Who is asked, call by call."""
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


def unmanaged(setting: Setting) -> tuple[Way, Way]:
    """Without and with a cache, the whole history in every request; it ends where the window does."""
    bare, cached = CallLedger(setting.ttl, setting.began, caching=False), CallLedger(setting.ttl, setting.began)
    clock, marking = SteppedClock(0.0), CacheMarker(setting.ttl)
    cache = Cache(clock)
    history: list[Message] = []
    plain: list[Played] = []
    kept: list[Played] = []
    refused: int | None = None
    for number, call in enumerate(setting.calls):
        history += call.given
        request = marking.request(setting.models[number], history, setting.system, setting.tools)
        prompt = setting.prompts.read(request)
        if prompt.tokens > setting.window:
            refused = number
            break
        clock.now = call.at
        plain.append(bare.played(request, CacheUse(prompt.tokens), setting.outputs[number], call.at))
        use = cache.use(request.model, prompt)
        kept.append(cached.played(request, use, setting.outputs[number], call.at))
        history.append(call.answer)
        setting.step()
    return (
        Way(UNCACHED, "no management, no caching", plain, refused),
        Way(CACHED, "caching, no compaction", kept, refused),
    )


def truncated(setting: Setting, cached: Way) -> tuple[Way, list[Message]]:
    """The oldest messages dropped so that the rest fits, with a cache; and what is left of them at the end."""
    if cached.refused is None and cached.peak <= setting.fits:  # nothing is dropped, so it is the same
        whole = [message for call in setting.calls for message in (*call.given, call.answer)]
        return replace(cached, name=TRUNCATED, what=_DROPPED), whole
    ledger, clock, marking = CallLedger(setting.ttl, setting.began), SteppedClock(0.0), CacheMarker(setting.ttl)
    cache = Cache(clock)
    history: list[Message] = []
    played: list[Played] = []
    for number, call in enumerate(setting.calls):
        history += call.given
        fitting = _fitting(setting, history, setting.models[number])
        dropped = len(fitting) < len(history)
        history, marking = fitting, CacheMarker(setting.ttl) if dropped else marking
        request = marking.request(setting.models[number], history, setting.system, setting.tools)
        prompt = setting.prompts.read(request)
        if prompt.tokens > setting.window:
            return Way(TRUNCATED, _DROPPED, played, number), history
        clock.now = call.at
        use = cache.use(request.model, prompt)
        reshaped = result.DROPPED if dropped else ""
        played.append(ledger.played(request, use, setting.outputs[number], call.at, reshaped=reshaped))
        history.append(call.answer)
        setting.step()
    return Way(TRUNCATED, _DROPPED, played), history


def _fitting(setting: Setting, history: list[Message], model: str) -> list[Message]:
    """The end of the history that fits, whole groups of calls and results."""
    counter = setting.prompts.counter(model)
    size = counter.request((), system=setting.system, tools=setting.tools) + counter.messages(history)
    start, left = 0, size
    for start, dropped in _starts(history, counter.message):
        left = size - dropped
        if left <= setting.fits:
            return history[start:] if start else history
    return _cut(history[start:], setting.fits / left, setting.fits // 2)


def _cut(group: list[Message], share: float, least: int) -> list[Message]:
    """The last group where it does not fit by itself: its long texts lose their ends."""
    return [
        with_content(message, text[: int(share * len(text) * 0.9)])
        if isinstance(text := message.get("content"), str) and len(text) > least
        else message
        for message in group
    ]


def _starts(history: list[Message], count: Callable[[Message], int]) -> Iterator[tuple[int, int]]:
    """Where the history may begin, with how many tokens come before; a result never stands without its call."""
    before = 0
    for at, message in enumerate(history):
        if message["role"] != "tool":
            yield at, before
        before += count(message)
