"""Values about clients that send their whole history: the links of a history's chain, and its rewrites.

A link is one prefix of a history, known by its digest. A rewrite replaces the beginning of a history with a compacted
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.messages import Message
from everthread.store.records import NewCompaction, NewMessage, NewSession

UNDONE_STATE_KEY = "undone"
"""The key of a proxied thread's state after an undo. Its value is `{"until": tokens}`: the thread is not compacted
again until its messages have this size."""


@dataclass(frozen=True, slots=True)
class ThreadLink:
    """One link in the chain of a thread: its history up to the end of a request or an answer."""

    tenant: str
    scope: str
    """Identifies one of the tenant's clients; histories of different scopes are never the same thread."""
    digest: str
    """The digest of the history up to here."""
    previous: str
    """The digest of the link before, or an empty text for a thread's first."""
    loose_digest: str
    """The digest of the history up to here without thinking and the contents of tool results."""
    thread: str
    message_count: int
    """How many of the client's messages the history has up to here."""
    last_message_id: int | None
    """The last message that was stored for the link."""
    results: str = ""
    """Hashes of the tool results since the link before."""


@dataclass(frozen=True, slots=True)
class NewThreadLink:
    """A link to append to a thread."""

    link: ThreadLink
    follows: str
    """The digest of the thread's last link as the writer knows it, or an empty text for a new thread. The link is
    appended only if the thread still ends there."""
    session: NewSession
    """The first session of the thread, if the thread is new."""
    branch_of: tuple[str, int] | None = None
    """For a branch: the thread and the message it leaves at."""
    messages: Sequence[NewMessage] = ()
    client_parent: str = ""
    """The client's session whose conversation a side call is listed under, or an empty text if there is none."""


@dataclass(frozen=True, slots=True)
class ThreadLinkMatch:
    """The longest stored beginning of a history."""

    link: ThreadLink
    next_digest: str | None
    """The digest of the link that continues this one, or None if the thread ends here."""
    results: str
    """Hashes of the tool results of all messages up to the link."""


@dataclass(frozen=True, slots=True)
class ConversationEnd:
    """The end of the conversation that a client's session used last."""

    thread: str
    last_message_id: int
    """The id of the last message."""
    last_bodies: Sequence[Message]
    """The last few messages, the newest first."""


@dataclass(frozen=True, slots=True)
class RewriteSearchState:
    """The result of a search for the rewrites of a history, from which the search for a longer history resumes."""

    engines: tuple[str, ...]
    message_count: int
    """How many messages the history had."""
    digest: str
    """The digest of that history."""
    newest_rewrite: Any
    """The newest rewrite of any tenant at the time of the search."""
    found_digests: tuple[str, ...] = ()
    """The digests of the rewrites that were found, the shortest first."""


@dataclass(frozen=True, slots=True)
class RewriteState:
    """State kept with a rewrite: the engine's, and the note after the system prompt."""

    engine: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    model: str = ""
    """The model whose tokenizer counted the replacement, or an empty text if it was not counted."""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The replacement of a history's beginning. Its key is tenant, engine, digest and strength.

    It is never changed. An undo of its compaction deletes it.
    """

    tenant: str
    engine: str
    """The engine with its options, and the protocol the replacement is written in."""
    digest: str
    """The digest of the replaced beginning."""
    strength: int
    """How strongly the beginning was compacted; after a refusal a stronger rewrite is made."""
    replaced_count: int
    """How many of the client's messages are replaced."""
    loose_digest: str
    """The digest of the replaced beginning without thinking and the contents of tool results."""
    results: str
    """Hashes of the tool results in the replaced beginning."""
    thread: str
    replacement: bytes
    """JSON messages, separated by commas."""
    session: str = ""
    """The session that the compaction began, or an empty text if no message was covered."""
    depth: int = 1
    """How many compactions the replaced beginning went through."""
    state: RewriteState = RewriteState()


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """One message of a compacted context, for a thread whose client keeps the history."""

    position: int | None = None
    """The message's position among the messages that were compacted, or None for a summary."""
    message: Message | None = None
    """The message, or None if it is certainly stored."""
    tokens: int | None = None
    is_changed: bool = False
    """Whether it is a smaller form of the stored message."""


CLIENT_NOTES_ROLE = "client notes"
"""The role of a user's message that holds only the client's own notes: it may not be stored."""


@dataclass(frozen=True, slots=True)
class ProxiedContext:
    """The result of compacting the messages sent upstream: those of the last rewrite, then the client's own."""

    entries: Sequence[ContextEntry]
    covered: Sequence[int]
    """Positions of the messages that the summary replaces."""
    inherited_count: int
    """How many of the compacted messages are the last rewrite's."""
    own_roles: Sequence[str]
    """The roles of the other compacted messages, which are the client's own; see `CLIENT_NOTES_ROLE`."""
    leading_count: int = 0
    """How many stored messages come before the compacted ones and stay."""

    @property
    def compacted_count(self) -> int:
        """How many messages were compacted."""
        return self.inherited_count + len(self.own_roles)


@dataclass(frozen=True, slots=True)
class NewRewrite:
    """A rewrite with the compaction that made it."""

    rewrite: Rewrite
    record: NewCompaction
    context: ProxiedContext
    scope: str
    """The client session of the request."""
    digest: str
    """The digest of the request's whole history, which is stored."""
    base_session: str = ""
    """The session of the rewrite that this one continues, or an empty text if it is the first."""
    digests: Sequence[str] = ()
    """The digests of the request's history: a rewrite of one of them, made by another process, is used instead."""
