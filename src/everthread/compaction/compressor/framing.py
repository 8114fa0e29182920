"""What surrounds the summariser's words: the marker, the open request, rules, pins, and facts that must not lack."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.compressor.state import ThreadState
from everthread.compaction.compressor.texts import text as text_file
from everthread.compaction.steps import importance, pins, verify
from everthread.compaction.steps.cutting import Plan
from everthread.compaction.steps.files import by_weight
from everthread.compaction.steps.writing import LESSER, Count, Frame, task_text, tells
from everthread.core.decisions import reasoned
from everthread.core.facts import DECISION, Fact
from everthread.core.summary import SUMMARY_END

AMPLE = 4_000
"""In a smaller room than this there are fewer quotations."""


def frame(
    plan: Plan, state: ThreadState, ranked: list[Fact], ids: Sequence[int], count: Count, *, important: int,
    small: bool, notes: Sequence[str] = (),
) -> Frame:  # fmt: skip
    """Everything of the summary message that comes from the transcript itself; `ranked` are the middle's facts."""
    marker = text_file("marker_short" if small else "marker").format(count=len(plan.covered))
    task = task_text(plan, plan.budget // 4, count)
    rules, left_out = pins.pinned_text(state.rules, plan.budget // 4, count)
    noted, unnoted = pins.pinned_text(notes, plan.budget // 8, count, pins.NOTED)
    pinned = "\n".join(filter(None, (rules, noted)))
    found = [plan.read[index].facts for index in plan.covered]
    numbers = [ids[index] for index in plan.covered]
    worth = importance.worth_quoting(plan.middle, numbers, importance.scores(found, ranked), found)
    quotes = [quote for quote in worth if not tells(quote.said, state.gone)]
    room = max(plan.budget - sum(map(count, (marker, SUMMARY_END, task, pinned))) - 8, 40)
    quoting = min(important, room // (8 if room > AMPLE else 16)) if quotes else 0
    reserved = min(max(room // 8, sum(len(fact.value) for fact in state.facts) // 4), room * 2 // 5)
    kinds = ((left_out, "of the user's standing rules"), (unnoted, "of what was pinned"))
    warnings = tuple(f"{lacking} {kind} had no room in the summary" for lacking, kind in kinds if lacking)
    facts: dict[str, Fact] = {}
    for fact in (*state.facts, *ranked[: verify.TOP]):
        echoes = fact.kind == DECISION and not (fact.by_user or reasoned(fact.value))
        if not echoes and not tells(f"{fact.value}\n{fact.quote}", state.gone):
            facts.setdefault(fact.value, fact)
    return Frame(
        marker, task, pinned, room, room - quoting - reserved, quoting, quotes, [*facts.values()],
        ranked[verify.TOP : verify.TOP + LESSER],
        by_weight(state.files), state.gone, warnings,
    )  # fmt: skip
