"""Store the windows and output caps that providers stated, and the largest prompts that they accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from everthread.core.utc_days import DAY_SECONDS
from everthread.store.database import Tx, make_equality_condition, placeholders
from everthread.store.records import LearntLimits, LimitKey, LimitKind, ModelLimit

LIMIT_LIFE_SECONDS = 7 * DAY_SECONDS
"""Seconds until a learnt limit expires, because providers change them. For as long an accepted prompt disproves smaller
windows."""
LIMIT_COLUMNS = (
    "base_url, model, headers, tokens, source, learnt, expires, tenant, kind, credential"
)


def learn_limit(
    tx: Tx, now: float, key: LimitKey, limit: int, *, source: str, kind: LimitKind = "window"
) -> ModelLimit:
    """Store a limit that a provider stated, replacing the last one that the key's credential met."""
    new = ModelLimit(
        key.base_url,
        key.model,
        headers=key.headers,
        limit=limit,
        source=source,
        learnt=now,
        expires=now + LIMIT_LIFE_SECONDS,
        tenant=key.tenant,
        kind=kind,
        credential=key.credential,
    )
    values = dataclasses.astuple(new)
    tx.run(
        f"INSERT INTO model_limits ({LIMIT_COLUMNS}) VALUES ({placeholders(values)}) "
        "ON CONFLICT (base_url, model, headers, kind, tenant, credential) DO UPDATE SET tokens = excluded.tokens, "
        "source = excluded.source, learnt = excluded.learnt, expires = excluded.expires",
        values,
    )
    return new


def load_limits(tx: Tx, key: LimitKey, now: float) -> LearntLimits:
    """Return a tenant's limits: its own if it has any, or those that two credentials met.

    A window smaller than a prompt that was accepted is left out.
    """
    where = "base_url = ? AND model = ? AND headers = ?"
    values = (key.base_url, key.model, key.headers)
    rows, success_rows = tx.all_of_each(
        [
            (
                f"SELECT {LIMIT_COLUMNS} FROM model_limits WHERE {where} AND expires > ?",
                (*values, now),
            ),
            (
                f"SELECT MAX(tokens) FROM model_successes WHERE {where} AND tenant = ? AND day > ?",
                (*values, key.tenant, (now - LIMIT_LIFE_SECONDS) // DAY_SECONDS),
            ),
        ]
    )
    limits = [ModelLimit(*row) for row in rows]
    largest_success = int(success_rows[0][0] or 0)
    windows = [
        limit
        for limit in _select_effective_limits(limits, "window", key.tenant)
        if limit.limit >= largest_success
    ]
    outputs = _select_effective_limits(limits, "output", key.tenant)
    return LearntLimits(
        min(windows, key=lambda limit: limit.limit, default=None),
        min(outputs, key=lambda limit: limit.limit, default=None),
        largest_success,
    )


def _select_effective_limits(
    limits: Sequence[ModelLimit], kind: LimitKind, tenant: str
) -> list[ModelLimit]:
    """Return the newest limit that the tenant learnt, or else the one that most credentials met, at least two."""
    limits_of_kind = [limit for limit in limits if limit.kind == kind]
    tenant_limits = [limit for limit in limits_of_kind if limit.tenant == tenant]
    if tenant_limits:
        return [max(tenant_limits, key=lambda limit: (limit.learnt, -limit.limit))]
    limits_by_size: dict[int, list[ModelLimit]] = {}
    for limit in limits_of_kind:
        limits_by_size.setdefault(limit.limit, []).append(limit)
    commonest_limits = max(limits_by_size.values(), key=len, default=[])
    if len({limit.credential for limit in commonest_limits}) < 2:
        return []
    return [max(commonest_limits, key=lambda limit: limit.learnt)]


def list_limits(tx: Tx, now: float) -> list[ModelLimit]:
    rows = tx.all(
        f"SELECT {LIMIT_COLUMNS} FROM model_limits WHERE expires > ? "
        "ORDER BY base_url, model, headers, kind, tenant, credential",
        (now,),
    )
    return [ModelLimit(*row) for row in rows]


def forget_limits(tx: Tx, *, base_url: str | None = None, model: str | None = None) -> int:
    """Delete the learnt limits of an address or a model, or all limits; return the number of deleted limits."""
    where, values = make_equality_condition({"base_url": base_url, "model": model})
    return len(tx.all(f"DELETE FROM model_limits WHERE {where} RETURNING model", values))


def record_success(tx: Tx, key: LimitKey, prompt_tokens: int, now: float) -> None:
    """Record that a prompt of this size was accepted, and delete smaller windows learnt by this tenant."""
    values = (key.tenant, key.base_url, key.model, key.headers)
    tx.run(
        "INSERT INTO model_successes (tenant, base_url, model, headers, day, tokens) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (base_url, model, headers, tenant, day) DO UPDATE SET tokens = excluded.tokens "
        "WHERE model_successes.tokens < excluded.tokens",
        (*values, int(now // DAY_SECONDS), prompt_tokens),
    )
    tx.run(
        "DELETE FROM model_limits WHERE tenant = ? AND base_url = ? AND model = ? AND headers = ? "
        "AND kind = 'window' AND tokens < ?",
        (*values, prompt_tokens),
    )
    tx.run(
        "DELETE FROM model_successes WHERE day < ?",
        (int((now - 2 * LIMIT_LIFE_SECONDS) // DAY_SECONDS),),
    )
