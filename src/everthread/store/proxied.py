"""What is kept for clients that send their whole history each time: whose it is, and what stands for its beginning.

A history is known by two digests of each of its prefixes. `digest` changes with every word; `skeleton` leaves out
thinking and the contents of tool results, which clients drop to save room. `results` are short hashes of those
contents, separated by blanks: they tell a result that was cleared from another conversation's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from everthread.store.base import NewCompaction, NewMessage, NewSession


@dataclass(frozen=True, slots=True)
class Link:
    """A point of a thread at which a request or an answer ended."""

    tenant: str
    scope: str
    """Which of the tenant's clients; histories of different scopes are never taken for one."""
    digest: str
    previous: str
    """The digest of the point before it; empty for a thread's first."""
    skeleton: str
    thread: str
    length: int
    """How many of the client's messages lead to it."""
    message: int | None
    """The last message that was stored for it."""
    results: str = ""
    """Of the messages since the point before."""


@dataclass(frozen=True, slots=True)
class NewLink:
    """A point that was reached. `step` is taken once in a thread: who comes second with another digest branches."""

    link: Link
    step: str
    session: NewSession
    """What the thread begins with, where it is new."""
    branch_of: tuple[str, int] | None = None
    """For a branch: the thread and the message it leaves at."""
    messages: Sequence[NewMessage] = ()


@dataclass(frozen=True, slots=True)
class FoundLink:
    """The longest known beginning of a history."""

    link: Link
    next: str | None
    """The digest the thread went on with from there."""
    results: str
    """Of all messages that lead to it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What stands for a beginning: keyed by tenant, engine, digest and strength; never changed."""

    tenant: str
    engine: str
    """The engine with its options, and the protocol the replacement is written in."""
    chain: str
    strength: int
    length: int
    """How many of the client's messages it covers."""
    skeleton: str
    results: str
    thread: str
    replacement: bytes
    """JSON messages, separated by commas."""
    ripe: int = 0
    """Used from this size of the client's messages on, in tokens as estimated."""
    depth: int = 1
    """How many compactions are in it."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine that made it."""


class ProxiedStore(Protocol):
    """The part of a store that is about such clients."""

    async def extend_link(self, new: NewLink) -> Link | None:
        """Store a point and its messages at once; the point that is there already; None where the step is taken."""
        ...

    async def find_link(self, tenant: str, scope: str, digests: Sequence[str]) -> FoundLink | None:
        """The longest of these beginnings that is known; `digests` from the shortest on."""
        ...

    async def find_skeletons(self, tenant: str, scope: str, skeletons: Sequence[str]) -> list[FoundLink]:
        """Points with the longest of these skeletons that is known."""
        ...

    async def put_rewrite(self, new: Rewrite, compaction: NewCompaction | None = None) -> Rewrite:
        """The one that counts: this, or what was there before. A first one's compaction is recorded with it."""
        ...

    async def find_rewrites(self, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
        """The longest few that cover one of these beginnings, the longest and strongest first."""
        ...

    async def find_similar_rewrites(self, tenant: str, engine: str, skeletons: Sequence[str]) -> list[Rewrite]:
        """The same by skeleton."""
        ...
