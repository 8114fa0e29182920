"""What passes between the HTTP side and the side that decides: a request as it came, and what goes upstream for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from everthread.core.exchange import Api, Reply
from everthread.core.usage import CanonicalUsage

Mode = Literal["managed", "observe", "off"]
"""Rewritten where needed; only recorded; neither."""
Auth = Literal["keys", "passthrough", "none"]
"""Who is let in: who shows a key of ours, a credential for the upstream, or anybody on this machine."""


class Account(Protocol):
    """What a client may still use. Its figures are for the whole day and all processes."""

    def admit(self) -> None:
        """Count a request; `Refused` where a limit is reached."""
        ...

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        """Count what a call to a model used."""
        ...


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request of a client to a provider's protocol."""

    api: Api
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    raw: bytes
    """The body as it came, in whatever encoding."""
    body: bytes
    """The same, decoded: what is inspected."""
    tenant: str
    upstream: str
    """The address it goes to."""
    mode: Mode = "managed"
    account: Account | None = field(default=None, compare=False)
    """Who pays for what is done for it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What goes upstream. Not rewritten, it is the very bytes that came."""

    body: bytes
    rewritten: bool = False
    told: Mapping[str, str] = field(default_factory=dict)
    """Headers for the client: the thread, how often it was compacted, tokens before and after."""
    hold: bool = False
    """So full that an overflow is likely: a stream's first events are held until one tells."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, as far as it was heard."""

    status: int
    reply: Reply | None = None
    usage: CanonicalUsage | None = None
    estimated: bool = False


class Manager(Protocol):
    """Decides what goes upstream. Whatever it raises, the caller forwards the original bytes instead."""

    async def prepare(self, incoming: Incoming) -> Outgoing: ...

    async def refused(self, incoming: Incoming, sent: Outgoing, status: int, body: bytes) -> Outgoing | None:
        """After an error of the provider: what to send instead, None where the client gets the error."""
        ...

    async def tells(self, incoming: Incoming, sent: Outgoing) -> Mapping[str, str]:
        """What the client is told in the headers of its answer: nothing that is not certain."""
        ...

    async def answered(self, incoming: Incoming, sent: Outgoing, outcome: Outcome) -> None:
        """Record it; what is prepared in the background begins here."""
        ...
