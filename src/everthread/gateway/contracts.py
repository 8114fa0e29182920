"""Values and interfaces between the HTTP part, which forwards requests, and the manager, which rewrites them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.types import Api, Reply
from everthread.thread.caller.sent_history import Outcome, Replacement

if TYPE_CHECKING:
    from everthread.gateway.request.known_bodies import BodyMatch, BodyOrigin
    from everthread.gateway.request.request_reader import BodyOutline

THREAD_HEADER = "x-everthread-thread"
COMPACTIONS_HEADER = "x-everthread-compactions"
TOKENS_HEADER = "x-everthread-tokens"
NOTICE_HEADER = "x-everthread-notice"
PLAN_HEADER = "x-everthread-plan"
RECEIPT_HEADER = "x-everthread-receipt"
"""Everthread headers in an answer."""

CREDENTIAL_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Headers in which a client shows a credential."""

Mode = Literal["managed", "observe", "off"]
"""Rewritten where needed; only recorded; neither."""
Auth = Literal["keys", "passthrough", "none"]
"""Who may use the gateway: holders of its keys, of an upstream credential, or anyone on this machine."""


@dataclass(frozen=True)
class Limits:
    """What clients can ask of the gateway; its defaults are those of the config.

    Bytes are counted as they come and again once decoded; seconds are those of waiting, not of a whole answer.
    """

    body_bytes: int = 64 * 1024 * 1024
    header_bytes: int = 64 * 1024
    concurrent: int = 256
    header_seconds: float = 15.0
    """Until a request's headers are complete."""
    body_seconds: float = 120.0
    """Until its body is."""
    connect_seconds: float = 10.0
    answer_seconds: float = 600.0
    """Between two pieces of an upstream's answer."""
    write_seconds: float = 60.0
    """Until a client took one piece of it."""
    manage_seconds: float = 180.0
    """For a decision of the manager, summary included; then the original goes."""
    hold_seconds: float = 10.0
    """How long the first events of a stream are held at most."""
    keepalive_seconds: float = 3.0
    """Between two comments to a client that waits for a stream."""
    silence_seconds: float = 20.0
    """How long a compaction keeps such a client waiting without one; see `streaming`."""


class Account(Protocol):
    """The remaining allowance of a client, for the whole day and all processes."""

    def admit(self) -> None:
        """Count a request; `Refused` where a limit is reached."""
        ...

    def authorize(self, usage: CanonicalUsage, model: str) -> None:
        """Raise `Refused` if a call that uses this much would go beyond a limit. Nothing is counted."""
        ...

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        """Count what a call to a model used."""
        ...


Authorize = Callable[[CanonicalUsage, str], Awaitable[None]]
"""Raise `Refused` unless a client may spend this usage on the operator's own key; `auth.Caller.authorize`."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request of a client to a provider's protocol."""

    api: Api
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    raw: bytes
    """The received body, still encoded."""
    body: bytes
    """The decoded body, which is inspected."""
    tenant: str
    upstream: str
    """The address it goes to."""
    mode: Mode = "managed"
    account: Account | None = field(default=None, compare=False)
    """The account that is charged for this request."""
    authorize: Authorize | None = field(default=None, compare=False, repr=False)
    """Asked before the operator's own key is used for this request; None: there is one user, the operator."""
    outline: BodyOutline | None = field(default=None, compare=False, repr=False)
    """Where its fields and messages are, as the manager found them."""
    replacement: Replacement | None = None
    """The compaction that replaces earlier messages, if it holds an item made by a gateway."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The request to send upstream; if not rewritten, the client's own bytes."""

    body: bytes
    rewritten: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the client: how often the thread was compacted, tokens before and after."""
    compactions: int = 0
    """How often the thread was compacted."""
    tokens: int | None = None
    """Estimated prompt tokens; None if not estimated."""
    hold: bool = False
    """An overflow is likely, so hold a stream's first events until one shows success."""
    recall: bool = False
    """It offers our own tool: its calls are answered here and never reach the client."""


class ProxyTurn(Protocol):
    """One request from its arrival to its answer."""

    @property
    def thread(self) -> str:
        """The id of the thread it belongs to; empty if it is not managed."""
        ...

    @property
    def sent(self) -> Outgoing:
        """The request to send upstream."""
        ...

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        """Return the request to send after an error of the provider; None if the client gets the error."""
        ...

    async def resume(self, reply: Reply) -> Outgoing | None:
        """Return the next request after a round that called the gateway's own tool; None if the response ends."""
        ...

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:
        """Return a smaller request, without the tool, after the one of `resume` was refused.

        If that is refused as well, ask again; None if there is none left.
        """
        ...

    async def response_headers(self) -> Mapping[str, str]:
        """Return the headers for the client."""
        ...

    async def record(self, outcome: Outcome) -> None:
        """Store the reply and the usage, and start background work."""
        ...


class BodyReader(Protocol):
    """Locate the messages of a body, reusing results of earlier bodies."""

    def find_known(self, origin: BodyOrigin, body: bytes) -> BodyMatch | None:
        """Find an earlier body that this one agrees with in part."""
        ...

    def locate(
        self, origin: BodyOrigin, body: bytes, match: BodyMatch | None
    ) -> BodyOutline | None:
        """Locate the fields and messages of a body. Raise `WireError` if it cannot be read."""
        ...


class Manager(Protocol):
    """Decide what goes upstream. Whatever it raises, the caller forwards the original bytes instead."""

    @property
    def reader(self) -> BodyReader: ...

    def forward_first(self, incoming: Incoming) -> ProxyTurn | None:
        """Return the turn of a request that can be forwarded before it is read; None if it cannot."""
        ...

    async def prepare(self, incoming: Incoming) -> ProxyTurn: ...

    async def finish_records(self) -> None:
        """Make the records that wait."""
        ...


class UnmanagedTurn:
    """A request that is forwarded unchanged, and not stored."""

    thread = ""

    def __init__(self, incoming: Incoming) -> None:
        self.sent = Outgoing(incoming.raw)

    async def recover(self, status: int, body: bytes) -> Outgoing | None:  # noqa: ARG002
        return None

    async def resume(self, reply: Reply) -> Outgoing | None:  # noqa: ARG002
        return None

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:  # noqa: ARG002
        return None

    async def response_headers(self) -> Mapping[str, str]:
        return self.sent.headers

    async def record(self, outcome: Outcome) -> None:
        """Nothing is kept."""
