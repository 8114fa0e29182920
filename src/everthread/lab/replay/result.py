"""The results of a replay, as values and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from everthread.lab.provider.cache import CacheUse

Cause = str
"""Why a call read less from the cache than the previous call had left there."""
FIRST_CAUSE = "first call"
EXPIRED_CAUSE = "cache expired"
COMPACTION_CAUSE = "compaction"
TOOLS_CAUSE = "tools changed"
MODEL_CAUSE = "model changed"
SYSTEM_CAUSE = "system prompt changed"
SHORT_CAUSE = "prompt too short to be cached"
TRUNCATION_CAUSE = "oldest messages dropped"
CHANGED_CAUSE = "prompt changed"


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """One call as the provider would have answered it."""

    at: float
    messages: int
    use: CacheUse
    output: int
    input_cost: Decimal | None
    """Dollars for the prompt; None if a price is unknown."""
    output_cost: Decimal | None
    miss: Cause = ""
    missed: int = 0
    """Tokens that the previous call had left in the cache and this one did not read."""

    @property
    def cost(self) -> Decimal | None:
        return (
            None
            if self.input_cost is None or self.output_cost is None
            else self.input_cost + self.output_cost
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the prediction without compaction agrees with the record, up to the client's first own compaction."""

    calls: int
    prompt_predicted: int
    prompt_recorded: int
    input_predicted: float | None
    """Dollars for the prompts; None if a price is unknown."""
    input_recorded: float | None

    @property
    def prompt_error(self) -> float:
        """The share by which the predicted prompt tokens are too many (or, negative, too few)."""
        return self.prompt_predicted / self.prompt_recorded - 1

    @property
    def input_error(self) -> float | None:
        """The same for the dollars of the prompts."""
        if self.input_predicted is None or not self.input_recorded:
            return None
        return self.input_predicted / self.input_recorded - 1


@dataclass(frozen=True, slots=True)
class PlayedCompaction:
    """One compaction, before the call with this index."""

    call: int
    reason: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    author: str
    seconds: float
    summary: str = ""


@dataclass(frozen=True, slots=True)
class FactCounts:
    """The facts of the conversation by kind: how many are in the context at its end, found by recall, lost."""

    named: Sequence[tuple[str, str, int]] = ()
    """Each fact: its kind, its words, and its place: 0 retained, 1 recoverable, 2 lost."""

    @property
    def kinds(self) -> dict[str, tuple[int, int, int]]:
        """Retained, recoverable, lost."""
        counts = Counter((kind, place) for kind, _, place in self.named)
        names = dict.fromkeys(kind for kind, _, _ in self.named)
        return {
            kind: (counts[kind, 0], counts[kind, 1], counts[kind, 2]) for kind in names
        }

    @property
    def retained(self) -> int:
        return self._count(0)

    @property
    def recoverable(self) -> int:
        return self._count(1)

    @property
    def lost(self) -> int:
        return self._count(2)

    def _count(self, place: int) -> int:
        return sum(fact[2] == place for fact in self.named)

    @property
    def total(self) -> int:
        return len(self.named)


@dataclass(frozen=True, slots=True)
class ReplayWay:
    """One way of holding the conversation: Everthread, or a baseline."""

    name: str
    what: str
    calls: Sequence[PlayedCall]
    refused: int | None = None
    """The call that the provider refused for its size, which ended the conversation."""
    facts: FactCounts | None = None

    @property
    def peak(self) -> int:
        return max((call.use.prompt for call in self.calls), default=0)

    @property
    def mean(self) -> float:
        return (
            sum(call.use.prompt for call in self.calls) / len(self.calls)
            if self.calls
            else 0.0
        )

    @property
    def read(self) -> int:
        return sum(call.use.read for call in self.calls)

    @property
    def written(self) -> int:
        return sum(call.use.write for call in self.calls)

    @property
    def uncached(self) -> int:
        return sum(call.use.input for call in self.calls)

    @property
    def misses(self) -> Counter[Cause]:
        return Counter(call.miss for call in self.calls if call.miss)

    @property
    def input_cost(self) -> Decimal | None:
        return total(call.input_cost for call in self.calls)

    @property
    def cost(self) -> Decimal | None:
        return total(call.cost for call in self.calls)

    def cost_of_first(self, calls: int) -> Decimal | None:
        """Dollars of the first calls, to compare with a way that ended earlier."""
        return total(call.cost for call in self.calls[:calls])


