"""Make the result of a compaction from its plan: unchanged, pruned, or with a summary, and its figures."""

from __future__ import annotations

from dataclasses import replace

from everthread.compaction.compaction_result import Compaction, CompactionLevel, Phase
from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.core.text import count_noun
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget


def make_unchanged_result(plan: CutPlan, reason: str) -> Compaction:
    """Return the input as the result, with the reason why nothing changed."""
    messages = plan.history.messages
    return Compaction(
        messages=messages,
        summary="",
        tokens_before=plan.tokens_before,
        tokens_after=plan.tokens_before,
        kept=tuple(range(len(messages))),
        changed=False,
        reason=reason,
    )


def make_pruned_result(plan: CutPlan, counter: TokenCounter) -> Compaction:
    """Return the messages pruned in place, as a result without a summary."""
    messages = plan.cut.messages
    indices = tuple(range(len(messages)))
    return Compaction(
        messages=messages,
        summary="",
        tokens_before=plan.tokens_before,
        tokens_after=plan.count_request(messages, indices, counter),
        kept=indices,
        author="none",
        to_store=plan.cut.to_store,
        boundaries=plan.cut.reasons,
        steps=plan.cut.steps,
    )


def accept_if_smaller(plan: CutPlan, result: Compaction, reason: str) -> Compaction:
    """Return the result with its sizes as the provider counts; return the input if the result is not smaller."""
    if result.tokens_after >= result.tokens_before:
        explanation = (
            "the result would not be smaller "
            f"({result.tokens_before:,} -> {result.tokens_after:,} tokens)"
        )
        return replace(
            make_unchanged_result(plan, explanation),
            warnings=result.warnings,
            usage=result.usage,
        )
    return replace(
        result,
        tokens_before=round(result.tokens_before * plan.provider_scale),
        tokens_after=round(result.tokens_after * plan.provider_scale),
        reason=reason,
    )


def explain_no_work(plan: CutPlan, budget: Budget) -> str:
    """Return the reason why nothing can be replaced."""
    explanation = "there is nothing that may be left out"
    if plan.tokens_before < budget.threshold:
        explanation = "the conversation is too short to compact"
    return (
        f"{explanation}: {count_noun(len(plan.history.messages), 'message')}, all kept at the start and at the end "
        f"({plan.tokens_before:,} tokens, in a window of {budget.window:,})"
    )


def list_phases(plan: CutPlan, summary_tokens: int, counter: TokenCounter) -> tuple[Phase, ...]:
    """Return the tokens before and after each phase, for a report."""
    cut = plan.cut
    budget = plan.budget
    pruned_count = len(cut.pruned_indices)
    return (
        Phase(
            "prune",
            sum(plan.history.sizes[index] for index in cut.pruned_indices),
            sum(plan.pruner.count_tokens(index, counter) for index in cut.pruned_indices),
            f"{pruned_count} messages of the tail with results as one line each",
        ),
        Phase(
            "boundaries",
            plan.tokens_before,
            plan.tokens_before - budget.middle_tokens,
            f"head {cut.head_end}, tail from {cut.tail_start}",
        ),
        Phase(
            "summarise",
            budget.middle_tokens,
            summary_tokens,
            f"within {budget.full_tokens:,} tokens, the user's words apart",
        ),
    )


def find_trigger(*, manual: bool, level: CompactionLevel) -> str:
    """Return the trigger of a compaction: `manual`, `overflow` or `automatic`."""
    if manual:
        return "manual"
    return "overflow" if level > CompactionLevel.NORMAL else "automatic"
