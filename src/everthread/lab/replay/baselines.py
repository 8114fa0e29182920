"""Simulate the cache and prices of a replay, and play its baselines: no management, caching alone, truncation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from everthread.core.caching.claude_cache_marks import (
    apply_cache_control,
    find_first_markable_index,
    mark_system,
)
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, with_content
from everthread.core.prices import compute_cost, prices_for
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import DEFAULT_OUTPUT_RESERVE
from everthread.core.types import Request, System
from everthread.lab.provider.cache import (
    CACHE_STEP_TOKENS,
    MIN_CACHED_TOKENS,
    CacheUse,
    ProviderCaches,
)
from everthread.lab.provider.prompt_blocks import Block, Prompt, PromptReader
from everthread.lab.provider.served_models import find_cache_minimum
from everthread.lab.replay import result
from everthread.lab.replay.cache_lifetime import (
    caches_by_marks,
    find_cache_seconds,
)
from everthread.lab.replay.recording import Recording, make_cache_use
from everthread.lab.replay.replay_plan import PlannedCall
from everthread.lab.replay.result import PlayedCall, StrategyResult
from everthread.testing import SteppedClock


class PromptBlockReader:
    """Reads requests of any models into blocks; a message object is read once."""

    def __init__(self) -> None:
        self._readers: dict[str, PromptReader] = {}
        self._blocks: dict[tuple[str, int], tuple[Message, Sequence[Block]]] = {}
        """Blocks by model and the message's id, with the message: the reference keeps its id unique."""
        self._head: Request | None = None
        self._head_blocks: Sequence[Block] = ()

    def get_counter(self, model: str) -> TokenCounter:
        return self._get_reader(model).counter

    def read(self, request: Request) -> Prompt:
        blocks = [*self._read_head(request)]
        for message in request.messages:
            key = (request.model, id(message))
            if key not in self._blocks:
                self._blocks[key] = message, self._read_message(request.model, message)
            blocks += self._blocks[key][1]
        return Prompt(
            blocks,
            sum(block.tokens for block in blocks)
            + self.get_counter(request.model).request(()),
        )

    def _read_head(self, request: Request) -> Sequence[Block]:
        """Return the blocks of system prompt and tools: the same objects until one of the two changes."""
        head = replace(request, messages=[], params={})
        if head != self._head:
            self._head = head
            self._head_blocks = (
                self._get_reader(request.model).read("openai_chat", head, {}).blocks
            )
        return self._head_blocks

    def _get_reader(self, model: str) -> PromptReader:
        if model not in self._readers:
            self._readers[model] = PromptReader(model)
        return self._readers[model]

    def _read_message(self, model: str, message: Message) -> Sequence[Block]:
        """Return the blocks of a message. A mark on the message itself moves to its last block, as on the wire.

        Reasoning is a block before the others, except encrypted reasoning, which is not in the log.
        """
        blocks = (
            self._get_reader(model)
            .read("openai_chat", Request(model, [message]), {})
            .blocks
        )
        thoughts = message.get("reasoning_content")
        if thoughts:
            blocks = [
                Block(thoughts, self.get_counter(model).text(thoughts), "thinking"),
                *blocks,
            ]
        mark = message.get("cache_control")
        if not mark or blocks[-1].mark:
            return blocks
        return [
            *blocks[:-1],
            replace(
                blocks[-1], mark="1h" if mark.get("ttl") == "1h" else "5m", marks=1
            ),
        ]


