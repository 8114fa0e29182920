"""Who calls: what the proxy and the native API know of a client, and how one is turned away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from everthread.gateway.base import Account, Mode
from everthread.store.models import DEFAULT_TENANT


class Credential(Protocol):
    """A client's credential for the upstream: nothing is done for one that no upstream has accepted."""

    async def is_accepted(self) -> bool: ...

    async def accept(self) -> None:
        """An upstream answered to it with anything but 401 and 403."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that was let in."""

    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()
    passthrough: bool = False
    """Its credential is the upstream's own and goes there; a gateway key never leaves the gateway."""
    mode: Mode | None = None
    """What its key says; None leaves it to the upstream's setting."""
    account: Account | None = field(default=None, compare=False, repr=False)
    """What its key may still use; None: there is no limit."""
    credential: Credential | None = field(default=None, compare=False, repr=False)
    """One that only the upstream can check; None: it was checked here."""

    def admit(self) -> None:
        """Count a request; `Refused` where a limit is reached."""
        if self.account is not None:
            self.account.admit()


class Refused(Exception):  # noqa: N818  it is an answer, not a failure
    """Not let in, or not now: a status, a short code, and a sentence for the person."""

    def __init__(self, status: int, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after


class Authenticator(Protocol):
    """Decides who a request comes from. Raises `Refused`."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """`headers` have lower-case names."""
        ...


class Anybody:
    """No keys: whoever reaches the loopback address is the one user of this machine."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:  # noqa: ARG002  nothing in them matters
        return Caller(passthrough=True)
