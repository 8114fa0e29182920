"""The inputs that all strategies of a replay share, and how they are prepared from a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import DEFAULT_OUTPUT_RESERVE
from everthread.core.types import System
from everthread.lab.client_window import find_client_window
from everthread.lab.importers.log import Log
from everthread.lab.replay.prompt_fillers import add_hidden_reasoning, complete_prompt
from everthread.lab.replay.recording import Recording, read_recording
from everthread.lab.replay.replay_plan import PlannedCall, ReplayPlan
from everthread.lab.replay.simulated_cache import PromptBlockReader

DEFAULT_MODEL = "claude-sonnet-4-5"


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """The calls of a replay and the settings that all strategies share."""

    calls: tuple[PlannedCall, ...]
    window: int
    ttl: str
    started_at: float
    system: System
    tools: list[dict[str, Any]]
    prompts: PromptBlockReader
    report_step: Callable[[], None]
    recording: Recording | None = None
    """None if the log states no usage; the cache is then simulated by the clock."""

    @property
    def max_prompt_tokens(self) -> int:
        """Return the tokens of the largest prompt that leaves room for an answer."""
        return self.window - min(DEFAULT_OUTPUT_RESERVE, self.window // 8)


def prepare_inputs(  # noqa: PLR0913 - each is a choice of the caller
    log: Log,
    plan: ReplayPlan,
    *,
    model: str | None,
    window: int | None,
    ttl: str,
    is_ttl_given: bool,
    report_step: Callable[[], None],
) -> ReplayInputs:
    """Prepare a replay of a log.

    Without a `model`, each call uses the model of the log, and the log's usage gives prompt sizes and cache misses.
    """
    prompts = PromptBlockReader()
    default_model = model or log.model or DEFAULT_MODEL
    calls = [
        _complete_call(call, model or call.model or default_model, prompts) for call in plan.calls
    ]
    counter = prompts.get_counter(calls[0].model)
    system = log.system
    recording = None
    sizes = [0]
    if model is None:
        prompt = complete_prompt(log, calls, counter)
        system = prompt.system
        first_inputs = calls[0].inputs
        calls[0] = replace(
            calls[0],
            inputs=(*first_inputs[:1], *prompt.earlier_messages, *first_inputs[1:]),
        )
        sizes = _predict_sizes(log, calls, counter)
        recording = read_recording(
            calls, sizes, log.compactions, lasting_tokens=prompt.lasting_tokens
        )
    if recording is not None and recording.ttl is not None and not is_ttl_given:
        ttl = recording.ttl
    window = window or log.window
    if not window:
        window = find_client_window(log.kind, calls[0].model, largest_prompt=max(sizes))
    return ReplayInputs(
        tuple(calls),
        window,
        ttl=ttl,
        started_at=time.time() if plan.started_at is None else plan.started_at,
        system=system,
        tools=log.tools,
        prompts=prompts,
        report_step=report_step,
        recording=recording,
    )


def _complete_call(call: PlannedCall, model: str, prompts: PromptBlockReader) -> PlannedCall:
    """Return the call with its model, the tokens of its answer, and the reasoning that later prompts contain."""
    counter = prompts.get_counter(model)
    answer_tokens = counter.message(call.answer)
    return replace(
        call,
        model=model,
        output_tokens=_count_answer_tokens(call, counter, text_tokens=answer_tokens),
        answer=add_hidden_reasoning(call, counter, text_tokens=answer_tokens),
    )


def _count_answer_tokens(call: PlannedCall, counter: TokenCounter, *, text_tokens: int) -> int:
    """Return the reported tokens of an answer, or our own count if that is higher.

    A log may state only the tokens of the stream's beginning.
    """
    thought_tokens = counter.text(call.answer.get("reasoning_content") or "")
    reported_tokens = call.usage.output_tokens if call.usage is not None else 0
    return max(reported_tokens, text_tokens + thought_tokens)


def _predict_sizes(log: Log, calls: Sequence[PlannedCall], counter: TokenCounter) -> list[int]:
    """Return the predicted prompt tokens of each call, from the usage of the first."""
    usage = calls[0].usage
    size = usage.prompt_tokens if usage is not None else 0
    size = size or counter.request(calls[0].inputs, system=log.system, tools=log.tools)
    sizes = [size]
    for previous_call, call in pairwise(calls):
        size += counter.message(previous_call.answer)
        size += counter.text(previous_call.answer.get("reasoning_content") or "")
        size += counter.messages(call.inputs)
        sizes.append(size)
    return sizes