class ReplayCaches:
    """The provider's caches, for one strategy.

    Without a recording, entries expire by the clock. With one, the calls that missed in the log miss here too, and no
    others do, except for changes that the strategy itself makes. An automatic cache is spread over several machines: a
    call that missed in part reads the prefix that the previous missed call left on another machine.
    """

    def __init__(self, clock: Callable[[], float], recording: Recording | None) -> None:
        self._recording = recording
        self._clock = clock if recording is None else lambda: 0.0
        self._caches = ProviderCaches(self._clock)
        self._other_machine = ProviderCaches(self._clock)

    def use(self, call_index: int, model: str, prompt: Prompt) -> CacheUse:
        """Return the use of the cache by the call with this index."""
        recording = self._recording
        minimum = find_cache_minimum(model) if caches_by_marks(model) else None
        if recording is None:
            return self._caches.use(model, prompt, minimum=minimum)
        is_missed = call_index == 0 or call_index in recording.missed_calls
        is_partly_missed = (
            minimum is None and call_index in recording.partly_missed_calls
        )
        if is_missed:
            self._caches = ProviderCaches(self._clock)
            self._fill_caches(model, prompt, recording.count_cached_tokens(call_index))
        use = self._caches.use(model, prompt, minimum=minimum)
        if is_missed or is_partly_missed:
            other_use = self._other_machine.use(model, prompt, minimum=minimum)
            return other_use if is_partly_missed else use
        return use

    def _fill_caches(self, model: str, prompt: Prompt, tokens: int) -> None:
        """Put the first blocks, up to this many tokens, into the caches."""
        blocks: list[Block] = []
        size = 0
        for block in prompt.blocks:
            if size + block.tokens > tokens * FILL_TOLERANCE:
                break
            blocks.append(block)
            size += block.tokens
        if blocks:
            blocks[-1] = replace(blocks[-1], mark="1h")
            self._caches.use(
                model,
                Prompt(blocks, size),
                minimum=0 if caches_by_marks(model) else None,
            )


FILL_TOLERANCE = 1.02
"""Filler texts may exceed their size by this factor."""


class CacheMarker:
    """Puts the marks `system_and_3` on the requests of an unmanaged conversation."""

    def __init__(self, ttl: str) -> None:
        self._ttl = ttl
        self._last_index: int | None = None

    def make_request(
        self,
        model: str,
        messages: Sequence[Message],
        system: System,
        tools: Sequence[dict[str, object]],
    ) -> Request:
        if not caches_by_marks(model):
            return Request(model, list(messages), system, list(tools))
        last_index = (
            None
            if self._last_index is not None and self._last_index >= len(messages)
            else self._last_index
        )
        start = find_first_markable_index(len(messages), last_index)
        marked_messages = apply_cache_control(
            messages[start:],
            ttl=self._ttl,
            native_anthropic=True,
            previous_index=None if last_index is None else last_index - start,
        )
        self._last_index = len(messages) - 1
        marked_system = mark_system(system, ttl=self._ttl)
        return Request(
            model, [*messages[:start], *marked_messages], marked_system, list(tools)
        )


@dataclass(slots=True)
class CallRecorder:
    """Records the calls of one strategy."""

    ttl: str
    started_at: float
    """The time of the first call, in seconds since 1970: prices change."""
    calls: list[PlayedCall] = field(default_factory=list)
    _previous_call: tuple[Request, CacheUse, float] | None = None

    def record_call(
        self,
        request: Request,
        use: CacheUse,
        output_tokens: int,
        sent_at: float,
        *,
        rewrite_cause: str = "",
    ) -> None:
        """Record a call. `rewrite_cause`: why its history does not extend that of the previous call."""
        cause, missed = self._find_miss(request, use, sent_at, rewrite_cause)
        self._previous_call = request, use, sent_at
        input_cost, output_cost = price_call(
            request.model, use, output_tokens, timestamp=self.started_at + sent_at
        )
        self.calls.append(
            PlayedCall(
                sent_at,
                len(request.messages),
                use,
                output_tokens=output_tokens,
                input_cost=input_cost,
                output_cost=output_cost,
                miss=cause,
                missed_tokens=missed,
            )
        )

    def _find_miss(
        self, request: Request, use: CacheUse, sent_at: float, rewrite_cause: str
    ) -> tuple[result.Cause, int]:
        """Return the first cause that applies, the most costly first, and the tokens missed."""
        if self._previous_call is None:
            return result.FIRST_CAUSE, 0
        previous_request, previous_use, previous_time = self._previous_call
        cached = _count_readable_tokens(previous_request.model, previous_use)
        if cached == 0:
            return (result.SHORT_PROMPT_CAUSE if use.read == 0 else ""), 0
        if cached <= use.read:
            return "", 0
        causes = [
            (previous_request.model != request.model, result.MODEL_CAUSE),
            (
                sent_at - previous_time >= find_cache_seconds(request.model, self.ttl),
                result.EXPIRED_CAUSE,
            ),
            (previous_request.tools != request.tools, result.TOOLS_CAUSE),
            (bool(rewrite_cause), rewrite_cause),
            (previous_request.system != request.system, result.SYSTEM_CAUSE),
        ]
        return next(
            (cause for applies, cause in causes if applies), result.CHANGED_CAUSE
        ), cached - use.read


