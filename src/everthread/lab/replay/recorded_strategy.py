"""Present the recorded session as a strategy, and measure how far the prediction agrees with it."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.lab.provider.cache import CacheUse
from everthread.lab.replay.call_recorder import price_call
from everthread.lab.replay.replay_inputs import ReplayInputs
from everthread.lab.replay.result import Agreement, PlayedCall, StrategyResult, sum_costs

RECORDED_STRATEGY = "recorded"


def price_recorded_calls(inputs: ReplayInputs) -> list[PlayedCall | None]:
    """Return each call with its recorded usage and its price, or None for a call without a recorded prompt."""
    priced_calls: list[PlayedCall | None] = []
    message_count = 0
    for call in inputs.calls:
        message_count += len(call.inputs)
        usage = call.usage
        if usage is None or not usage.prompt_tokens:
            priced_calls.append(None)
        else:
            use = _make_cache_use(usage)
            costs = price_call(
                call.model,
                use,
                call.output_tokens,
                timestamp=inputs.started_at + call.sent_at,
            )
            priced_calls.append(
                PlayedCall(call.sent_at, message_count, use, call.output_tokens, *costs)
            )
        message_count += 1
    return priced_calls


def list_recorded_strategy(
    recorded_calls: Sequence[PlayedCall | None],
) -> list[StrategyResult]:
    """Return the recorded session as a strategy; an empty list if the usage of any call is unknown."""
    known_calls = [call for call in recorded_calls if call is not None]
    if len(known_calls) < len(recorded_calls):
        return []
    label = "as it was, by the log's usage"
    return [StrategyResult(RECORDED_STRATEGY, label, known_calls)]


def _make_cache_use(usage: CanonicalUsage) -> CacheUse:
    """Return a recorded usage in the form of the simulated cache."""
    hour_tokens = min(usage.cache_write_1h_tokens, usage.cache_write_tokens)
    return CacheUse(
        usage.prompt_tokens,
        usage.cache_read_tokens,
        write_5m=usage.cache_write_tokens - hour_tokens,
        write_1h=hour_tokens,
    )


def measure_agreement(
    predicted_calls: Sequence[PlayedCall],
    recorded_calls: Sequence[PlayedCall | None],
    call_count: int,
) -> Agreement | None:
    """Compare the first `call_count` predicted calls with the recorded ones, or None if there is nothing to compare."""
    compared_predictions = []
    compared_records = []
    for predicted_call, recorded_call in zip(
        predicted_calls[:call_count], recorded_calls[:call_count], strict=False
    ):
        if recorded_call is not None:
            compared_predictions.append(predicted_call)
            compared_records.append(recorded_call)
    prompt_recorded = sum(call.use.prompt for call in compared_records)
    if not prompt_recorded:
        return None
    return Agreement(
        len(compared_records),
        prompt_predicted=sum(call.use.prompt for call in compared_predictions),
        prompt_recorded=prompt_recorded,
        input_predicted=_sum_input_costs(compared_predictions),
        input_recorded=_sum_input_costs(compared_records),
    )


def _sum_input_costs(calls: Sequence[PlayedCall]) -> float | None:
    cost = sum_costs(call.input_cost for call in calls)
    return None if cost is None else float(cost)
