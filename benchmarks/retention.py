"""What a conversation still knows after it was compacted, at the same size as other ways of making it smaller.

`python -m benchmarks.retention [KIND]`: the table; with a kind (`error`, `decision`) also every fact of it we lost.
Shares are over all conversations, after 1, 3 and 10 compactions in a row, each made when the history had grown to its
threshold. All contenders compact at the same moments, to at most the size of our result:

- head + tail: the first exchange and the end;
- text-rank: the same, and between them a text-rank extract as long as our summary;
- LangChain: SummarizationMiddleware as it comes, which shows its summariser the last 4,000 tokens of what it drops; and
  untrimmed. Its summariser, there being no model, is a text-rank extract as long as our summary;
- trim_messages: LangChain's, the end from a user message on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor

from benchmarks.peers import Peer, langchain_missing
from benchmarks.retained.conversations import REAL, conversations
from benchmarks.retained.fabrications import Marked, measure
from benchmarks.retained.race import DEPTHS, OURS, Score, race
from benchmarks.retained.truth import COMMAND, ERROR, FILE, ID, REQUEST
from benchmarks.table import Row, absent, markdown

WINDOWS = {32_000: 3, 200_000: 1}
"""In how many orders the facts are planted."""
KINDS = {
    REQUEST: "latest request",
    "rule": "rules",
    "decision": "decisions",
    "superseded": "decisions taken back",
    "names": "near-identical names",
    "number": "numbers in log lines",
    ERROR: "errors of the last third",
    FILE: "files touched",
    COMMAND: "commands",
    ID: "ids in calls",
}
GOALS = {REQUEST: 1.0, "rule": 1.0, FILE: 0.95, ERROR: 0.90}
MARKED, WRONGLY = 0.90, 0.02

Scores = dict[int, Score]
"""By how many compactions there were."""


def run() -> list[Row]:
    return _rows(print_lost="")


def _rows(print_lost: str) -> list[Row]:
    here = conversations()
    rows = [absent(f"{name} conversations") for name in REAL if name not in [found.name for found in here]]
    missing = langchain_missing()
    if missing:
        rows.append(Row("LangChain", f"absent: {missing}"))
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        races = {
            window: [
                pool.submit(_race, window, place, order, with_peer=not missing)
                for place in range(len(here))
                for order in range(orders)
            ]
            for window, orders in WINDOWS.items()
        }
        marks = _marks(pool, len(here))
        for window, found in races.items():
            scores = [race.result() for race in found]
            joined = {depth: Score.joined(score[depth] for score in scores) for depth in DEPTHS}
            rows += _table(window, joined)
            _print_lost(print_lost, window, joined)
    return rows + marks


def _race(window: int, place: int, order: int, *, with_peer: bool) -> Scores:
    scores = {depth: Score() for depth in DEPTHS}
    peer = Peer("langchain") if with_peer else None
    race(window, peer, conversations(order)[place], scores)
    if peer:
        peer.close()
    return scores


def _table(window: int, scores: Scores) -> list[Row]:
    rows = [_row(window, kind, label, scores) for kind, label in KINDS.items() if scores[DEPTHS[-1]].total[kind]]
    sizes = {name: max(score.sizes[name] for score in scores.values()) for name in scores[DEPTHS[0]].kept}
    largest = max(sizes, key=lambda name: sizes[name] * (name != OURS))
    figure = f"{sizes[largest]:.2f} ({largest}), ours being 1"
    return [*rows, Row(f"{window // 1000}K: largest context of another", figure, "≤ 1", sizes[largest] <= 1)]


def _row(window: int, kind: str, label: str, scores: Scores) -> Row:
    depths = [depth for depth in DEPTHS if scores[depth].total[kind]]
    shares = {name: [scores[depth].share(name, kind) for depth in depths] for name in scores[DEPTHS[0]].kept}
    figures = "; ".join(f"{name} {_percent(found)}" for name, found in shares.items())
    total = "/".join(str(scores[depth].total[kind]) for depth in depths)
    goal = f"{GOALS[kind]:.0%}, ahead" if kind in GOALS else "ahead"
    met = min(shares[OURS]) >= GOALS.get(kind, 0.0) and _ahead(shares)
    after = "/".join(map(str, depths))
    return Row(f"{window // 1000}K: {label} (of {total}) after {after}", figures, goal, met)


def _percent(shares: Iterable[float]) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares) + " %"


def _ahead(shares: dict[str, list[float]]) -> bool:
    """Nowhere behind another, and in all ahead of it, unless there is nothing to be had."""
    ours = shares[OURS]
    others = [found for name, found in shares.items() if name != OURS]
    behind = any(mine < theirs for found in others for mine, theirs in zip(ours, found, strict=True))
    return not behind and (min(ours) == 1 or all(sum(ours) > sum(found) for found in others))


def _marks(pool: Executor, count: int) -> list[Row]:
    """Whether inventions are marked in the summary they come up in, and when they are told again in the next."""
    rows = []
    for again, when in ((False, "in a summary"), (True, "told again in the next")):
        found = [work.result() for work in [pool.submit(_measured, place, again=again) for place in range(count)]]
        marked = _pooled(found, invented=True)
        wrongly = _pooled(found, invented=False)
        rows.append(Row(f"inventions marked, {when}", f"{marked:.1%}", f"≥ {MARKED:.0%}", marked >= MARKED))
        rows.append(Row(f"true names marked, {when}", f"{wrongly:.1%}", f"≤ {WRONGLY:.0%}", wrongly <= WRONGLY))
    return rows


def _measured(place: int, *, again: bool) -> Marked:
    return measure(conversations()[place], again=again)


def _pooled(found: Iterable[Marked], *, invented: bool) -> float:
    chosen = [mark for marked in found for mark in marked.of(invented=invented)]
    return sum(chosen) / len(chosen)


def _print_lost(kind: str, window: int, scores: Scores) -> None:
    for depth, score in scores.items():
        for name, contender, fact in score.lost:
            if kind == fact.kind and contender == OURS:
                print(f"{window // 1000}K, {depth} compactions, {name}: {fact.needles} {fact.old or ''}")


if __name__ == "__main__":
    print(markdown("retention", _rows(print_lost=" ".join(sys.argv[1:]))))
