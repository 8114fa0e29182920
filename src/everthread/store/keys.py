"""What is kept of the gateway's keys: a digest of each, what it may do, and what was done with it on each UTC day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """For one UTC day; None: no limit."""

    requests: int | None = None
    tokens: int | None = None
    dollars: Decimal | None = None


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What was done with a key in a time."""

    requests: int = 0
    tokens: int = 0
    dollars: Decimal = Decimal(0)

    def __add__(self, other: KeyUse) -> KeyUse:
        return KeyUse(self.requests + other.requests, self.tokens + other.tokens, self.dollars + other.dollars)


NOTHING = KeyUse()


@dataclass(frozen=True, slots=True)
class NewKey:
    id: str
    """Stands in the key itself, readable; no secret."""
    digest: str
    """SHA-256 of the key, in hex."""
    tenant: str
    scopes: frozenset[str]
    limits: KeyLimits = field(default_factory=KeyLimits)
    name: str = ""
    mode: str | None = None
    """Instead of what the upstream's setting says."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    key: NewKey
    created: float
    revoked: float | None
    last_used: float | None
    today: KeyUse
    """On the day that was asked for."""


class KeyStore(Protocol):
    """The part of a store that is about keys. A day is written 2026-01-31."""

    async def create_key(self, new: NewKey) -> None: ...

    async def find_key(self, digest: str, day: str) -> StoredKey | None:
        """Also one that was revoked."""
        ...

    async def list_keys(self, day: str, *, tenant: str | None = None) -> list[StoredKey]:
        """The newest first, revoked ones among them."""
        ...

    async def revoke_key(self, key_id: str) -> float:
        """When it was revoked: now, or before. `UnknownIdError` where there is none."""
        ...

    async def count_use(self, day: str, uses: Mapping[str, KeyUse]) -> dict[str, KeyUse]:
        """Add to what was done with keys, by their ids; the new sums of the day, those of other processes in them."""
        ...

    async def shared_secret(self, name: str) -> bytes:
        """A random number of 256 bits: the same for everybody who asks this store for this name."""
        ...
