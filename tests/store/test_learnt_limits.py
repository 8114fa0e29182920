"""Windows and output caps learnt from providers, and prompts that they accepted."""

from __future__ import annotations

from everthread.store.records import LimitKey, ModelLimit
from everthread.store.store import Store
from everthread.testing import SteppedClock

DAY = 86_400.0
URL = "https://api.example.test/v1"
KEY = LimitKey(URL, "m")
KEY_WITH_HEADERS = LimitKey(URL, "m", headers="beta=1m")


def key_of(tenant: str, credential: str = "") -> LimitKey:
    return LimitKey(URL, "m", tenant, credential=credential)


async def load_window(store: Store, key: LimitKey) -> ModelLimit | None:
    return (await store.limits.load_limits(key)).window


async def test_limit_applies_to_the_tenant_that_met_it(store: Store) -> None:
    learnt = await store.limits.learn_limit(key_of("a", "c1"), 32_000, source="error")
    assert await load_window(store, key_of("a")) == learnt
    assert await load_window(store, key_of("b")) is None
    assert await load_window(store, KEY) is None


async def test_limit_that_two_credentials_met_applies_to_all_tenants(store: Store) -> None:
    await store.limits.learn_limit(key_of("a", "c1"), 32_000, source="error")
    await store.limits.learn_limit(key_of("a", "c1"), 32_000, source="error")
    window = await load_window(store, key_of("c"))
    assert window is None, "the same credential twice is one witness"
    await store.limits.learn_limit(key_of("b", "c2"), 16_000, source="error")
    window = await load_window(store, key_of("c"))
    assert window is None, "they met different limits"
    await store.limits.learn_limit(key_of("b", "c3"), 32_000, source="error")
    window = await load_window(store, key_of("c"))
    assert window is not None
    assert window.limit == 32_000


async def test_the_newest_of_a_tenants_own_limits_counts(store: Store, clock: SteppedClock) -> None:
    await store.limits.learn_limit(key_of("a", "c1"), 16_000, source="error")
    clock.now += 60
    newer = await store.limits.learn_limit(key_of("a", "c2"), 32_000, source="error")
    assert await load_window(store, key_of("a")) == newer


async def test_output_cap_is_separate_from_the_window(store: Store) -> None:
    await store.limits.learn_limit(
        KEY,
        4_096,
        source="error",
        kind="output",
    )
    limits = await store.limits.load_limits(KEY)
    assert limits.window is None
    assert limits.output is not None
    assert limits.output.limit == 4_096
    await store.limits.record_success(KEY, 10_000)
    later_limits = await store.limits.load_limits(KEY)
    assert later_limits.output == limits.output, "a large prompt says nothing of the output"
    assert await store.limits.forget_limits(model="m") == 1


async def test_accepted_prompt_disproves_a_smaller_window(
    store: Store, clock: SteppedClock
) -> None:
    await store.limits.learn_limit(key_of("a", "c1"), 32_000, source="error")
    await store.limits.learn_limit(key_of("b", "c2"), 32_000, source="error")
    await store.limits.record_success(key_of("a"), 32_000)
    assert await load_window(store, key_of("a")) is not None, "it fits exactly"
    await store.limits.record_success(key_of("a"), 40_000)
    await store.limits.record_success(key_of("a"), 10_000)
    limits = await store.limits.load_limits(key_of("a"))
    assert limits.window is None
    assert limits.largest_accepted_tokens == 40_000
    assert await load_window(store, key_of("b")) is not None
    clock.now += 8 * DAY
    limits = await store.limits.load_limits(key_of("a"))
    assert limits.largest_accepted_tokens == 0, "a success counts for seven days"


async def test_a_learnt_limit_lasts_seven_days(store: Store, clock: SteppedClock) -> None:
    learnt = await store.limits.learn_limit(KEY_WITH_HEADERS, 32_000, source="error")
    assert learnt.limit == 32_000
    assert learnt.learnt == clock.now
    assert learnt.expires == clock.now + 7 * DAY
    assert await load_window(store, KEY_WITH_HEADERS) == learnt
    clock.now += 7 * DAY - 0.01
    assert await store.limits.list_limits() == [learnt]
    clock.now += 0.01
    assert await load_window(store, KEY_WITH_HEADERS) is None
    assert await store.limits.list_limits() == []


async def test_a_limit_is_for_its_url_model_and_headers(store: Store) -> None:
    await store.limits.learn_limit(KEY, 32_000, source="error")
    assert await load_window(store, LimitKey("https://other.test", "m")) is None
    assert await load_window(store, LimitKey(URL, "n")) is None
    assert await load_window(store, KEY_WITH_HEADERS) is None


async def test_new_limit_replaces_and_renews_the_old_one(store: Store, clock: SteppedClock) -> None:
    await store.limits.learn_limit(KEY, 32_000, source="error")
    clock.now += 5 * DAY
    again = await store.limits.learn_limit(KEY, 16_000, source="probe")
    clock.now += 5 * DAY
    assert await store.limits.list_limits() == [again]


async def test_forget_limits_by_address_and_model(store: Store) -> None:
    await store.limits.learn_limit(LimitKey("u1", "m1"), 10, source="error")
    await store.limits.learn_limit(LimitKey("u1", "m2"), 20, source="error")
    await store.limits.learn_limit(LimitKey("u2", "m1"), 30, source="error")
    assert await store.limits.forget_limits(base_url="u1", model="m1") == 1
    limits = await store.limits.list_limits()
    assert [limit.limit for limit in limits] == [20, 30]
    assert await store.limits.forget_limits(model="m1") == 1
    assert await store.limits.forget_limits() == 1
    assert await store.limits.list_limits() == []
