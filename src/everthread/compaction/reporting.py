"""What an engine tells of a compaction that it does not make, only shows, or makes by citing alone."""

from __future__ import annotations

from dataclasses import replace

from everthread.compaction.steps.cutting import Plan
from everthread.core.summary import Compaction, Phase

NO_MIDDLE = "there is nothing between what is kept at the start and at the end"


def reason_for(*, manual: bool, overflow: bool) -> str:
    return "manual" if manual else "overflow" if overflow else "automatic"


def unchanged(made: Plan, why: str, duration: float) -> Compaction:
    """The input itself, and why."""
    return Compaction(
        messages=made.messages, summary="", tokens_before=made.tokens_before, tokens_after=made.tokens_before,
        kept=tuple(range(len(made.messages))), changed=False, reason=why, duration=duration,
    )  # fmt: skip


def preview(made: Plan, duration: float) -> Compaction:
    """What would be kept, cut and summarised, and the figures; the summary's size is its budget."""
    expected = made.tokens_before - made.middle_tokens + made.budget
    return replace(
        unchanged(made, "preview", duration), tokens_after=expected, covered=made.covered,
        phases=phases(made, made.budget), to_store=made.descent.to_store,
        steps=(*made.descent.boundaries.reasons, *made.descent.steps),
    )  # fmt: skip


def cited(made: Plan, duration: float) -> Compaction:
    """Nothing is summarised; what is kept and too large by itself is stored and cited."""
    return replace(
        unchanged(made, "", duration), messages=made.descent.messages, changed=True, author="none",
        to_store=made.descent.to_store, steps=made.descent.steps,
    )  # fmt: skip


def only_cites(made: Plan) -> bool:
    """Whether nothing can be summarised, and what is kept is too large by itself: it is stored and cited then."""
    return bool(made.descent.to_store) and not made.previous


def phases(made: Plan, summary: int) -> tuple[Phase, ...]:
    kept = made.tokens_before - made.fixed - made.middle_tokens
    cut = made.descent.boundaries
    return (
        Phase(
            "prune", made.middle_tokens, made.pruned_tokens, f"{len(made.covered)} messages as a model is given them"
        ),
        Phase("boundaries", made.tokens_before, made.fixed + kept, f"head {cut.head_end}, tail from {cut.tail_start}"),
        Phase("summarise", made.middle_tokens, summary, f"within {made.budget:,} tokens"),
    )


def settled(result: Compaction, made: Plan, after: int, reason: str, duration: float) -> Compaction:
    """The result with its sizes by the provider's measure; the input, where it would not be smaller."""
    if after >= made.tokens_before:
        why = f"the result would not be smaller ({made.tokens_before:,} -> {after:,} tokens)"
        return replace(unchanged(made, why, duration), warnings=result.warnings, usage=result.usage)
    return replace(
        result, tokens_before=round(made.tokens_before * made.scale), tokens_after=round(after * made.scale),
        reason=reason, duration=duration,
    )  # fmt: skip
