"""What a conversation still knows after it was compacted, at the same size as other ways of making it smaller.

`python -m benchmarks.retention [KIND]`: the table; with a kind (`error`, `decision`) also every fact of it we lost.
Shares are over all conversations, after 1, 3 and 10 compactions in a row, each made when the history had grown to its
threshold. All contenders compact at the same moments, to at most the size of our result:

- head + tail: the first exchange and the end;
- text-rank: the same, and between them a text-rank extract as long as our summary;
- LangChain: SummarizationMiddleware as it comes, which shows its summariser the last 4,000 tokens of what it drops; and
  untrimmed. Its summariser, there being no model, is a text-rank extract as long as our summary;
- Pydantic AI harness: its SummarizingCompaction as it comes, and with keep_user_messages.
- Hermes Agent: its ContextCompressor, with the tail that fits.
- Headroom: its `compress`; it drops no message, so what does not fit afterwards goes from the middle.
- trim_messages: LangChain's, the end from a user message on.

The facts of these tables were there while the code was written: they are tuned to. The rows that begin with "labels"
are not: 403 statements, facts and findings labelled by hand in real recordings (`retained/labels.py`), which are
divided into a half that was seen and one that was kept aside. They are measured after 1, 5 and 10 compactions, and at
the end each one that is no longer in the context is asked for with one obvious question to the search of the store.
One of the two chats kept aside (`conv-30`) is among the dialogues on which recall's constants were chosen, and the
three facts kept aside that search missed were looked at when it was changed to find two of them: that row is no
longer blind.

"Findings of the agent" are 112 conclusions (causes, figures, commits, files, decisions) labelled by hand in nine logs
of agents before the journal was changed to keep more of them. Each log is one thread, compacted whenever it reaches
the threshold, and what is in the context at its end counts. The misses of one half were looked at while building.

The journal tells what was done and how it ended; figures inside output and single commands give
way first and are left to search, so that in those rows ours falls behind or fades.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor

from benchmarks.peers import SUMMARISERS, absent_peers, present_peers
from benchmarks.retained.conversations import REAL, conversations
from benchmarks.retained.fabrications import Marked, is_refused, measure
from benchmarks.retained.labelled import DEPTHS as LABEL_DEPTHS
from benchmarks.retained.labelled import Outcome, SessionEnd, measure_session
from benchmarks.retained.labelled import measure as measure_labels
from benchmarks.retained.labels import MECHANICAL, USER, Label
from benchmarks.retained.race import DEPTHS, OURS, Score, race
from benchmarks.retained.recordings import ASIDE, LOGS, SEEN, THREADS
from benchmarks.retained.truth import COMMAND, ERROR, FILE, ID, REQUEST
from benchmarks.shared import shared
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
MARKED = 0.90
WRONGLY = 0.02
LABEL_WINDOWS = (32_000, 64_000, 128_000, 200_000)
LABEL_GROUPS = {
    USER: ("what the user said", 0.95),
    MECHANICAL: ("files, commands, errors, figures", 0.97),
}
"""With the share that must be in the context or found."""
FINDING_GOALS = {32_000: 0.6, 64_000: 0.7, 128_000: 0.85, 200_000: 0.9}
"""The share of the agent's findings that must be in the context at the end of a session, by window."""

Scores = dict[int, Score]
"""By how many compactions there were."""


def run() -> list[Row]:
    return _rows(print_lost="")


def _rows(print_lost: str) -> list[Row]:
    here = conversations()
    rows = [
        absent(f"{name} conversations")
        for name in REAL
        if name not in [found.name for found in here]
    ]
    rows += [
        Row(SUMMARISERS[name], f"absent: {why}") for name, why in absent_peers().items()
    ]
    peers = present_peers()
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        races = {
            window: [
                pool.submit(_race, window, place, order, peers)
                for place in range(len(here))
                for order in range(orders)
            ]
            for window, orders in WINDOWS.items()
        }
        labelled = _labelled(pool, peers)
        ended = _sessions(pool, peers)
        marks = _marks(pool, len(here))
        for window, found in races.items():
            scores = [race.result() for race in found]
            joined = {
                depth: Score.joined(score[depth] for score in scores)
                for depth in DEPTHS
            }
            rows += _table(window, joined)
            _print_lost(print_lost, window, joined)
        rows += _label_rows({key: work.result() for key, work in labelled.items()})
        rows += _finding_rows(ended)
    return rows + marks


