"""A replay in five sentences: length, cost, losses of the client's own compactions, Everthread's way, agreement."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from everthread.core.messages import count_noun
from everthread.core.prices import format_dollars
from everthread.lab.hand_offs import Comparison, describe
from everthread.lab.importers.log import CLIENT_NAMES
from everthread.lab.replay.baselines import CACHED, RECORDED
from everthread.lab.replay.result import Replay, ReplayWay

MAX_PROMPT_ERROR = 0.25
"""A prediction that is larger by more than this was not of the same prompts."""
MIN_MISSED_SHARE = 0.5
"""A call that read less than this part of the previous prompt missed the cache."""


def write_verdict(replay: Replay, comparison: Comparison | None = None) -> list[str]:
    """Return the sentences. `comparison`: of the client's own compactions with Everthread's, if it made any."""
    lines = [
        _describe_session(replay),
        _describe_cost(replay),
        _describe_own(replay, comparison),
        _describe_ours(replay),
        _describe_agreement(replay),
    ]
    return [line for line in lines if line]


def _describe_session(replay: Replay) -> str:
    client = replay.log.client if replay.log is not None else "A conversation"
    calls = count_noun(len(replay.ours.calls), "call")
    largest = (
        replay.way(RECORDED).peak
        if replay.has_way(RECORDED)
        else replay.way(CACHED).peak
    )
    size = f"the largest prompt had {largest:,} of {replay.window:,} tokens"
    return f"{client}, {replay.model}: {calls}{_describe_time(replay)}; {size}."


def _describe_time(replay: Replay) -> str:
    log = replay.log
    if log is None or log.began is None or log.ended is None:
        return ""
    began = datetime.fromtimestamp(log.began, UTC)
    return f" in {_format_duration(log.ended - log.began)}, begun {began:%Y-%m-%d %H:%M} UTC"


def _format_duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return count_noun(round(seconds), "second")
    if minutes < 60:
        return count_noun(minutes, "minute")
    hours = minutes // 60
    return (
        f"{hours:,} h {minutes % 60} min"
        if hours < 48
        else count_noun(hours // 24, "day")
    )


def _describe_cost(replay: Replay) -> str:
    if not replay.has_way(RECORDED):
        way = replay.way(CACHED)
        calls = _describe_calls(way)
        return f"The log does not state its prompts; with caching, {calls} cost {format_dollars(way.cost)}."
    way = replay.way(RECORDED)
    output = (
        None
        if way.cost is None or way.input_cost is None
        else way.cost - way.input_cost
    )
    return (
        f"It cost {format_dollars(way.cost)}: {format_dollars(way.input_cost)} for input and {format_dollars(output)} "
        f"for output; {_describe_misses(way)}."
    )


def _describe_misses(way: ReplayWay) -> str:
    misses = _count_misses(way)
    if not misses:
        return "every call found at least half of its prompt in the cache"
    calls = count_noun(misses, "call")
    return f"{calls} found less than half of the prompt in the cache"


def _describe_calls(way: ReplayWay) -> str:
    calls = count_noun(len(way.calls), "call")
    return calls if way.refused is None else f"the {calls} that fit the window"


def _count_misses(way: ReplayWay) -> int:
    """Return the number of calls, after the first, that read less than half of their prompt from the cache."""
    return sum(
        call.use.read < MIN_MISSED_SHARE * call.use.prompt for call in way.calls[1:]
    )


def _describe_own(replay: Replay, comparison: Comparison | None) -> str:
    if replay.log is None:
        return ""
    client = replay.log.client
    made = replay.log.own_compactions
    if not made:
        return f"{client} did not compact it."
    if not replay.log.has_readable_summaries:
        return (
            f"{client} compacted it {_times(made)}; what it kept cannot be read, for its summary is "
            f"{_describe_lack(client)}."
        )
    if comparison is not None and comparison.compactions:
        return describe([comparison])
    return f"{client} compacted it {_times(made)}; too little came before or after to measure what was lost."


def _describe_lack(client: str) -> str:
    return "encrypted" if client == CLIENT_NAMES["codex"] else "not in the log"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _describe_ours(replay: Replay) -> str:
    ours = replay.ours
    if replay.compactions:
        first = replay.compactions[0].call + 1
        times = _times(len(replay.compactions))
        peak = f"prompts of at most {ours.peak:,} tokens"
        done = (
            f"would have compacted it {times}, first before call {first:,}, with {peak}"
        )
    else:
        done = f"would not have compacted it: no prompt reaches {replay.threshold:,} tokens"
    facts = ours.facts
    kept = ""
    if facts is not None and facts.total and replay.compactions:
        found = (
            f"; a search finds another {facts.recoverable / facts.total:.0%}"
            if facts.recoverable
            else ""
        )
        lost = facts.total - facts.retained - facts.recoverable
        if lost:
            found += f", and {lost:,} of {facts.total:,} are lost"
        kept = (
            f" At the end {facts.retained / facts.total:.0%} of all messages of the user, files, commands, errors and "
            f"ids are in the context{found}."
        )
    return f"Everthread {done}; {_describe_saving(replay)}.{kept}"


def _describe_saving(replay: Replay) -> str:
    """Compare the dollars with those of the record, or with caching alone, over the calls that both answered."""
    way = replay.way(RECORDED) if replay.has_way(RECORDED) else replay.way(CACHED)
    count = replay.shared_calls(way)
    ours = replay.ours.cost_of_first(count)
    theirs = way.cost_of_first(count)
    if ours is None or theirs is None:
        return "what that costs is unknown: the model has no price in the table"
    base = "as recorded" if way.name == RECORDED else "with caching alone"
    calls = (
        ""
        if count == len(replay.ours.calls) == len(way.calls)
        else f" for the first {count:,} calls"
    )
    return f"{format_dollars(ours)}{calls}, {_describe_difference(ours, theirs)} {format_dollars(theirs)} {base}"


def _describe_difference(ours: Decimal, theirs: Decimal) -> str:
    if not theirs:
        return "against"
    share = float(1 - ours / theirs)
    return f"{abs(share):.0%} {'less' if share >= 0 else 'more'} than"


def _describe_agreement(replay: Replay) -> str:
    agreement = replay.agreement
    if agreement is None:
        return "Prompt sizes and the cache are simulated: the log states no usage to compare with."
    dollars = (
        ""
        if agreement.input_error is None
        else f" and {_describe_error(agreement.input_error)} input dollars"
    )
    until = (
        f" before {replay.log.client}'s own compaction"
        if replay.log is not None and replay.log.own_compactions
        else ""
    )
    managed = (
        " The recorded prompts are much smaller than the history: a gateway may have shortened them."
        if agreement.prompt_error > MAX_PROMPT_ERROR
        else ""
    )
    return (
        f"How far to trust this: over the {count_noun(agreement.calls, 'call')}{until} the replay has "
        f"{_describe_error(agreement.prompt_error)} prompt tokens{dollars} than the record.{managed}"
    )


def _describe_error(error: float) -> str:
    return f"{abs(error):.1%} {'fewer' if error < 0 else 'more'}"