def price_call(
    model: str, use: CacheUse, output: int, *, timestamp: float
) -> tuple[Decimal | None, Decimal | None]:
    """Return dollars for the prompt and for the output; None if a price is unknown."""
    prices = prices_for(
        model, time=datetime.fromtimestamp(timestamp, UTC), prompt_tokens=use.prompt
    )
    if prices is None:
        return None, None
    prompt = CanonicalUsage(
        input_tokens=use.input,
        cache_read_tokens=use.read,
        cache_write_tokens=use.write,
        cache_write_1h_tokens=use.write_1h,
    )
    return compute_cost(prompt, prices), compute_cost(
        CanonicalUsage(output_tokens=output), prices
    )


def _count_readable_tokens(model: str, use: CacheUse) -> int:
    """Return the tokens of a prompt that the next can read: with marks those read and written, else all but the end."""
    if caches_by_marks(model):
        return use.read + use.write
    cached = use.prompt - 2 * CACHE_STEP_TOKENS
    return cached if cached >= MIN_CACHED_TOKENS else 0


UNCACHED_STRATEGY = "uncached"
CACHED_STRATEGY = "cached"
TRUNCATED_STRATEGY = "truncated"
RECORDED_STRATEGY = "recorded"
BASELINE_LABELS = {
    UNCACHED_STRATEGY: "no management, no caching",
    CACHED_STRATEGY: "caching, no compaction",
    TRUNCATED_STRATEGY: result.TRUNCATION_CAUSE,
    RECORDED_STRATEGY: "as it was, by the log's usage",
}


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """The inputs that all strategies share: calls, window, system prompt, tools, recorded cache."""

    calls: tuple[PlannedCall, ...]
    window: int
    ttl: str
    started_at: float
    system: System
    tools: list[dict[str, Any]]
    prompts: PromptBlockReader
    step: Callable[[], None]
    recording: Recording | None = None
    """None if the log states no usage: then the cache is simulated by the clock."""

    @property
    def max_prompt_tokens(self) -> int:
        """Return the tokens of the largest prompt that leaves room for an answer."""
        return self.window - min(DEFAULT_OUTPUT_RESERVE, self.window // 8)


def price_recorded_calls(inputs: ReplayInputs) -> list[PlayedCall | None]:
    """Return each call with its recorded usage and its price; None for a call without a recorded prompt."""
    priced_calls: list[PlayedCall | None] = []
    messages = 0
    for call in inputs.calls:
        messages += len(call.inputs)
        usage = call.usage
        if usage is None or not usage.prompt_tokens:
            priced_calls.append(None)
        else:
            use = make_cache_use(usage)
            costs = price_call(
                call.model,
                use,
                call.output_tokens,
                timestamp=inputs.started_at + call.sent_at,
            )
            priced_calls.append(
                PlayedCall(call.sent_at, messages, use, call.output_tokens, *costs)
            )
        messages += 1
    return priced_calls


def play_baselines(
    inputs: ReplayInputs,
) -> tuple[StrategyResult, StrategyResult, StrategyResult, list[Message]]:
    """Play without caching, with caching, and with truncation. Also return the messages that truncation leaves."""
    cached, messages = _play_history(inputs, CACHED_STRATEGY)
    uncached_calls = []
    for planned, call in zip(inputs.calls, cached.calls, strict=False):
        use = CacheUse(call.use.prompt)
        prompt_cost, output_cost = price_call(
            planned.model,
            use,
            call.output_tokens,
            timestamp=inputs.started_at + call.sent_at,
        )
        uncached_calls.append(
            replace(
                call,
                use=use,
                input_cost=prompt_cost,
                output_cost=output_cost,
                miss="",
                missed_tokens=0,
            )
        )
    uncached = replace(
        cached,
        name=UNCACHED_STRATEGY,
        label=BASELINE_LABELS[UNCACHED_STRATEGY],
        calls=uncached_calls,
    )
    # Nothing is dropped, so it is the same.
    if cached.refused_call is None and cached.peak <= inputs.max_prompt_tokens:
        return (
            uncached,
            cached,
            replace(
                cached,
                name=TRUNCATED_STRATEGY,
                label=BASELINE_LABELS[TRUNCATED_STRATEGY],
            ),
            messages,
        )
    return uncached, cached, *_play_history(inputs, TRUNCATED_STRATEGY)


def _play_history(
    inputs: ReplayInputs, strategy_name: str
) -> tuple[StrategyResult, list[Message]]:
    """Send the whole history with every request, or the end of it that fits, until a prompt exceeds the window."""
    call_recorder = CallRecorder(inputs.ttl, inputs.started_at)
    clock = SteppedClock(0.0)
    marker = CacheMarker(inputs.ttl)
    caches = ReplayCaches(clock, inputs.recording)
    history: list[Message] = []
    for number, call in enumerate(inputs.calls):
        history += call.inputs
        rewrite_cause = ""
        if strategy_name == TRUNCATED_STRATEGY:
            end_of_history = _fit_history(inputs, history, call.model)
            if len(end_of_history) < len(history):
                rewrite_cause = result.TRUNCATION_CAUSE
                marker = CacheMarker(inputs.ttl)
            history = end_of_history
        request = marker.make_request(call.model, history, inputs.system, inputs.tools)
        prompt = inputs.prompts.read(request)
        if prompt.tokens > inputs.window:
            return StrategyResult(
                strategy_name,
                BASELINE_LABELS[strategy_name],
                call_recorder.calls,
                number,
            ), history
        clock.now = call.sent_at
        use = caches.use(number, request.model, prompt)
        call_recorder.record_call(
            request, use, call.output_tokens, call.sent_at, rewrite_cause=rewrite_cause
        )
        history.append(call.answer)
        inputs.step()
    return StrategyResult(
        strategy_name, BASELINE_LABELS[strategy_name], call_recorder.calls
    ), history


def _fit_history(
    inputs: ReplayInputs, history: list[Message], model: str
) -> list[Message]:
    """Return the end of the history that fits, in whole groups of calls and results."""
    counter = inputs.prompts.get_counter(model)
    size = counter.request(
        (), system=inputs.system, tools=inputs.tools
    ) + counter.messages(history)
    start = 0
    remaining = size
    for start, dropped_tokens in _list_possible_starts(history, counter.message):
        remaining = size - dropped_tokens
        if remaining <= inputs.max_prompt_tokens:
            return history[start:] if start else history
    return _cut_texts(
        history[start:],
        inputs.max_prompt_tokens / remaining,
        inputs.max_prompt_tokens // 2,
    )


def _cut_texts(
    group: list[Message], kept_share: float, min_chars: int
) -> list[Message]:
    """Cut the long texts of a last group that does not fit by itself."""
    return [
        with_content(message, text[: int(kept_share * len(text) * 0.9)])
        if isinstance(text := message.get("content"), str) and len(text) > min_chars
        else message
        for message in group
    ]


def _list_possible_starts(
    history: list[Message], count: Callable[[Message], int]
) -> Iterator[tuple[int, int]]:
    """Yield each possible start of the history with the tokens before it; a tool's result never starts it."""
    tokens_before = 0
    for index, message in enumerate(history):
        if message["role"] != "tool":
            yield index, tokens_before
        tokens_before += count(message)
