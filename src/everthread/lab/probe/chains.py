"""Canaries over a chain of compactions: in the context, found by recall, or lost; and whether what is told misleads.

All canaries are said before the first compaction, each at its depth of that first stretch; every further compaction
comes after as much work again as fills the window. So the length of a chain is how many compactions a canary went
through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everthread.conversation.options import SessionOptions
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.errors import EngineError, InputError
from everthread.factory.compaction import run_sync
from everthread.lab.probe.canaries import EACH, KINDS, Canary, canaries
from everthread.lab.probe.held import MODEL, Compacted, Held, Manner, held
from everthread.lab.probe.lines import Lines
from everthread.lab.probe.noise import work

WINDOW = 32_000
DEPTHS = (0.1, 0.5, 0.9)
LENGTHS = tuple(range(1, 11))
FIRST = 5
CONTEXT, RECALLED, LOST = "in context", "recoverable", "lost"
SHARE = 0.75
"""Canaries take at most this part of the first stretch: the rest is work."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Judged:
    """One canary after so many compactions."""

    kind: str
    depth: float
    chain: int
    where: str
    """`in context`, `recoverable` or `lost`."""
    rank: int
    """Which of recall's results has it, from 1; 0 where none has, or it is in the context."""
    misleads: bool
    """What is told, in the context or by recall, presents the wrong one as the right one."""
    recall_tokens: int
    """What recall's results cost; 0 where it is in the context."""


@dataclass(frozen=True, slots=True)
class Chains:
    """One engine's canaries."""

    engine: str
    window: int
    threshold: int
    depths: tuple[float, ...]
    lengths: tuple[int, ...]
    first: int
    judged: Sequence[Judged]
    compactions: Sequence[Compacted]
    notes: Sequence[str] = ()
    seconds: float = 0.0

    def of(self, *, kind: str | None = None, chain: int | None = None, depth: float | None = None) -> list[Judged]:
        wanted = ((kind, "kind"), (chain, "chain"), (depth, "depth"))
        return [
            one for one in self.judged if all(value is None or getattr(one, name) == value for value, name in wanted)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "engine": self.engine,
            "window": self.window,
            "threshold": self.threshold,
            "first": self.first,
            "compactions": [asdict(made) for made in self.compactions],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "chains": {str(chain): tally(self.of(chain=chain)) for chain in self.lengths},
            "kinds": {
                kind: {str(chain): tally(self.of(kind=kind, chain=chain)) for chain in self.lengths} for kind in KINDS
            },
            "canaries": [asdict(one) for one in self.judged],
        }


def tally(judged: Iterable[Judged]) -> dict[str, int]:
    """How many are where, and how many mislead."""
    found = list(judged)
    counts = {where: sum(one.where == where for one in found) for where in (CONTEXT, RECALLED, LOST)}
    return {**counts, "misleading": sum(one.misleads for one in found)}


async def achains(  # noqa: PLR0913 - what a probe may be told, one by one
    *,
    engine: str = "compressor",
    engine_options: dict[str, Any] | None = None,
    depths: Sequence[float] = DEPTHS,
    lengths: Sequence[int] = LENGTHS,
    window: int = WINDOW,
    options: SessionOptions | None = None,
    first: int = FIRST,
    seed: int = 0,
    each: int = EACH,
    model: str = MODEL,
    progress: Progress | None = None,
) -> Chains:
    """Plant canaries, compact again and again, and look after the compactions in `lengths`."""
    started = time.perf_counter()
    manner = Manner(window, engine, dict(engine_options or {}), model=model)
    manner = manner if options is None else Manner(window, engine, manner.engine_options, options, model)
    planted = canaries(depths, seed=seed, each=each)
    asked, judged = tuple(sorted(set(lengths))), []
    async with held(manner, clock=time.time) as now:
        threshold = now.conversation.threshold
        turns = work(seed)

        def beat() -> None:
            if progress is not None:
                progress(len(now.compactions), max(asked))

        for turn in _first_stretch(planted, threshold, now.counter, turns):
            await now.add(turn)
            beat()
        for length in range(1, max(asked) + 1):
            if not await _compacted(now, turns, beat):
                break
            if length in asked:
                judged += await _judge(now, planted, length, first)
        reached = tuple(length for length in asked if length <= len(now.compactions))
        if not reached:
            raise EngineError(f"{engine}: the chain ends after {len(now.compactions)} compactions; {now.notes[-1]}")
        return Chains(
            engine, window, threshold, tuple(depths), reached, first, judged, now.compactions, now.notes,
            time.perf_counter() - started,
        )  # fmt: skip


def chains(**how: Any) -> Chains:
    """Like `achains`, from a script or from inside a running event loop."""
    return run_sync(achains(**how))


def _first_stretch(
    planted: Sequence[Canary], threshold: int, counter: TokenCounter, work_turns: Iterable[list[Message]]
) -> list[Sequence[Message]]:
    """Work as much as fills the window, with the canaries at their depths; what replaces a decision comes later."""
    placed = [(one.depth + (1 - one.depth) / 2 * part, turn) for one in planted for part, turn in enumerate(one.turns)]
    placed.sort(key=lambda pair: pair[0])
    size = sum(counter.message(message) for _, turn in placed for message in turn)
    if size > SHARE * threshold:
        raise InputError(
            f"the canaries alone take {size:,} tokens, more than {SHARE:.0%} of the {threshold:,} from which on is "
            "compacted; use a larger window, or fewer depths"
        )
    stretch: list[Sequence[Message]] = []
    left, grown = threshold - size, 0
    for turn in work_turns:
        while placed and placed[0][0] * left <= grown:
            stretch.append(placed.pop(0)[1])
        if grown >= left:
            break
        stretch.append(turn)
        grown += sum(map(counter.message, turn))
    return [*stretch, *(turn for _, turn in placed)]


async def _compacted(now: Held, turns: Iterable[list[Message]], beat: Callable[[], None]) -> bool:
    """Work until the window is full, then a compaction; whether there was anything to compact."""
    filled = iter(turns)
    while not now.full:
        await now.add(next(filled))
        beat()
    done = await now.compact()
    beat()
    return done


async def _judge(now: Held, planted: Sequence[Canary], length: int, first: int) -> list[Judged]:
    view = Lines.of(await now.view())
    found = []
    for one in planted:
        misleads = one.misleads(view)
        if one.known(view):
            found.append(Judged(one.kind, one.depth, length, CONTEXT, 0, misleads, 0))
            continue
        passages = await now.recall(one.question, first)
        ranks = [rank for rank in range(1, len(passages) + 1) if one.known(_texts(passages[:rank]))]
        cost = sum(now.counter.text(passage.text) for passage in passages)
        # What recall tells comes on top of what is in view.
        misled = one.misleads(_texts(passages)) if not ranks else False
        where = RECALLED if ranks else LOST
        found.append(Judged(one.kind, one.depth, length, where, min(ranks, default=0), misleads or misled, cost))
    return found


def _texts(passages: Sequence[Any]) -> Lines:
    ordered = sorted(passages, key=lambda passage: (passage.created, passage.message or 0))
    return Lines.of_texts(passage.text for passage in ordered)
