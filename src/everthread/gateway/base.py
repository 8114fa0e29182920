"""What passes between the HTTP side and the side that decides: a request as it came, and what goes upstream for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from everthread.core.messages import Message
from everthread.core.pricing import CanonicalUsage
from everthread.core.types import Api, Reply
from everthread.wire.codecs import CODECS

if TYPE_CHECKING:
    from everthread.gateway.management.reader import BodyOutline

THREAD_HEADER = "x-everthread-thread"
COMPACTIONS_HEADER = "x-everthread-compactions"
TOKENS_HEADER = "x-everthread-tokens"
NOTICE_HEADER = "x-everthread-notice"
PLAN_HEADER = "x-everthread-plan"
RECEIPT_HEADER = "x-everthread-receipt"
"""Headers of ours in an answer."""

CREDENTIAL_HEADERS = ("authorization", "x-api-key", "api-key")
"""Headers in which a client shows a credential."""

Mode = Literal["managed", "observe", "off"]
"""Rewritten where needed; only recorded; neither."""
Auth = Literal["keys", "passthrough", "none"]
"""Who is let in: who shows a key of ours, a credential for the upstream, or anybody on this machine."""


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
    """The decoded body, which is inspected."""
    tenant: str
    upstream: str
    """The address it goes to."""
    mode: Mode = "managed"
    account: Account | None = field(default=None, compare=False)
    """The account that is charged for this request."""
    outline: BodyOutline | None = field(default=None, compare=False, repr=False)
    """Where its fields and messages are, as the manager found them."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What goes upstream. Not rewritten, it is the very bytes that came."""

    body: bytes
    rewritten: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the client: how often the thread was compacted, tokens before and after."""
    compactions: int = 0
    """How often the thread was compacted."""
    tokens: int | None = None
    """The prompt's tokens as the provider counts them; None where nobody looked."""
    hold: bool = False
    """So full that an overflow is likely: a stream's first events are held until one tells."""
    notice: str = ""
    """A line for the person, at the end of the answer."""
    recall: bool = False
    """It offers our own tool: its calls are answered here and never reach the client."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, as far as the answer was read."""

    status: int
    reply: Reply | None = None
    usage: CanonicalUsage | None = None
    """The usage of the last round."""
    estimated: bool = False
    hidden: tuple[CanonicalUsage, ...] = ()
    """The usage of the earlier rounds, whose calls were answered here."""


class ProxyTurn(Protocol):
    """One request from its arrival to its answer."""

    @property
    def thread(self) -> str:
        """The id of the thread it belongs to; empty where nobody looked."""
        ...

    @property
    def sent(self) -> Outgoing:
        """What goes upstream as things stand."""
        ...

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        """After an error of the provider: what to send instead, None where the client gets the error."""
        ...

    async def resume(self, reply: Reply) -> Outgoing | None:
        """After a round in which our own tool was called: what goes upstream next, None where the response ends."""
        ...

    async def withdraw(self, reply: Reply) -> Outgoing | None:
        """After that was refused: the same with less, and the tool no longer offered."""
        ...

    async def response_headers(self) -> Mapping[str, str]:
        """The headers for the client; only what is certain."""
        ...

    async def record(self, outcome: Outcome) -> None:
        """Store what was said and used; what is prepared in the background begins here."""
        ...


class Manager(Protocol):
    """Decides what goes upstream. Whatever it raises, the caller forwards the original bytes instead."""

    def locate(self, api: Api, body: bytes) -> BodyOutline | None:
        """Where the fields and messages of a body are; None where it cannot be read here."""
        ...

    async def prepare(self, incoming: Incoming) -> ProxyTurn: ...


class UnmanagedTurn:
    """A request that goes as it came: nobody looks into it, and nothing of it is kept."""

    thread = ""

    def __init__(self, incoming: Incoming) -> None:
        self.sent = Outgoing(incoming.raw)

    async def recover(self, status: int, body: bytes) -> Outgoing | None:  # noqa: ARG002
        return None

    async def resume(self, reply: Reply) -> Outgoing | None:  # noqa: ARG002
        return None

    async def withdraw(self, reply: Reply) -> Outgoing | None:  # noqa: ARG002
        return None

    async def response_headers(self) -> Mapping[str, str]:
        return self.sent.headers

    async def record(self, outcome: Outcome) -> None:
        """Nothing is kept."""


def decode_messages(api: Api, values: Sequence[Any], model: str) -> list[Message]:
    """Wire messages in core form."""
    return CODECS[api].decode_messages(list(values), model=model)


def encode_messages(api: Api, messages: Sequence[Message], model: str) -> list[Any]:
    return CODECS[api].encode_messages(list(messages), model=model)
