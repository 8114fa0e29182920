"""Values and interfaces between the proxy, which forwards requests, and the manager, which rewrites them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Api, ModelReply
from everthread.thread.caller.caller_request import LeadingCompaction, Outcome

if TYPE_CHECKING:
    from everthread.gateway.request.body_reading import RequestBody
    from everthread.gateway.request.request_head import RequestHead
    from everthread.gateway.request.request_reader import RequestReader

THREAD_HEADER = "x-everthread-thread"
COMPACTIONS_HEADER = "x-everthread-compactions"
TOKENS_HEADER = "x-everthread-tokens"
NOTICE_HEADER = "x-everthread-notice"
PLAN_HEADER = "x-everthread-plan"
RECEIPT_HEADER = "x-everthread-receipt"
"""Everthread's headers in an answer."""

CREDENTIAL_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Headers in which a client sends a credential."""

Mode = Literal["managed", "observe", "off"]
"""Whether requests are rewritten if needed, only recorded, or neither."""
Auth = Literal["keys", "passthrough", "none"]
"""Who may use the gateway: clients with a gateway key or with an upstream credential, or anyone on this machine."""


@dataclass(frozen=True)
class GatewayLimits:
    """Limits of the gateway; the defaults are those of the configuration.

    Bytes are counted as received and again after decoding. Seconds limit a single wait, not a whole answer.
    """

    body_bytes: int = 64 * 1024 * 1024
    header_bytes: int = 64 * 1024
    concurrent: int = 256
    header_seconds: float = 15.0
    """Time for a request's headers to arrive."""
    body_seconds: float = 120.0
    """Time for a request's body to arrive."""
    connect_seconds: float = 10.0
    max_answer_gap_seconds: float = 600.0
    """Maximum time between two pieces of an upstream's answer."""
    write_seconds: float = 60.0
    """Time for a client to read one piece of an answer."""
    manage_seconds: float = 180.0
    """Time for a decision of the manager, including a summary; after it the original request is forwarded."""
    hold_seconds: float = 10.0
    """Maximum time for which the first events of a stream are held back."""
    keepalive_seconds: float = 3.0
    """Time between two comments to a client that waits for a stream."""
    silence_seconds: float = 20.0
    """Time until the first comment to a client that waits for a compaction."""


class Account(Protocol):
    """The remaining allowance of a client, for the whole day and all processes."""

    def admit(self) -> None:
        """Count a request. Raise `RequestRefused` if a limit is reached."""
        ...

    def authorize(self, usage: CanonicalUsage, model: str) -> None:
        """Raise `RequestRefused` if a call with this usage would exceed a limit. Count nothing."""
        ...

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        """Count the usage of a call to a model."""
        ...


Authorize = Callable[[CanonicalUsage, str], Awaitable[None]]
"""Raises `RequestRefused` unless a client may spend this usage on the operator's own key (`Caller.authorize`)."""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """One request of a client in a provider's protocol."""

    head: RequestHead
    body: RequestBody
    api: Api
    upstream_url: str
    """The address of the upstream that the request is for."""
    mode: Mode = "managed"
    leading_compaction: LeadingCompaction | None = None
    """The compaction that replaces earlier messages, if the request contains a compaction item made by a gateway."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The request to send upstream: a rewritten one, or the client's own bytes."""

    body: bytes
    is_rewritten: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers for the client: number of compactions, tokens before and after."""
    compaction_count: int = 0
    """Number of compactions of the thread."""
    tokens: int | None = None
    """Estimated prompt tokens, or None if not estimated."""
    should_hold_first_events: bool = False
    """Whether an overflow is likely, so that a stream's first events are held back until one shows success."""
    offers_recall: bool = False
    """Whether it offers our own tool, whose calls are answered here and never reach the client."""


class RequestHandler(Protocol):
    """Decides about one request, from its arrival to the record of its answer."""

    @property
    def thread(self) -> str:
        """The id of the request's thread."""
        ...

    @property
    def outgoing(self) -> Outgoing:
        """The request to send upstream."""
        ...

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        """Return another request to send after an error of the provider; None to pass the error to the client."""
        ...

    async def resume_after_recall(self, reply: ModelReply) -> Outgoing | None:
        """Return the next request after a round of the gateway's own tool, or None if the round was the last."""
        ...

    async def retry_without_recall(self, reply: ModelReply) -> Outgoing | None:
        """Return a smaller request without the tool, after the request of `resume_after_recall` was refused.

        If this request is refused too, call again; None means that no smaller one is left.
        """
        ...

    async def make_response_headers(self) -> Mapping[str, str]:
        """Return the headers for the client."""
        ...

    async def record(self, outcome: Outcome) -> None:
        """Store the reply and the usage, and start background work."""
        ...


class RequestManager(Protocol):
    """Decides on the requests to send upstream. If a method raises, the caller forwards the original bytes."""

    @property
    def reader(self) -> RequestReader | None:
        """Reads the bodies of requests, or None if only their outer fields are read."""
        ...

    def forward_first(self, incoming: IncomingRequest) -> RequestHandler | None:
        """Return the handler of a request that can be forwarded before it is read, or None if it cannot."""
        ...

    async def prepare(self, incoming: IncomingRequest) -> RequestHandler | None:
        """Read a request, find its thread and decide which request to send, or None if it is not managed."""
        ...
