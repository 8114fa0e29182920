"""Questions put to a conversation after its compactions: is the evidence in the context, else what recall finds?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from everthread.conversation.options import SessionOptions
from everthread.core.messages import results_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.factory.compaction import run_sync
from everthread.lab.logs.base import Said
from everthread.lab.probe.held import MODEL, Held, Manner, held
from everthread.lab.probe.questions import Case, Evidence, Question
from everthread.lab.probe.result import Asked, Probed
from everthread.lab.replay.facts import Context, in_context
from everthread.store.base import StoredMessage

FIRSTS = (5, 10)
SMALLEST = 4_000
"""Tokens of the smallest window that is chosen here."""
Progress = Callable[[int, int], None]


async def aprobe(  # noqa: PLR0913 - what a probe may be told, one by one
    case: Case,
    *,
    window: int | None = None,
    chain: int | None = None,
    engine: str = "compressor",
    engine_options: dict[str, Any] | None = None,
    options: SessionOptions | None = None,
    model: str = MODEL,
    firsts: Sequence[int] = FIRSTS,
    progress: Progress | None = None,
) -> Probed:
    """Hold a conversation, compact it, ask.

    `window`: None is half as large as the conversation. `chain`: so many compactions, at equal distances and the last
    at the end, instead of those that the window demands; without a window one is chosen that fits them. `firsts`: how
    many of recall's results are looked at. Nothing is sent anywhere; summaries are extracts.
    """
    started = time.perf_counter()
    counter = TokenCounter(model)
    sizes = [counter.message(entry.message) for entry in case.said]
    whole = sum(sizes)
    given = Manner(1) if options is None else Manner(1, options=options)
    size = window or max(SMALLEST, round(whole / chain / given.options.threshold) if chain else whole // 2)
    manner = Manner(size, engine, dict(engine_options or {}), given.options, model)
    steps = len(case.said) + len(case.questions)
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, steps)

    async with held(manner, clock=time.time) as now:
        await _fill(now, case.said, _places(sizes, chain), step)
        view = await now.view()
        context = in_context([message.body for message in view])
        said = {message.id: message for message in await now.conversation.store.history(now.conversation.session.id)}
        asked = []
        for question in case.questions:
            asked.append(await _ask(now, question, context, said, max(firsts)))
            step(1)
        return Probed(
            case.source, engine, size, now.conversation.threshold, tuple(sorted(firsts)), len(case.said), whole,
            now.conversation.tokens, now.compactions, asked, [*case.notes, *now.notes], time.perf_counter() - started,
        )  # fmt: skip


def probe(case: Case, **how: Any) -> Probed:
    """Like `aprobe`, from a script or from inside a running event loop."""
    return run_sync(aprobe(case, **how))


def _places(sizes: Sequence[int], chain: int | None) -> list[int] | None:
    """Before which messages it is compacted: where each of so many equal parts is over. None: when it is full."""
    if chain is None:
        return None
    whole, grown = sum(sizes), [*accumulate(sizes)]
    ends = [whole * number / chain for number in range(1, chain)]
    return [next(at for at, tokens in enumerate(grown, 1) if tokens >= end) for end in ends] + [len(sizes)]


async def _fill(now: Held, said: Sequence[Said], places: list[int] | None, step: Callable[[int], None]) -> None:
    """Everything, compacted where the model would be asked next: before its answers, and at the end."""
    left = None if places is None else list(places)
    start = 0
    for at in [*(at for at, entry in enumerate(said) if at and entry.message["role"] == "assistant"), len(said)]:
        await now.add(said[start:at])
        step(at - start)
        start = at
        if left is None:
            if now.full:
                await now.compact()
            continue
        due = sum(place <= at for place in left)
        del left[:due]
        if due:
            await now.compact()


async def _ask(now: Held, question: Question, context: Context, said: dict[int, StoredMessage], most: int) -> Asked:
    missing = [piece for piece in question.evidence if not all(part in context for part in piece.parts)]
    passages = await now.recall(question.text, most)
    found = [(passage.text, _whole(said.get(passage.message or 0))) for passage in passages]
    ranks = tuple(_rank(piece, found) for piece in missing)
    costs = accumulate(now.counter.text(passage.text) for passage in passages)
    pieces = len(question.evidence)
    return Asked(question.text, question.kind, pieces, pieces - len(missing), ranks, tuple(costs))


def _rank(piece: Evidence, found: Sequence[tuple[str, str]]) -> int:
    """A message counts as found with any of its excerpts; a quotation must stand in the excerpt itself."""
    for rank, (excerpt, whole) in enumerate(found, 1):
        if all(part in Context.of([whole if piece.whole else excerpt]) for part in piece.parts):
            return rank
    return 0


def _whole(stored: StoredMessage | None) -> str:
    if stored is None:
        return ""
    return "\n".join([text_of(stored.body), *(result.text for result in results_of(stored.body))])
