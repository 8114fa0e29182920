"""Keys of the gateway: how one is made, recognised and told apart from a provider's.

A key is `et_`, the id it is known by, and 256 random bits. It is shown once; what is kept is its digest, which a plain
SHA-256 may make: nobody guesses 256 bits.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from decimal import Decimal
from hashlib import sha256

from everthread.errors import InputError
from everthread.gateway.base import Mode
from everthread.store.models import DEFAULT_TENANT, KeyLimits, NewKey

SCOPES = {
    "proxy": "the providers' endpoints",
    "threads": "the conversations under /api",
    "tools": "terminal and files in these conversations",
}
"""What a key may be good for."""
PREFIX = "et_"
_KEY = re.compile(r"et_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_KEY_BYTES = re.compile(_KEY.pattern.encode())
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_MOST = 10**15
_MOST_DOLLARS = Decimal(1_000_000)


def issue(
    *,
    tenant: str = DEFAULT_TENANT,
    scopes: Iterable[str] = ("proxy",),
    limits: KeyLimits | None = None,
    name: str = "",
    mode: Mode | None = None,
) -> tuple[str, NewKey]:
    """A new key, and what is kept of it."""
    chosen = frozenset(scopes)
    if unknown := sorted(chosen - SCOPES.keys()):
        raise InputError(f"there is no scope {', '.join(unknown)}; there are {', '.join(SCOPES)}")
    if not chosen:
        raise InputError(f"a key without a scope is good for nothing; there are {', '.join(SCOPES)}")
    if not _TENANT.fullmatch(tenant):
        raise InputError(
            f"{tenant!r} cannot be a tenant: up to 100 letters, digits and . _ @ -, a letter or digit first"
        )
    if len(name) > 200 or not name.isprintable():
        raise InputError(f"{name[:50]!r} cannot be a key's name: up to 200 characters on one line")
    _check(limits or KeyLimits())
    key_id = secrets.token_hex(6)
    token = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    return token, NewKey(key_id, digest_of(token), tenant, chosen, limits or KeyLimits(), name, mode)


def without_keys(text: bytes) -> bytes:
    """A header's value or a query in which no key of ours stands."""
    return _KEY_BYTES.sub(b"", text) if PREFIX.encode() in text else text


def digest_of(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def is_key(text: str) -> bool:
    """Whether it has the form of a key of a gateway."""
    return _KEY.fullmatch(text) is not None


def id_in(text: str) -> str:
    """The id in what a person writes for a key: the id, with `et_` or without, or the whole key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else text.removeprefix(PREFIX)


def _check(limits: KeyLimits) -> None:
    counts: list[tuple[str, int | Decimal | None, int | Decimal]] = [
        ("requests", limits.requests, _MOST),
        ("tokens", limits.tokens, _MOST),
        ("dollars", limits.dollars, _MOST_DOLLARS),
    ]
    for what, limit, most in counts:
        finite = not isinstance(limit, Decimal) or limit.is_finite()
        if limit is not None and not (finite and 0 <= limit <= most):
            raise InputError(f"{limit} {what} per day cannot be a limit; it is between 0 and {most:,}")
