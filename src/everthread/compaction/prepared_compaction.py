"""Use a compaction that was prepared in the background: append the messages that arrived since then."""

from __future__ import annotations

from dataclasses import replace

from everthread.compaction.compaction_result import Compaction
from everthread.core.messages import Messages


def append_new_messages(
    prepared: Compaction, new_messages: Messages, prepared_count: int
) -> Compaction:
    """Return a compaction of the whole list: the compacted first `prepared_count` messages, then `new_messages`."""
    return replace(
        prepared,
        messages=[*prepared.messages, *new_messages],
        kept=(
            *prepared.kept,
            *range(prepared_count, prepared_count + len(new_messages)),
        ),
    )


def merge_compactions(first: Compaction, second: Compaction) -> Compaction:
    """Merge two successive compactions into one of the original list. `second` compacted the result of `first`."""
    first_indices = first.kept
    newly_covered = [
        first_index for index in second.covered if (first_index := first_indices[index]) is not None
    ]
    merged = replace(
        first,
        messages=second.messages,
        kept=tuple(None if index is None else first_indices[index] for index in second.kept),
        covered=(
            *first.covered,
            *sorted(set(newly_covered) - set(first.covered)),
        ),
        tokens_after=second.tokens_after,
        to_store=(*first.to_store, *second.to_store),
        steps=(*first.steps, *second.steps),
        nodes=(*first.nodes, *second.nodes),
    )
    if not second.summary:
        return merged
    authors = dict.fromkeys((first.author, second.author))
    return replace(merged, summary=second.summary, state=second.state, author=", ".join(authors))
