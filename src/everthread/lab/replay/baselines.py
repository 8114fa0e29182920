"""Play a conversation without Everthread: without caching, with caching alone, and with truncation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from everthread.core.caching.claude_cache_marks import (
    apply_cache_control,
    find_first_markable_index,
    mark_system,
)
from everthread.core.messages import Message, with_content
from everthread.core.types import ModelRequest, System
from everthread.lab.provider.cache import CacheUse
from everthread.lab.replay import result
from everthread.lab.replay.cache_lifetime import caches_by_marks
from everthread.lab.replay.call_recorder import ReplayRecorder, price_call
from everthread.lab.replay.replay_inputs import ReplayInputs
from everthread.lab.replay.result import StrategyResult
from everthread.lab.replay.simulated_cache import ReplayCaches
from everthread.lab.replay.tracked_facts import StatedFact, locate_facts_in_messages
from everthread.testing import SteppedClock

UNCACHED_STRATEGY = "uncached"
CACHED_STRATEGY = "cached"
TRUNCATED_STRATEGY = "truncated"


def play_baselines(inputs: ReplayInputs, facts: Sequence[StatedFact]) -> list[StrategyResult]:
    """Play without caching, with caching, and with truncation, and look for the facts in what truncation leaves."""
    cached_result, messages = _play_history(inputs, CACHED_STRATEGY, "caching, no compaction")
    truncated_result = replace(
        cached_result, name=TRUNCATED_STRATEGY, label=result.TRUNCATION_CAUSE
    )
    if cached_result.refused_call is not None or cached_result.peak > inputs.max_prompt_tokens:
        truncated_result, messages = _play_history(
            inputs, TRUNCATED_STRATEGY, result.TRUNCATION_CAUSE
        )
    kept_facts = locate_facts_in_messages(facts, messages)
    return [
        _price_without_cache(inputs, cached_result),
        cached_result,
        replace(truncated_result, facts=kept_facts),
    ]


def _price_without_cache(inputs: ReplayInputs, cached_result: StrategyResult) -> StrategyResult:
    """Return the same calls at the prices of uncached prompts."""
    uncached_calls = []
    for planned_call, call in zip(inputs.calls, cached_result.calls, strict=False):
        use = CacheUse(call.use.prompt)
        input_cost, output_cost = price_call(
            planned_call.model,
            use,
            call.output_tokens,
            timestamp=inputs.started_at + call.sent_at,
        )
        uncached_calls.append(
            replace(
                call,
                use=use,
                input_cost=input_cost,
                output_cost=output_cost,
                miss="",
                missed_tokens=0,
            )
        )
    return replace(
        cached_result,
        name=UNCACHED_STRATEGY,
        label="no management, no caching",
        calls=uncached_calls,
    )


def _play_history(
    inputs: ReplayInputs, name: str, label: str
) -> tuple[StrategyResult, list[Message]]:
    """Send the whole history with every request until a prompt exceeds the window.

    The strategy `truncated` sends only the end of the history that fits.
    """
    call_recorder = ReplayRecorder(inputs.ttl, inputs.started_at)
    clock = SteppedClock(0.0)
    marker = CacheMarker(inputs.ttl)
    caches = ReplayCaches(clock, inputs.recording)
    history: list[Message] = []
    for call_index, call in enumerate(inputs.calls):
        history += call.inputs
        rewrite_cause = ""
        if name == TRUNCATED_STRATEGY:
            end_of_history = _fit_history(inputs, history, call.model)
            if len(end_of_history) < len(history):
                rewrite_cause = result.TRUNCATION_CAUSE
                marker = CacheMarker(inputs.ttl)
            history = end_of_history
        request = marker.make_request(call.model, history, inputs.system, inputs.tools)
        prompt = inputs.prompts.read(request)
        if prompt.tokens > inputs.window:
            return StrategyResult(name, label, call_recorder.calls, call_index), history
        clock.now = call.sent_at
        use = caches.use(call_index, request.model, prompt)
        call_recorder.record_call(
            request, use, call.output_tokens, call.sent_at, rewrite_cause=rewrite_cause
        )
        history.append(call.answer)
        inputs.report_step()
    return StrategyResult(name, label, call_recorder.calls), history


def _fit_history(inputs: ReplayInputs, history: list[Message], model: str) -> list[Message]:
    """Return the end of the history that fits, without separating results from their calls."""
    counter = inputs.prompts.get_counter(model)
    size = counter.request((), system=inputs.system, tools=inputs.tools) + counter.messages(history)
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


def _cut_texts(group: list[Message], kept_share: float, min_chars: int) -> list[Message]:
    """Truncate the long texts of the last group if it does not fit on its own."""
    cut_group = []
    for message in group:
        text = message.get("content")
        if isinstance(text, str) and len(text) > min_chars:
            cut_group.append(with_content(message, text[: int(kept_share * len(text) * 0.9)]))
        else:
            cut_group.append(message)
    return cut_group


def _list_possible_starts(
    history: list[Message], count_tokens: Callable[[Message], int]
) -> Iterator[tuple[int, int]]:
    """Yield each possible start of the history with the tokens before it; a tool's result never starts it."""
    tokens_before = 0
    for index, message in enumerate(history):
        if message["role"] != "tool":
            yield index, tokens_before
        tokens_before += count_tokens(message)


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
    ) -> ModelRequest:
        if not caches_by_marks(model):
            return ModelRequest(model, list(messages), system, list(tools))
        last_index = self._last_index
        if last_index is not None and last_index >= len(messages):
            last_index = None
        start = find_first_markable_index(len(messages), last_index)
        marked_messages = apply_cache_control(
            messages[start:],
            ttl=self._ttl,
            native_anthropic=True,
            previous_index=None if last_index is None else last_index - start,
        )
        self._last_index = len(messages) - 1
        marked_system = mark_system(system, ttl=self._ttl)
        return ModelRequest(
            model, [*messages[:start], *marked_messages], marked_system, list(tools)
        )
