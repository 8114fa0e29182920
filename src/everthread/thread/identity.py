"""Decide which stored thread a history continues, branches from or repeats.

All functions are pure: `finding/` reads the store and calls them to compare stored messages with a history.
`history.py` identifies messages; `rewording.py` compares wordings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any, Literal

from everthread.core.messages import text_of
from everthread.core.types import Api
from everthread.core.user_words import strip_surroundings
from everthread.store.rewrite_records import ThreadLinkMatch
from everthread.thread.history import History
from everthread.thread.rewording import count_matching_messages

Relation = Literal["new", "continues", "repeats", "branches"]
"""Relation of a history to a thread: it shares nothing with the thread, extends the thread, is a part of the thread, or
differs from an earlier message on."""

_WORDS_PER_RUN = 6
MIN_REPEATED_RUNS = 20
_MIN_REPEATED_SHARE = 0.25
"""Minimum share of the runs of words that a client's own summary has in common with the answer it was taken from.

Unrelated conversations of one project share at most 0.12 of the runs of their first messages (measured on eight
recorded sessions).
"""
_WORD = re.compile(r"\w+")
MAX_NAME_CHARS = 200
NAMED_SCOPE = "x-everthread-session:"
"""Prefix of the scope of a thread that the client names itself."""


def relate_by_counts(
    shared_count: int, *, sent_count: int, is_thread_end: bool
) -> Relation:
    """Return how a history of `sent_count` messages relates to a thread that shares `shared_count` of them.

    `is_thread_end`: whether the thread has nothing after the shared messages.
    """
    if not shared_count:
        return "new"
    if is_thread_end:
        return "continues"
    return "repeats" if shared_count == sent_count else "branches"


# Names of threads


def shorten_session_name(name: str) -> str:
    """Return a session's name; its digest if it is long, because it is stored with every point."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"sha256:{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def find_session_name(session_scope: str) -> str:
    """Return the client's name for its session; empty if it names none."""
    return session_scope.partition(":")[2]


def is_thread_named(session_scope: str) -> bool:
    """Return whether the client names the thread itself."""
    return session_scope.startswith(NAMED_SCOPE)


def derive_thread_id(
    tenant: str, session_scope: str, previous: str, digest: str
) -> str:
    """Return the id of a new thread. Two processes that see the same request derive the same id."""
    text = "\0".join([tenant, session_scope, previous, digest])
    return blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"gateway"
    ).hexdigest()


# Points of stored threads


@dataclass(frozen=True, slots=True)
class KnownPoint:
    """A stored point of a thread, and the number of a history's messages that lead to it."""

    point: ThreadLinkMatch
    length: int

    def relate_history(self, history: History) -> Relation:
        """Return how a history that leads to this point relates to its thread."""
        return relate_by_counts(
            self.length,
            sent_count=len(history),
            is_thread_end=self.point.next_digest is None,
        )


def is_at_point(history: History, length: int, point: ThreadLinkMatch) -> bool:
    """Return whether the first messages end at a point, ignoring results that were cleared since."""
    if history.digest(length) == point.link.digest:
        return True
    return history.skeleton(
        length
    ) == point.link.skeleton and history.equals_except_cleared(point.results, length)


def find_longest_point(
    history: History,
    exact: ThreadLinkMatch | None,
    similar: Sequence[ThreadLinkMatch],
) -> KnownPoint | None:
    """Return the known point farthest along a history.

    `exact`: the point of the longest beginning that is stored word for word. `similar`: points of
    longer beginnings with equal skeletons, used if only cleared results differ.
    """
    matched_length = history.digests.index(exact.link.digest) + 1 if exact else 0
    by_length = sorted(
        similar, key=lambda point: (-point.link.length, point.next_digest is not None)
    )
    for point in by_length:
        length = history.skeletons.index(point.link.skeleton) + 1
        if length > matched_length and history.equals_except_cleared(
            point.results, length
        ):
            return KnownPoint(point, length)
    return KnownPoint(exact, matched_length) if exact else None


def relate_remainder(
    api: Api,
    sent: Sequence[Any],
    stored: Sequence[Any],
    is_model_answer: Callable[[int], bool],
    *,
    reaches_thread_end: bool,
) -> tuple[Relation, int]:
    """Compare the messages after a shared point; return the relation and the number of sent messages that agree.

    An answer may be re-worded (`count_matching_messages`). `reaches_thread_end`: whether `stored` includes the thread's
    last message.
    """
    sent_count, stored_count = count_matching_messages(
        api, sent, stored, is_model_answer
    )
    if sent_count == len(sent):
        return "repeats", sent_count
    if stored_count == len(stored) and reaches_thread_end:
        return "continues", sent_count
    return "branches", sent_count


