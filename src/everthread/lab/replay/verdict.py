"""Describe a replay in five sentences.

They cover the session, its cost, the client's own compactions, Everthread's, and the agreement with the record.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from everthread.core.costs.prices import format_dollars
from everthread.core.text import count_noun
from everthread.lab.importers.log import CLIENT_NAMES
from everthread.lab.replay.baselines import CACHED_STRATEGY
from everthread.lab.replay.recorded_strategy import RECORDED_STRATEGY
from everthread.lab.replay.result import FactCounts, Replay, StrategyResult
from everthread.lab.summary_comparison import Comparison, describe

MAX_PROMPT_OVERESTIMATE = 0.25
"""A prediction that is too large by more than this share was made for other prompts."""
MAX_READ_SHARE_OF_MISS = 0.5
"""A call that read less than this share of its prompt missed the cache."""


def describe_replay(replay: Replay, comparison: Comparison | None = None) -> list[str]:
    """Describe a replay in up to five sentences.

    `comparison` compares the client's own compactions with Everthread's, if the client made any.
    """
    lines = [
        _describe_session(replay),
        _describe_cost(replay),
        _describe_own_compactions(replay, comparison),
        _describe_everthread(replay),
        _describe_agreement(replay),
    ]
    return [line for line in lines if line]


def _describe_session(replay: Replay) -> str:
    client = replay.log.client if replay.log is not None else "A conversation"
    calls_text = count_noun(len(replay.everthread.calls), "call")
    peak_tokens = _find_reference(replay).peak
    size_text = f"the largest prompt had {peak_tokens:,} of {replay.window:,} tokens"
    return f"{client}, {replay.model}: {calls_text}{_describe_time(replay)}; {size_text}."


def _find_reference(replay: Replay) -> StrategyResult:
    """Return the recorded session if the log states its usage, else the simulation with caching alone."""
    if replay.has_strategy(RECORDED_STRATEGY):
        return replay.strategy(RECORDED_STRATEGY)
    return replay.strategy(CACHED_STRATEGY)


def _describe_time(replay: Replay) -> str:
    log = replay.log
    if log is None or log.began is None or log.ended is None:
        return ""
    started_at = datetime.fromtimestamp(log.began, UTC)
    return f" in {_format_duration(log.ended - log.began)}, begun {started_at:%Y-%m-%d %H:%M} UTC"


def _format_duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return count_noun(round(seconds), "second")
    if minutes < 60:
        return count_noun(minutes, "minute")
    hours = minutes // 60
    return f"{hours:,} h {minutes % 60} min" if hours < 48 else count_noun(hours // 24, "day")


def _describe_cost(replay: Replay) -> str:
    strategy = _find_reference(replay)
    if strategy.name != RECORDED_STRATEGY:
        calls_text = _describe_calls(strategy)
        return f"The log does not state its prompts; with caching, {calls_text} cost {format_dollars(strategy.cost)}."
    output_cost = None
    if strategy.cost is not None and strategy.input_cost is not None:
        output_cost = strategy.cost - strategy.input_cost
    return (
        f"It cost {format_dollars(strategy.cost)}: {format_dollars(strategy.input_cost)} for input "
        f"and {format_dollars(output_cost)} for output; {_describe_misses(strategy)}."
    )


def _describe_misses(strategy: StrategyResult) -> str:
    miss_count = _count_misses(strategy)
    if not miss_count:
        return "every call found at least half of its prompt in the cache"
    calls_text = count_noun(miss_count, "call")
    return f"{calls_text} found less than half of the prompt in the cache"


def _describe_calls(strategy: StrategyResult) -> str:
    calls_text = count_noun(len(strategy.calls), "call")
    return calls_text if strategy.refused_call is None else f"the {calls_text} that fit the window"


def _count_misses(strategy: StrategyResult) -> int:
    """Return the number of calls, after the first, that read less than half of their prompt from the cache."""
    return sum(
        call.use.read < MAX_READ_SHARE_OF_MISS * call.use.prompt for call in strategy.calls[1:]
    )


def _describe_own_compactions(replay: Replay, comparison: Comparison | None) -> str:
    if replay.log is None:
        return ""
    client = replay.log.client
    compaction_count = replay.log.own_compactions
    if not compaction_count:
        return f"{client} did not compact it."
    times_text = _format_times(compaction_count)
    if not replay.log.has_readable_summaries:
        problem = "encrypted" if client == CLIENT_NAMES["codex"] else "not in the log"
        return f"{client} compacted it {times_text}; what it kept cannot be read, for its summary is {problem}."
    if comparison is not None and comparison.compactions:
        return describe([comparison])
    return f"{client} compacted it {times_text}; too little came before or after to measure what was lost."


def _format_times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _describe_everthread(replay: Replay) -> str:
    everthread = replay.everthread
    if replay.compactions:
        first_call = replay.compactions[0].call + 1
        times_text = _format_times(len(replay.compactions))
        peak_text = f"prompts of at most {everthread.peak:,} tokens"
        compaction_text = f"would have compacted it {times_text}, first before call {first_call:,}, with {peak_text}"
    else:
        compaction_text = (
            f"would not have compacted it: no prompt reaches {replay.threshold:,} tokens"
        )
    facts_text = ""
    if everthread.facts is not None and everthread.facts.total and replay.compactions:
        facts_text = f" {_describe_facts(everthread.facts)}"
    return f"Everthread {compaction_text}; {_describe_saving(replay)}.{facts_text}"


def _describe_facts(facts: FactCounts) -> str:
    recall_text = ""
    if facts.recoverable:
        recall_text = f"; a search finds another {facts.recoverable / facts.total:.0%}"
    if facts.lost:
        recall_text += f", and {facts.lost:,} of {facts.total:,} are lost"
    return (
        f"At the end {facts.retained / facts.total:.0%} of all messages of the user, files, commands, errors and "
        f"ids are in the context{recall_text}."
    )


def _describe_saving(replay: Replay) -> str:
    """Compare the dollars with the recorded dollars, or with caching alone, over the calls that both answered."""
    other = _find_reference(replay)
    shared_count = replay.count_shared_calls(other)
    our_cost = replay.everthread.cost_of_first(shared_count)
    other_cost = other.cost_of_first(shared_count)
    if our_cost is None or other_cost is None:
        return "what that costs is unknown: the model has no price in the table"
    reference_text = "as recorded" if other.name == RECORDED_STRATEGY else "with caching alone"
    calls_text = ""
    if shared_count < max(len(replay.everthread.calls), len(other.calls)):
        calls_text = f" for the first {shared_count:,} calls"
    difference_text = _describe_difference(our_cost, other_cost)
    return f"{format_dollars(our_cost)}{calls_text}, {difference_text} {format_dollars(other_cost)} {reference_text}"


def _describe_difference(our_cost: Decimal, other_cost: Decimal) -> str:
    if not other_cost:
        return "against"
    share = float(1 - our_cost / other_cost)
    return f"{abs(share):.0%} {'less' if share >= 0 else 'more'} than"


def _describe_agreement(replay: Replay) -> str:
    agreement = replay.agreement
    if agreement is None:
        return "Prompt sizes and the cache are simulated: the log states no usage to compare with."
    dollars_text = ""
    if agreement.input_error is not None:
        dollars_text = f" and {_describe_error(agreement.input_error)} input dollars"
    until_text = ""
    if replay.log is not None and replay.log.own_compactions:
        until_text = f" before {replay.log.client}'s own compaction"
    warning_text = ""
    if agreement.prompt_error > MAX_PROMPT_OVERESTIMATE:
        warning_text = " The recorded prompts are much smaller than the history: a gateway may have shortened them."
    return (
        f"How far to trust this: over the {count_noun(agreement.calls, 'call')}{until_text} the replay has "
        f"{_describe_error(agreement.prompt_error)} prompt tokens{dollars_text} than the record.{warning_text}"
    )


def _describe_error(error: float) -> str:
    return f"{abs(error):.1%} {'fewer' if error < 0 else 'more'}"