@dataclass(frozen=True, slots=True)
class LogFigures:
    """Facts about a recorded session."""

    client: str
    """The program that wrote the log, in words: `Claude Code`."""
    began: float | None
    """Seconds since 1970; None if the log has no times."""
    ended: float | None
    own_compactions: int
    """Compactions that the client made itself."""
    has_readable_summaries: bool = True
    """Whether the summary of any of them can be read."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed conversation; `ways[0]` is Everthread."""

    source: str
    model: str
    window: int
    threshold: int
    timed: str
    """The source of the times: `given`, `log`, `usage` or `assumed`."""
    ways: Sequence[ReplayWay]
    compactions: Sequence[PlayedCompaction]
    engine: str = "compressor"
    notes: Sequence[str] = ()
    recorded_cost: float | None = None
    """The dollars in the log, if it has those of every call."""
    seconds: float = 0.0
    log: LogFigures | None = None
    """Facts about the recorded session, if it was a log."""
    agreement: Agreement | None = None
    """None if the log states no usage."""

    @property
    def ours(self) -> ReplayWay:
        return self.ways[0]

    def way(self, name: str) -> ReplayWay:
        return next(way for way in self.ways if way.name == name)

    def has_way(self, name: str) -> bool:
        return any(way.name == name for way in self.ways)

    def shared_calls(self, way: ReplayWay) -> int:
        """Return the number of calls that our way and another both answered."""
        return min(len(way.calls), len(self.ours.calls))

    def saved(self, way: ReplayWay) -> float | None:
        """Return the share of the dollars that our way saves over the shared calls; None if a price is unknown."""
        count = self.shared_calls(way)
        ours = self.ours.cost_of_first(count)
        theirs = way.cost_of_first(count)
        return None if ours is None or not theirs else float(1 - ours / theirs)

    def caching_saves(self) -> float | None:
        """The share of the input's dollars that the cache alone saves, without compaction."""
        with_cache = self.way("cached").input_cost
        without = self.way("uncached").input_cost
        return (
            None
            if with_cache is None or not without
            else float(1 - with_cache / without)
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        names = ("source", "model", "window", "threshold", "engine", "recorded_cost")
        return {name: getattr(self, name) for name in names} | {
            "times": self.timed,
            "notes": list(self.notes),
            "caching_saves_of_input": _round_share(self.caching_saves()),
            "seconds": round(self.seconds, 3),
            "log": None if self.log is None else asdict(self.log),
            "agreement": None
            if self.agreement is None
            else _agreement_as_dict(self.agreement),
            "compactions": [asdict(compaction) for compaction in self.compactions],
            "ways": [_way_as_dict(self, way) for way in self.ways],
        }


def _agreement_as_dict(agreement: Agreement) -> dict[str, Any]:
    errors = {
        "prompt_error": agreement.prompt_error,
        "input_error": agreement.input_error,
    }
    return asdict(agreement) | {
        name: _round_share(error) for name, error in errors.items()
    }


def total(costs: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum; None if one is unknown."""
    amount = Decimal(0)
    for cost in costs:
        if cost is None:
            return None
        amount += cost
    return amount


def _way_as_dict(replay: Replay, way: ReplayWay) -> dict[str, Any]:
    names = ("name", "what", "peak", "read", "written", "uncached")
    return {name: getattr(way, name) for name in names} | {
        "answered": len(way.calls),
        "refused_at": way.refused,
        "mean": round(way.mean),
        "misses": dict(way.misses),
        "cost": _round_dollars(way.cost),
        "input_cost": _round_dollars(way.input_cost),
        "we_save": None if way is replay.ours else _round_share(replay.saved(way)),
        "facts": None if way.facts is None else _fact_figures(way.facts),
        "calls": [_call_as_dict(call) for call in way.calls],
    }


def _fact_figures(facts: FactCounts) -> dict[str, Any]:
    places = ("retained", "recoverable", "lost")
    kinds = {
        kind: dict(zip(places, counts, strict=True))
        for kind, counts in facts.kinds.items()
    }
    return {place: getattr(facts, place) for place in places} | {"kinds": kinds}


def _call_as_dict(call: PlayedCall) -> dict[str, Any]:
    return {
        "at": round(call.at, 3),
        "messages": call.messages,
        "prompt": call.use.prompt,
        "read": call.use.read,
        "written": call.use.write,
        "uncached": call.use.input,
        "output": call.output,
        "cost": _round_dollars(call.cost),
        "miss": call.miss,
        "missed": call.missed,
    }


def _round_dollars(cost: Decimal | None) -> float | None:
    return None if cost is None else round(float(cost), 8)


def _round_share(part: float | None) -> float | None:
    return None if part is None else round(part, 4)
