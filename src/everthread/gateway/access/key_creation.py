"""Keys of the gateway: create, recognise and check them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from decimal import Decimal
from hashlib import sha256

from everthread.errors import InputError
from everthread.gateway.contracts import Mode
from everthread.store.key_records import KeyLimits, NewKey
from everthread.store.records import DEFAULT_TENANT

KEY_PREFIX = "et_"
KEY_PATTERN = re.compile(KEY_PREFIX + r"([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
"""Matches a key of a gateway."""
SCOPES = {
    "proxy": "the providers' endpoints",
    "threads": "the conversations under /api",
    "tools": "terminal and files in these conversations",
}
"""Scopes of a key."""
_TENANT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_MAX_DAILY_COUNT = 10**15
_MAX_DAILY_DOLLARS = Decimal(1_000_000)


def issue_key(
    *,
    tenant: str = DEFAULT_TENANT,
    scopes: Iterable[str] = ("proxy",),
    limits: KeyLimits | None = None,
    name: str = "",
    mode: Mode | None = None,
) -> tuple[str, NewKey]:
    """Create a key; return the key and the record to store."""
    key_scopes = frozenset(scopes)
    if unknown := sorted(key_scopes - SCOPES.keys()):
        raise InputError(f"there is no scope {', '.join(unknown)}; there are {', '.join(SCOPES)}")
    if not key_scopes:
        raise InputError(f"a key needs at least one scope; there are {', '.join(SCOPES)}")
    if not _TENANT_PATTERN.fullmatch(tenant):
        raise InputError(
            f"{tenant!r} cannot be a tenant: up to 100 letters, digits and . _ @ -, a letter or digit first"
        )
    if len(name) > 200 or not name.isprintable():
        raise InputError(f"{name[:50]!r} cannot be a key's name: up to 200 characters on one line")
    _check_limits(limits or KeyLimits())
    key_id = secrets.token_hex(6)
    token = f"{KEY_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    return token, NewKey(
        key_id,
        digest_of(token),
        tenant=tenant,
        scopes=key_scopes,
        limits=limits or KeyLimits(),
        name=name,
        mode=mode,
    )


def digest_of(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def is_key(text: str) -> bool:
    """Return whether a text has the form of a gateway key."""
    return KEY_PATTERN.fullmatch(text) is not None


def key_id_in(text: str) -> str:
    """Return the key's id from a person's input: the id with or without `et_`, or the whole key."""
    match = KEY_PATTERN.fullmatch(text)
    return match[1] if match else text.removeprefix(KEY_PREFIX)


def _check_limits(limits: KeyLimits) -> None:
    for unit, max_limit in (
        ("requests", _MAX_DAILY_COUNT),
        ("tokens", _MAX_DAILY_COUNT),
        ("dollars", _MAX_DAILY_DOLLARS),
    ):
        limit: int | Decimal | None = getattr(limits, unit)
        is_finite = not isinstance(limit, Decimal) or limit.is_finite()
        if limit is not None and not (is_finite and 0 <= limit <= max_limit):
            raise InputError(
                f"{limit} {unit} per day cannot be a limit; it is between 0 and {max_limit:,}"
            )
