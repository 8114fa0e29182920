"""Values about keys of the gateway: their limits and their use."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of a key for one UTC day. A limit that is None does not apply."""

    requests: int | None = None
    tokens: int | None = None
    dollars: Decimal | None = None


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a key in a period."""

    requests: int = 0
    tokens: int = 0
    dollars: Decimal = Decimal(0)

    def __add__(self, other: KeyUse) -> KeyUse:
        return KeyUse(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.dollars + other.dollars,
        )


NO_USE = KeyUse()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to store."""

    id: str
    """The readable part of the key; not secret."""
    digest: str
    """SHA-256 of the key, in hex."""
    tenant: str
    scopes: frozenset[str]
    limits: KeyLimits = field(default_factory=KeyLimits)
    name: str = ""
    mode: str | None = None
    """The mode that overrides the upstream's setting, or None for no override."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A stored key."""

    key: NewKey
    created: float
    revoked_at: float | None
    last_used_at: float | None
    use_of_day: KeyUse
    """The use on the day that the caller asked for."""