# A client's own summary


def list_opening_runs(wire_messages: Sequence[Any]) -> set[tuple[str, ...]]:
    """Return the runs of words in a client's messages before the first answer."""
    opening = itertools.takewhile(
        lambda value: isinstance(value, dict) and value.get("role") != "assistant",
        wire_messages,
    )
    return _list_word_runs(
        strip_surroundings("\n".join(text_of(value) for value in opening))
    )


def repeats_stored_words(runs: set[tuple[str, ...]], bodies: Sequence[Any]) -> bool:
    """Return whether many runs of words of a history's opening are in stored messages.

    If so, the client compacted its history itself: the opening is a summary that the model wrote in the previous
    conversation.
    """
    stored_runs = set().union(*(_list_word_runs(text_of(body)) for body in bodies))
    return len(runs & stored_runs) >= max(
        MIN_REPEATED_RUNS, _MIN_REPEATED_SHARE * len(runs)
    )


def _list_word_runs(text: str) -> set[tuple[str, ...]]:
    """Return all sequences of `_WORDS_PER_RUN` adjacent words in a text."""
    words = _WORD.findall(text.lower())
    return set(zip(*(words[start:] for start in range(_WORDS_PER_RUN)), strict=False))


# A part of a conversation


MIN_END_MESSAGES = 4
"""Minimum messages of a thread's end by which it is found in a history without its beginning."""
MAX_END_MESSAGES = 8
"""Maximum messages of a thread's end to compare."""


def list_end_skeletons(history: History) -> tuple[str, ...]:
    """Return the skeletons of the last messages of a history, the newest last."""
    last_skeletons = [
        identity.skeleton for identity in history.identities[-2 * MAX_END_MESSAGES :]
    ]
    return tuple(skeleton for skeleton in last_skeletons if skeleton)[
        -MAX_END_MESSAGES:
    ]


def has_thread_end_before(
    skeletons: Sequence[str], position: int, thread_end: Sequence[str]
) -> bool:
    """Return whether a history has the end of a thread just before a position.

    The history may begin within that end, but at least `MIN_END_MESSAGES` messages must agree.
    """
    count = min(position, len(thread_end))
    if count < MIN_END_MESSAGES:
        return False
    return list(skeletons[position - count : position]) == list(thread_end[-count:])


# The role of the assistant


_MAX_ROLE_CHARS = 200
"""The first characters of a system prompt, which name the assistant's role."""
_MIN_LINE_CHARS = 20
_MIN_ROLE_LINES = 8
_MAX_ROLE_LINES = 64
_MIN_SHARED_LINES_SHARE = 0.5
"""Minimum share of lines that two system prompts of the same role have in common.

A client's prompts in two modes share far more; Qwen Code's prompts for the conversation and for its memory share
0.23."""


@dataclass(frozen=True, slots=True)
class Role:
    """A sketch of a system prompt, with the names of the tools, to recognise the assistant's role."""

    start: str
    lines: tuple[int, ...]
    """The smallest hashes of its lines, to estimate the share of lines that two prompts have in common."""
    tools: frozenset[str] | None = None
    """None if the tools are not known."""


def describe_role(system: str, tools: frozenset[str] | None = None) -> Role:
    """Return the role that a system prompt and its tools give to the assistant."""
    lines = {line.strip() for line in system.splitlines()}
    hashes = {hash(line) for line in lines if len(line) >= _MIN_LINE_CHARS}
    smallest = tuple(sorted(hashes)[:_MAX_ROLE_LINES])
    return Role(system[:_MAX_ROLE_CHARS], smallest, tools)


def is_same_role(role: Role, other: Role) -> bool:
    """Return whether two requests give the assistant the same role, so that they may belong to one conversation.

    The roles differ if the prompts begin differently and share few lines, and the tools differ. Prompts of a few lines
    always count as equal.
    """
    if (
        role.start == other.start
        or min(len(role.lines), len(other.lines)) < _MIN_ROLE_LINES
    ):
        return True
    if role.tools is not None and role.tools == other.tools:
        return True
    all_lines = sorted({*role.lines, *other.lines})
    sample = all_lines[: min(len(role.lines), len(other.lines), _MAX_ROLE_LINES)]
    shared_sample = set(role.lines) & set(other.lines)
    shared_count = sum(line in shared_sample for line in sample)
    return shared_count >= _MIN_SHARED_LINES_SHARE * len(sample)
