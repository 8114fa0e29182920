"""Keys of the gateway, their use by day, and secrets that all gateways on a store share."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.database import Row, Tx, make_equality_condition, placeholders
from everthread.store.key_records import KeyLimits, KeyUse, NewKey, StoredKey
from everthread.store.value_codec import PICO_DOLLARS_PER_DOLLAR, to_pico_dollars

SELECT_KEYS = (
    "SELECT k.id, k.digest, k.name, k.tenant, k.scopes, k.mode, k.requests_per_day, k.tokens_per_day, "
    "k.pico_dollars_per_day, k.created, k.revoked_at, "
    "(SELECT MAX(last_used_at) FROM key_days WHERE key_id = k.id), "
    "COALESCE(d.requests, 0), COALESCE(d.tokens, 0), COALESCE(d.pico_dollars, 0) "
    "FROM api_keys k LEFT JOIN key_days d ON d.key_id = k.id AND d.day = ?"
)
"""Keys with their last use and their use on a day."""
ADD_USE = (
    "INSERT INTO key_days (key_id, day, requests, tokens, pico_dollars, last_used_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (key_id, day) DO UPDATE SET requests = key_days.requests + excluded.requests, "
    "tokens = key_days.tokens + excluded.tokens, "
    "pico_dollars = key_days.pico_dollars + excluded.pico_dollars, last_used_at = excluded.last_used_at "
    "RETURNING requests, tokens, pico_dollars"
)


def create_key(tx: Tx, now: float, new: NewKey) -> None:
    limits = new.limits
    values = (
        new.id,
        new.digest,
        new.name,
        new.tenant,
        " ".join(sorted(new.scopes)),
        new.mode,
        limits.requests,
        limits.tokens,
        to_pico_dollars(limits.dollars),
        now,
    )
    tx.run(
        "INSERT INTO api_keys (id, digest, name, tenant, scopes, mode, requests_per_day, tokens_per_day, "
        f"pico_dollars_per_day, created) VALUES ({placeholders(values)})",
        values,
    )


def find_key(tx: Tx, digest: str, day: str) -> StoredKey | None:
    """Return the key with this digest and its use on a day, even if it was revoked."""
    row = tx.one(f"{SELECT_KEYS} WHERE k.digest = ?", (day, digest))
    return None if row is None else _decode_key(row)


def list_keys(tx: Tx, day: str, *, tenant: str | None = None) -> list[StoredKey]:
    """Return all keys with their use on a day, also revoked ones, the newest first."""
    where, values = make_equality_condition({"k.tenant": tenant})
    rows = tx.all(
        f"{SELECT_KEYS} WHERE {where} ORDER BY k.created DESC, k.id",
        (day, *values),
    )
    return [_decode_key(row) for row in rows]


def revoke_key(tx: Tx, now: float, key_id: str) -> float:
    """Revoke a key; return when it was first revoked. Raise `UnknownIdError` if there is no such key."""
    row = tx.one(
        "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, ?) WHERE id = ? RETURNING revoked_at",
        (now, key_id),
    )
    if row is None:
        raise UnknownIdError(f"there is no key {key_id}; `everthread keys list` shows all keys")
    return float(row[0])


def add_use(tx: Tx, now: float, day: str, uses: Mapping[str, KeyUse]) -> dict[str, KeyUse]:
    """Add to the use of keys, by their ids; return the day's sums, with the use by other processes.

    The rows are locked in the order of the ids, so that two processes do not wait for each other.
    """
    sums_by_key: dict[str, KeyUse] = {}
    for key_id, use in sorted(uses.items()):
        [row] = tx.all(
            ADD_USE,
            (key_id, day, use.requests, use.tokens, to_pico_dollars(use.dollars), now),
        )
        sums_by_key[key_id] = _decode_use(row)
    return sums_by_key


def find_secret(tx: Tx, name: str) -> bytes | None:
    row = tx.one("SELECT value FROM shared_secrets WHERE name = ?", (name,))
    return None if row is None else bytes(row[0])


def load_or_store_secret(tx: Tx, name: str, new_secret: bytes) -> bytes:
    """Insert the secret, or read the one that was stored first."""
    tx.run(
        "INSERT INTO shared_secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (name, new_secret),
    )
    secret = find_secret(tx, name)
    if secret is None:
        raise StoreDamagedError(f"the shared secret {name} was neither stored nor found")
    return secret


def _decode_use(row: Row) -> KeyUse:
    return KeyUse(row[0], row[1], row[2] / PICO_DOLLARS_PER_DOLLAR)


def _decode_key(row: Row) -> StoredKey:
    """Return the key in a row of `SELECT_KEYS`."""
    limits = KeyLimits(row[6], row[7], None if row[8] is None else row[8] / PICO_DOLLARS_PER_DOLLAR)
    key = NewKey(
        row[0],
        row[1],
        tenant=row[3],
        scopes=frozenset(row[4].split()),
        limits=limits,
        name=row[2],
        mode=row[5],
    )
    return StoredKey(key, row[9], row[10], row[11], _decode_use(row[12:]))
