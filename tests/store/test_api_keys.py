"""Keys, their use, and shared secrets: the same on each database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest

from everthread.errors import InputError, UnknownIdError
from everthread.store.key_records import NO_USE, KeyLimits, KeyUse, NewKey, StoredKey
from everthread.store.store import Store
from everthread.testing import SteppedClock

DAY = "2026-01-31"
NEXT = "2026-02-01"
KEY = NewKey(
    "0123456789ab",
    "f" * 64,
    "acme",
    frozenset({"proxy", "threads"}),
    KeyLimits(10, 2**40, Decimal("2.50")),
    "Ann's",
    "observe",
)


async def test_a_key_is_returned_unchanged(store: Store, clock: SteppedClock) -> None:
    made = clock.now
    await store.keys.create_key(KEY)
    clock.now += 1
    plain = NewKey(
        "b" * 12,
        "e" * 64,
        "other",
        frozenset({"proxy"}),
    )
    await store.keys.create_key(plain)
    stored_key = await store.keys.find_key(KEY.digest, DAY)
    assert stored_key == StoredKey(KEY, made, None, None, NO_USE)
    assert await store.keys.find_key("0" * 64, DAY) is None
    keys = await store.keys.list_keys(DAY)
    assert [found.key for found in keys] == [plain, KEY]
    keys = await store.keys.list_keys(DAY, tenant="acme")
    assert [found.key for found in keys] == [KEY]
    for same in (replace(KEY, id="c" * 12), replace(KEY, digest="c" * 64)):
        with pytest.raises(InputError):
            await store.keys.create_key(same)


async def test_a_key_is_revoked_once_and_stays_listed(store: Store, clock: SteppedClock) -> None:
    await store.keys.create_key(KEY)
    at = clock.now
    assert await store.keys.revoke_key(KEY.id) == at
    clock.now += 9
    assert await store.keys.revoke_key(KEY.id) == at, "when it was, not when it was asked for again"
    found = await store.keys.find_key(KEY.digest, DAY)
    assert found is not None
    assert found.revoked_at == at
    keys = await store.keys.list_keys(DAY)
    assert len(keys) == 1
    with pytest.raises(UnknownIdError, match="keys list"):
        await store.keys.revoke_key("nobody")


async def test_use_is_counted_by_day_and_key(store: Store, clock: SteppedClock) -> None:
    await store.keys.create_key(KEY)
    first = KeyUse(1, 2**33, Decimal("0.000000000001"))
    stored_sums = await store.keys.add_use(DAY, {KEY.id: first, "b" * 12: KeyUse(5)})
    assert stored_sums == {
        KEY.id: first,
        "b" * 12: KeyUse(5),
    }
    clock.now += 60
    sums = await store.keys.add_use(DAY, {KEY.id: KeyUse(2, 1, Decimal("1.25"))})
    assert sums == {KEY.id: KeyUse(3, 2**33 + 1, Decimal("1.250000000001"))}
    stored_sums = await store.keys.add_use(NEXT, {KEY.id: KeyUse(1)})
    assert stored_sums == {KEY.id: KeyUse(1)}
    found = await store.keys.find_key(KEY.digest, DAY)
    assert found is not None
    assert found.use_of_day == sums[KEY.id]
    assert found.last_used_at == clock.now
    assert await store.keys.add_use(DAY, {}) == {}


async def test_two_processes_count_together_and_share_one_secret(
    stores: list[Store],
) -> None:
    uses = {f"k{number}": KeyUse(1, 10) for number in range(5)}
    await asyncio.gather(*(store.keys.add_use(DAY, uses) for store in stores for _ in range(10)))
    sums = await stores[0].keys.add_use(DAY, uses)
    assert set(sums.values()) == {KeyUse(41, 410)}
    secrets = await asyncio.gather(
        *(store.keys.load_shared_secret("tenants") for store in stores for _ in range(3))
    )
    assert len(set(secrets)) == 1
    assert len(secrets[0]) == 32
    assert await stores[0].keys.load_shared_secret("another") != secrets[0]
