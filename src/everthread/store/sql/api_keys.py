"""Keys of the gateway, their use by day, and secrets that all gateways on a store share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.database import Row, Tx, placeholders
from everthread.store.key_records import KeyLimits, KeyUse, NewKey, StoredKey
from everthread.store.value_codec import PICO_DOLLARS_PER_DOLLAR, to_pico_dollars

KEY_COLUMNS = (
    "k.id, k.digest, k.name, k.tenant, k.scopes, k.mode, k.requests_per_day, k.tokens_per_day, k.pico_dollars_per_day, "
    "k.created, k.revoked_at"
)
SELECT_KEY = f"SELECT {KEY_COLUMNS} FROM api_keys k"
SUM_USE_OF_DAY = (
    "SELECT COALESCE(SUM(d.requests), 0), COALESCE(SUM(d.tokens), 0), COALESCE(SUM(d.pico_dollars), 0), "
    "COALESCE(SUM(d.fresh), 0) FROM "
    "(SELECT requests, tokens, pico_dollars, 0 AS fresh FROM key_days WHERE key_id = ? AND day = ? UNION ALL "
    "SELECT requests, tokens, pico_dollars, 1 FROM key_uses WHERE key_id = ? AND day = ?) d"
)
"""The use of a key on a day, and how many of its rows are not summed up yet."""
SELECT_LAST_USED = (
    "SELECT MAX(u.used_at) FROM (SELECT last_used_at AS used_at FROM key_days WHERE key_id = ? UNION ALL "
    "SELECT used_at FROM key_uses WHERE key_id = ?) u"
)
MAX_UNSUMMED_ROWS = 64
"""Number of rows of a key's day from which they are replaced with their sum."""


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
    keys = _load_keys(tx, f"{SELECT_KEY} WHERE k.digest = ?", (digest,), day)
    return keys[0] if keys else None


def list_keys(tx: Tx, day: str, *, tenant: str | None = None) -> list[StoredKey]:
    """Return all keys, also revoked ones, the newest first."""
    where, values = ("", ()) if tenant is None else (" WHERE k.tenant = ?", (tenant,))
    return _load_keys(tx, f"{SELECT_KEY}{where} ORDER BY k.created DESC, k.id", values, day)


def _load_keys(tx: Tx, sql: str, values: Sequence[str], day: str) -> list[StoredKey]:
    """Return the selected keys with their use on a day."""
    rows = tx.all(sql, values)
    uses_of_day = tx.all_of_each([(SUM_USE_OF_DAY, (row[0], day, row[0], day)) for row in rows])
    last_times = tx.all_of_each([(SELECT_LAST_USED, (row[0], row[0])) for row in rows])
    return [
        _decode_key(row, use[0], last_time[0][0])
        for row, use, last_time in zip(rows, uses_of_day, last_times, strict=True)
    ]


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

    Each use is a new row, so that writers do not block each other.
    """
    sums_by_key: dict[str, KeyUse] = {}
    for key_id, use in sorted(uses.items()):
        tx.run(
            "INSERT INTO key_uses (key_id, day, requests, tokens, pico_dollars, used_at) VALUES (?, ?, ?, ?, ?, ?)",
            (key_id, day, use.requests, use.tokens, to_pico_dollars(use.dollars), now),
        )
        row = tx.one(SUM_USE_OF_DAY, (key_id, day, key_id, day))
        assert row is not None
        if row[3] >= MAX_UNSUMMED_ROWS:
            _move_uses_to_day(tx, key_id, day)
        sums_by_key[key_id] = _decode_use(row)
    return sums_by_key


def _move_uses_to_day(tx: Tx, key_id: str, day: str) -> None:
    """Move a key's uses of one day from `key_uses` into its row in `key_days`. Leave locked rows for later."""
    ids = [
        row[0]
        for row in tx.all(
            "SELECT id FROM key_uses WHERE key_id = ? AND day = ? ORDER BY id "
            f"LIMIT {MAX_UNSUMMED_ROWS} {tx.dialect.skip_locked}",
            (key_id, day),
        )
    ]
    if not ids:
        return
    rows = tx.all(
        f"DELETE FROM key_uses WHERE id IN ({placeholders(ids)}) RETURNING requests, tokens, pico_dollars, used_at",
        ids,
    )
    requests, tokens, pico_dollars, use_times = zip(*rows, strict=True)
    tx.run(
        "INSERT INTO key_days (key_id, day, requests, tokens, pico_dollars, last_used_at) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (key_id, day) DO UPDATE SET requests = key_days.requests + excluded.requests, "
        "tokens = key_days.tokens + excluded.tokens, "
        "pico_dollars = key_days.pico_dollars + excluded.pico_dollars, last_used_at = excluded.last_used_at",
        (key_id, day, sum(requests), sum(tokens), sum(pico_dollars), max(use_times)),
    )


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
    return KeyUse(int(row[0]), int(row[1]), int(row[2]) / PICO_DOLLARS_PER_DOLLAR)


def _decode_key(row: Row, use: Row, last_used: float | None) -> StoredKey:
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
    return StoredKey(key, row[9], row[10], last_used, _decode_use(use))
