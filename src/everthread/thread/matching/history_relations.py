"""Decide which stored thread a history continues, branches from or repeats.

All functions are pure: `thread_index.py` reads the store and calls them to compare stored messages with a history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from everthread.core.types import Api
from everthread.store.rewrite_records import ThreadLinkMatch
from everthread.thread.matching.history import History
from everthread.thread.matching.rewording import count_matching_messages

Relation = Literal["continues", "repeats", "branches"]
"""Relation of a history to a thread that it shares messages with: it extends the thread, is a part of the thread, or
differs from an earlier message on."""


@dataclass(frozen=True, slots=True)
class KnownLink:
    """A stored link of a thread, and the number of a history's messages that lead to it."""

    link_match: ThreadLinkMatch
    length: int

    def relate_history(self, history: History) -> Relation:
        """Return how a history that leads to this link relates to its thread."""
        if self.link_match.next_digest is None:
            return "continues"
        return "repeats" if self.length == len(history) else "branches"


def ends_at_link(history: History, length: int, link_match: ThreadLinkMatch) -> bool:
    """Return whether the first messages end at a link, ignoring results that were cleared since."""
    if history.digest(length) == link_match.link.digest:
        return True
    return history.loose_digest(
        length
    ) == link_match.link.loose_digest and history.equals_except_cleared(link_match.results, length)


def find_longest_link(
    history: History,
    exact: ThreadLinkMatch | None,
    similar: Sequence[ThreadLinkMatch],
) -> KnownLink | None:
    """Return the known link farthest along a history.

    `exact`: the link of the longest beginning that is stored word for word. `similar`: links of
    longer beginnings with equal loose digests, used if only cleared results differ.
    """
    matched_length = history.digests.index(exact.link.digest) + 1 if exact else 0
    by_length = sorted(
        similar,
        key=lambda link_match: (
            -link_match.link.message_count,
            link_match.next_digest is not None,
        ),
    )
    for link_match in by_length:
        length = history.loose_digests.index(link_match.link.loose_digest) + 1
        if length > matched_length and history.equals_except_cleared(link_match.results, length):
            return KnownLink(link_match, length)
    return KnownLink(exact, matched_length) if exact else None


def relate_remainder(
    api: Api,
    sent: Sequence[Any],
    stored: Sequence[Any],
    is_model_answer: Callable[[int], bool],
    *,
    reaches_thread_end: bool,
) -> tuple[Relation, int]:
    """Compare the messages after a shared link; return the relation and the number of sent messages that agree.

    An answer may be re-worded (`count_matching_messages`). `reaches_thread_end`: whether `stored` includes the thread's
    last message.
    """
    sent_count, stored_count = count_matching_messages(api, sent, stored, is_model_answer)
    if sent_count == len(sent):
        return "repeats", sent_count
    if stored_count == len(stored) and reaches_thread_end:
        return "continues", sent_count
    return "branches", sent_count
