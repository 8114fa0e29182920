"""Use a compaction that was prepared in the background: append the messages that arrived since."""

from __future__ import annotations

from dataclasses import replace

from everthread.compaction.compaction_result import Compaction
from everthread.core.messages import Messages


def append_since(prepared: Compaction, since: Messages, start: int) -> Compaction:
    """Return the compaction of the whole list. It was made from the first `start` messages; `since` follow them."""
    return replace(
        prepared,
        messages=[*prepared.messages, *since],
        kept=(*prepared.kept, *range(start, start + len(since))),
    )


def merge_compactions(appended: Compaction, made: Compaction) -> Compaction:
    """Return one compaction of the original list for two in a row: `made` is a compaction of the first one's result."""
    origins = appended.kept
    covered_origins = [
        origin for index in made.covered if (origin := origins[index]) is not None
    ]
    is_extended = bool(made.summary)
    return replace(
        appended,
        messages=made.messages,
        kept=tuple(None if index is None else origins[index] for index in made.kept),
        covered=(
            *appended.covered,
            *sorted(set(covered_origins) - set(appended.covered)),
        ),
        summary=made.summary or appended.summary,
        tokens_after=made.tokens_after,
        to_store=(*appended.to_store, *made.to_store),
        steps=(*appended.steps, *made.steps),
        nodes=(*appended.nodes, *made.nodes),
        state=made.state if is_extended else appended.state,
        author=", ".join(dict.fromkeys((appended.author, made.author)))
        if is_extended
        else appended.author,
    )
