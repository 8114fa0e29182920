"""Keys, what was done with them, and secrets the gateways of one store share."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.database import Row, Tx, placeholders
from everthread.store.models import KeyLimits, KeyUse, NewKey, StoredKey
from everthread.store.sql.usage import PICO, as_pico

KEY_COLUMNS = (
    "k.id, k.digest, k.name, k.tenant, k.scopes, k.mode, k.requests_per_day, k.tokens_per_day, k.pico_dollars_per_day, "
    "k.created, k.revoked, (SELECT MAX(l.last_used) FROM key_days l WHERE l.key_id = k.id), "
    "d.requests, d.tokens, d.pico_dollars"
)
SELECT_KEY = f"SELECT {KEY_COLUMNS} FROM api_keys k LEFT JOIN key_days d ON d.key_id = k.id AND d.day = ?"


def create_key(tx: Tx, new: NewKey, now: float) -> None:
    limits = new.limits
    values = (
        new.id, new.digest, new.name, new.tenant, " ".join(sorted(new.scopes)), new.mode, limits.requests,
        limits.tokens, as_pico(limits.dollars), now,
    )  # fmt: skip
    tx.run(
        "INSERT INTO api_keys (id, digest, name, tenant, scopes, mode, requests_per_day, tokens_per_day, "
        f"pico_dollars_per_day, created) VALUES ({placeholders(values)})",
        values,
    )


def find_key(tx: Tx, digest: str, day: str) -> StoredKey | None:
    row = tx.one(f"{SELECT_KEY} WHERE k.digest = ?", (day, digest))
    return None if row is None else _as_key(row)


def list_keys(tx: Tx, day: str, tenant: str | None) -> list[StoredKey]:
    where, values = ("", (day,)) if tenant is None else (" WHERE k.tenant = ?", (day, tenant))
    return [_as_key(row) for row in tx.all(f"{SELECT_KEY}{where} ORDER BY k.created DESC, k.id", values)]


def revoke_key(tx: Tx, key_id: str, now: float) -> float:
    row = tx.one(
        "UPDATE api_keys SET revoked = COALESCE(revoked, ?) WHERE id = ? RETURNING revoked",
        (now, key_id),
    )
    if row is None:
        raise UnknownIdError(f"there is no key {key_id}; `everthread keys list` shows those there are")
    return float(row[0])


def count_use(tx: Tx, day: str, uses: Mapping[str, KeyUse], now: float) -> dict[str, KeyUse]:
    """In the order of ids: two processes that count the same keys never wait for each other in a circle."""
    sums: dict[str, KeyUse] = {}
    for key_id, use in sorted(uses.items()):
        row = tx.one(
            "INSERT INTO key_days (key_id, day, requests, tokens, pico_dollars, last_used) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (key_id, day) DO UPDATE SET requests = key_days.requests + excluded.requests, "
            "tokens = key_days.tokens + excluded.tokens, "
            "pico_dollars = key_days.pico_dollars + excluded.pico_dollars, last_used = excluded.last_used "
            "RETURNING requests, tokens, pico_dollars",
            (key_id, day, use.requests, use.tokens, as_pico(use.dollars), now),
        )
        if row is None:
            raise StoreDamagedError(f"what was done with the key {key_id} was neither stored nor found")
        sums[key_id] = _as_use(row)
    return sums


def shared_secret(tx: Tx, name: str, fresh: bytes) -> bytes:
    """Insert, or read who was first."""
    tx.run("INSERT INTO shared_secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, fresh))
    row = tx.one("SELECT value FROM shared_secrets WHERE name = ?", (name,))
    if row is None:
        raise StoreDamagedError(f"the shared secret {name} was neither stored nor found")
    return bytes(row[0])


def _as_use(row: Row) -> KeyUse:
    return KeyUse(int(row[0]), int(row[1]), row[2] / PICO)


def _as_key(row: Row) -> StoredKey:
    limits = KeyLimits(row[6], row[7], None if row[8] is None else row[8] / PICO)
    key = NewKey(row[0], row[1], row[3], frozenset(row[4].split()), limits, row[2], row[5])
    return StoredKey(key, row[9], row[10], row[11], KeyUse() if row[12] is None else _as_use(row[12:]))