def _race(window: int, place: int, order: int, peers: Collection[str]) -> Scores:
    scores = {depth: Score() for depth in DEPTHS}
    race(window, peers, conversations(order)[place], scores)
    return scores


def _table(window: int, scores: Scores) -> list[Row]:
    rows = [
        _row(window, kind, label, scores)
        for kind, label in KINDS.items()
        if scores[DEPTHS[-1]].total[kind]
    ]
    sizes = {
        name: max(score.sizes[name] for score in scores.values())
        for name in scores[DEPTHS[0]].kept
    }
    largest = max(sizes, key=lambda name: sizes[name] * (name != OURS))
    figure = f"{sizes[largest]:.2f} ({largest}), ours being 1"
    return [
        *rows,
        Row(
            f"{window // 1000}K: largest context of another",
            figure,
            "≤ 1",
            sizes[largest] <= 1,
        ),
    ]


def _row(window: int, kind: str, label: str, scores: Scores) -> Row:
    depths = [depth for depth in DEPTHS if scores[depth].total[kind]]
    shares = {
        name: [scores[depth].share(name, kind) for depth in depths]
        for name in scores[DEPTHS[0]].kept
    }
    figures = "; ".join(f"{name} {_percent(found)}" for name, found in shares.items())
    total = "/".join(str(scores[depth].total[kind]) for depth in depths)
    goal = f"{GOALS[kind]:.0%}, ahead" if kind in GOALS else "ahead"
    met = min(shares[OURS]) >= GOALS.get(kind, 0.0) and _ahead(shares)
    after = "/".join(map(str, depths))
    return Row(
        f"{window // 1000}K: {label} (of {total}) after {after}", figures, goal, met
    )


def _percent(shares: Iterable[float]) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares) + " %"


def _ahead(shares: dict[str, list[float]]) -> bool:
    """Nowhere behind another, and in all ahead of it, unless there is nothing to be had."""
    ours = shares[OURS]
    others = [found for name, found in shares.items() if name != OURS]
    behind = any(
        mine < theirs
        for found in others
        for mine, theirs in zip(ours, found, strict=True)
    )
    return not behind and (
        min(ours) == 1 or all(sum(ours) > sum(found) for found in others)
    )


def _labelled(
    pool: Executor, peers: Collection[str]
) -> dict[tuple[int, str, str], Future[Outcome]]:
    """By window, half and kind."""
    if shared("transcripts") is None:
        return {}
    return {
        (window, half, kind): pool.submit(measure_labels, kind, half, window, peers)
        for window in LABEL_WINDOWS
        for kind, half in THREADS
    }


def _sessions(
    pool: Executor, peers: Collection[str]
) -> dict[tuple[int, str], list[Future[SessionEnd]]]:
    """By window and half."""
    if shared("logs") is None:
        return {}
    return {
        (window, half): [
            pool.submit(measure_session, name, window, peers) for name in names
        ]
        for window in LABEL_WINDOWS
        for half, names in LOGS.items()
    }


def _finding_rows(
    sessions: Mapping[tuple[int, str], list[Future[SessionEnd]]],
) -> Iterator[Row]:
    """The findings of the agent that are in the context when its session ends."""
    if not sessions:
        yield absent("logs with labelled findings")
    for (window, half), works in sessions.items():
        ends = [work.result() for work in works]
        total = sum(len(end.total) for end in ends)
        shares = {
            who: sum(len(end.kept[who]) for end in ends) / total for who in ends[0].kept
        }
        figures = "; ".join(f"{who} {share:.0%}" for who, share in shares.items())
        compactions = sum(end.compactions for end in ends)
        goal = FINDING_GOALS[window]
        yield Row(
            f"labels, {half}, {window // 1000}K: findings of the agent (of {total}) at the end of "
            f"{len(ends)} sessions, after {compactions} compactions",
            figures,
            f"≥ {goal:.0%}",
            shares[OURS] >= goal,
        )


