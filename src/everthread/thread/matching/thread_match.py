"""The thread that a request belongs to, and the messages to append to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from everthread.core.messages import SYSTEM_ROLES, Message, content_text
from everthread.store.records import NewMessage, NewSession
from everthread.store.rewrite_records import NewThreadLink, ThreadLink
from everthread.thread.matching.history import History
from everthread.thread.matching.thread_names import is_thread_named


class ClientScope(NamedTuple):
    """The owner and the client's session, within which threads are searched."""

    tenant: str
    session_scope: str
    """The client's session, or an empty string if the client names none."""


LinkKey = tuple[str, str, str]
"""Tenant, scope and digest of a link."""


@dataclass(frozen=True, slots=True)
class ThreadMatch:
    """The thread that a history belongs to, and how much of the history is stored."""

    client_scope: ClientScope
    thread_id: str
    matched_count: int = 0
    """Number of the history's messages that are stored."""
    previous_digest: str = ""
    """The digest of the link that the history continues."""
    expected_end_digest: str = ""
    """The digest of the thread's last link, or an empty string if the thread is new.

    The store refuses to append messages if the thread has another last link by then."""
    branch_of: tuple[str, int] | None = None
    """The thread that a new thread branches from or continues, and the last message that both share."""
    side_of: str = ""
    """The conversation that a side call belongs to; the history begins with its messages."""
    is_inside: bool = False
    """Whether the whole history lies inside the stored thread, so that nothing is appended."""

    @property
    def tenant(self) -> str:
        return self.client_scope.tenant

    @property
    def session_scope(self) -> str:
        return self.client_scope.session_scope

    @property
    def is_named(self) -> bool:
        """Whether the client named the thread. Then none of its requests is a branch."""
        return is_thread_named(self.session_scope)

    @property
    def is_new(self) -> bool:
        return self.branch_of is not None or bool(self.side_of) or not self.matched_count

    @property
    def source(self) -> str:
        """The thread that holds the link that the history continues."""
        branched = self.branch_of[0] if self.branch_of else ""
        return self.side_of or branched or self.thread_id

    @property
    def continues_other(self) -> bool:
        """Whether a new thread continues another one whose messages are no longer sent."""
        return self.branch_of is not None and not self.matched_count

    def advance_to(self, history: History) -> ThreadMatch:
        """Return the match at the end of a history, all of whose messages are stored now."""
        length = len(history)
        digest = history.digest(length)
        return ThreadMatch(
            self.client_scope,
            self.thread_id,
            matched_count=length,
            previous_digest=digest,
            expected_end_digest=digest,
            is_inside=self.is_inside,
        )

    def make_link(self, history: History) -> ThreadLink:
        """Return the link at the end of a history."""
        length = len(history)
        return ThreadLink(
            tenant=self.tenant,
            scope=self.session_scope,
            digest=history.digest(length),
            previous=self.previous_digest,
            loose_digest=history.loose_digest(length),
            thread=self.thread_id,
            message_count=length,
            last_message_id=None,
            results=history.join_result_hashes(self.matched_count, length),
        )


@dataclass(frozen=True, slots=True)
class ThreadStep:
    """New messages of a thread, and the history that ends with them."""

    history: History
    messages: Sequence[Message]
    sizes: Sequence[int]
    """Tokens of the messages as the client sent them."""
    session: NewSession
    """The session to begin the thread with, if it is new."""
    client_parent: str = ""

    def make_new_link(self, match: ThreadMatch) -> NewThreadLink:
        """Return the link that this step appends to a thread."""
        link = match.make_link(self.history)
        tokens = share_tokens(self.sizes, self.messages)
        messages = [
            NewMessage(body, event=f"{link.digest}:{index}", tokens=size)
            for index, (body, size) in enumerate(zip(self.messages, tokens, strict=True))
        ]
        return NewThreadLink(
            link,
            match.expected_end_digest,
            session=self.session,
            branch_of=match.branch_of,
            messages=messages,
            client_parent=self.client_parent,
        )


class StoredSteps(NamedTuple):
    """The part of a request and its answer that was stored."""

    request_end: ThreadMatch | None
    """The match at the end of the request, or None if another writer extended the thread first.

    It names another thread if another process stored the same messages there."""
    answer_thread_id: str | None
    """The thread that holds the answer, or None if the answer is not stored."""
    has_stored_usage: bool
    """Whether the usage and the state are stored."""


def share_tokens(sizes: Sequence[int], messages: Sequence[Message]) -> list[int | None]:
    """Return the tokens of each core message, given the tokens of the client's own messages.

    If the numbers of messages differ, distribute the tokens by length.
    """
    if not sizes or len(sizes) == len(messages):
        return list(sizes) or [None] * len(messages)
    lengths = [len(content_text(message.get("content"))) + 8 for message in messages]
    return [sum(sizes) * length // sum(lengths) for length in lengths]


def count_opening_messages(wire_messages: Sequence[Any]) -> int:
    """Count the messages before the first answer: the request that began a conversation."""
    for index, value in enumerate(wire_messages):
        if index and (
            not isinstance(value, dict) or value.get("role") not in ("user", *SYSTEM_ROLES)
        ):
            return index
    return len(wire_messages)