def _label_rows(outcomes: Mapping[tuple[int, str, str], Outcome]) -> list[Row]:
    if not outcomes:
        return [absent("labels")]
    rows: list[Row] = []
    for window in LABEL_WINDOWS:
        for half in (SEEN, ASIDE):
            of_half = {
                kind: outcomes[at, of, kind]
                for at, of, kind in outcomes
                if (at, of) == (window, half)
            }
            for group, (name, goal) in LABEL_GROUPS.items():
                rows += _label_group(
                    f"labels, {half}, {window // 1000}K: {name}", group, goal, of_half
                )
    return rows


def _label_group(
    name: str, group: frozenset[str], goal: float, outcomes: Mapping[str, Outcome]
) -> Iterator[Row]:
    """What is kept, kind by kind and with the others beside it; then what is in the context or found by search."""
    every = list(outcomes.values())
    totals = [
        sum(_of(group, outcome.total[depth]) for outcome in every)
        for depth in LABEL_DEPTHS
    ]
    figures = [
        f"{kind} {_percent(_label_shares(OURS, group, [one]))}"
        for kind, one in outcomes.items()
    ]
    shares = {
        who: _label_shares(who, group, every) for who in every[0].kept[LABEL_DEPTHS[0]]
    }
    figures += [f"{who} in all {_percent(found)}" for who, found in shares.items()]
    what = f"{name} (of {'/'.join(map(str, totals))}) after {'/'.join(map(str, LABEL_DEPTHS))}"
    yield Row(what, "; ".join(figures), "ahead", _ahead(shares))
    reached = sum(_of(group, outcome.reachable()) for outcome in every) / totals[-1]
    yield Row(
        f"{name}, in the context or found",
        f"{reached:.1%}",
        f"≥ {goal:.0%}",
        reached >= goal,
    )


def _label_shares(
    who: str, group: frozenset[str], outcomes: Sequence[Outcome]
) -> list[float]:
    """By depth; where nothing of the group was said yet, all of it is kept."""
    shares = []
    for depth in LABEL_DEPTHS:
        total = sum(_of(group, outcome.total[depth]) for outcome in outcomes)
        kept = sum(_of(group, outcome.kept[depth][who]) for outcome in outcomes)
        shares.append(kept / total if total else 1.0)
    return shares


def _of(group: frozenset[str], some: Iterable[Label]) -> int:
    return sum(label.kind in group for label in some)


def _marks(pool: Executor, count: int) -> list[Row]:
    """Whether inventions are marked in the summary they come up in, and when they are told again in the next."""
    rows = []
    for again, when in ((False, "in a summary"), (True, "told again in the next")):
        found = [
            work.result()
            for work in [
                pool.submit(_measured, place, again=again) for place in range(count)
            ]
        ]
        marked = _pooled(found, invented=True)
        wrongly = _pooled(found, invented=False)
        rows.append(
            Row(
                f"inventions marked, {when}",
                f"{marked:.1%}",
                f"≥ {MARKED:.0%}",
                marked >= MARKED,
            )
        )
        rows.append(
            Row(
                f"true names marked, {when}",
                f"{wrongly:.1%}",
                f"≤ {WRONGLY:.0%}",
                wrongly <= WRONGLY,
            )
        )
    refused = sum(
        work.result()
        for work in [pool.submit(_refused, place) for place in range(count)]
    )
    return [
        *rows,
        Row(
            "summaries half invented, refused",
            f"{refused} of {count}",
            "all",
            refused == count,
        ),
    ]


def _measured(place: int, *, again: bool) -> Marked:
    return measure(conversations()[place], again=again)


def _refused(place: int) -> bool:
    return is_refused(conversations()[place])


def _pooled(found: Iterable[Marked], *, invented: bool) -> float:
    chosen = [mark for marked in found for mark in marked.of(invented=invented)]
    return sum(chosen) / len(chosen)


def _print_lost(kind: str, window: int, scores: Scores) -> None:
    for depth, score in scores.items():
        for name, contender, fact in score.lost:
            if kind == fact.kind and contender == OURS:
                print(
                    f"{window // 1000}K, {depth} compactions, {name}: {fact.needles} {fact.old or ''}"
                )


if __name__ == "__main__":
    print(markdown("retention", _rows(print_lost=" ".join(sys.argv[1:]))))
