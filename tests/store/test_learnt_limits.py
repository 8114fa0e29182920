"""Windows and output caps learnt from providers, and prompts that they accepted."""

from __future__ import annotations

from everthread.store.store import Store
from tests.store.conftest import Clock

DAY = 86_400.0
URL = "https://api.example.test/v1"


async def test_limit_applies_to_the_tenant_that_met_it(
    store: Store,
) -> None:
    learnt = await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c1")
    assert (await store.load_limits(URL, "m", tenant="a")).window == learnt
    assert (await store.load_limits(URL, "m", tenant="b")).window is None
    assert (await store.load_limits(URL, "m")).window is None


async def test_limit_that_two_credentials_met_applies_to_all_tenants(
    store: Store,
) -> None:
    await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c1")
    await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c1")
    assert (await store.load_limits(URL, "m", tenant="c")).window is None, (
        "the same credential twice is one witness"
    )
    await store.learn_limit(URL, "m", 16_000, source="error", tenant="b", credential="c2")
    assert (await store.load_limits(URL, "m", tenant="c")).window is None, (
        "they met different limits"
    )
    await store.learn_limit(URL, "m", 32_000, source="error", tenant="b", credential="c3")
    found = await store.load_limits(URL, "m", tenant="c")
    assert found.window is not None
    assert found.window.limit == 32_000


async def test_the_newest_of_a_tenants_own_limits_counts(store: Store, clock: Clock) -> None:
    await store.learn_limit(URL, "m", 16_000, source="error", tenant="a", credential="c1")
    clock.now += 60
    newer = await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c2")
    assert (await store.load_limits(URL, "m", tenant="a")).window == newer


async def test_output_cap_is_separate_from_the_window(store: Store) -> None:
    await store.learn_limit(URL, "m", 4_096, source="error", kind="output")
    found = await store.load_limits(URL, "m")
    assert found.window is None
    assert found.output is not None
    assert found.output.limit == 4_096
    await store.record_success(URL, "m", 10_000)
    assert (await store.load_limits(URL, "m")).output == found.output, (
        "a large prompt says nothing of the output"
    )
    assert await store.forget_limits(model="m") == 1


async def test_accepted_prompt_disproves_a_smaller_window(store: Store, clock: Clock) -> None:
    for tenant, credential in (("a", "c1"), ("b", "c2")):
        await store.learn_limit(
            URL, "m", 32_000, source="error", tenant=tenant, credential=credential
        )
    await store.record_success(URL, "m", 32_000, tenant="a")
    assert (await store.load_limits(URL, "m", tenant="a")).window is not None, "it fits exactly"
    await store.record_success(URL, "m", 40_000, tenant="a")
    await store.record_success(URL, "m", 10_000, tenant="a")
    found = await store.load_limits(URL, "m", tenant="a")
    assert (found.window, found.largest_accepted_tokens) == (None, 40_000)
    assert (await store.load_limits(URL, "m", tenant="b")).window is not None
    clock.now += 8 * DAY
    assert (await store.load_limits(URL, "m", tenant="a")).largest_accepted_tokens == 0, (
        "a success counts for seven days"
    )


async def test_a_learnt_limit_lasts_seven_days(store: Store, clock: Clock) -> None:
    learnt = await store.learn_limit("https://a", "m", 32_000, source="error", headers="beta=1m")
    assert learnt.limit == 32_000
    assert learnt.learnt == clock.now
    assert learnt.expires == clock.now + 7 * DAY
    assert (await store.load_limits("https://a", "m", headers="beta=1m")).window == learnt
    clock.now += 7 * DAY - 0.01
    assert await store.limits() == [learnt]
    clock.now += 0.01
    assert (await store.load_limits("https://a", "m", headers="beta=1m")).window is None
    assert await store.limits() == []


async def test_a_limit_is_for_its_url_model_and_headers(store: Store) -> None:
    await store.learn_limit("https://a", "m", 32_000, source="error")
    for limits in (
        await store.load_limits("https://b", "m"),
        await store.load_limits("https://a", "n"),
        await store.load_limits("https://a", "m", headers="beta=1m"),
    ):
        assert limits.window is None


async def test_new_limit_replaces_and_renews_the_old_one(store: Store, clock: Clock) -> None:
    await store.learn_limit("https://a", "m", 32_000, source="error")
    clock.now += 5 * DAY
    again = await store.learn_limit("https://a", "m", 16_000, source="probe")
    clock.now += 5 * DAY
    assert await store.limits() == [again]


async def test_forget_limits_by_address_and_model(store: Store) -> None:
    for base_url, model, limit in (
        ("u1", "m1", 10),
        ("u1", "m2", 20),
        ("u2", "m1", 30),
    ):
        await store.learn_limit(base_url, model, limit, source="error")
    assert await store.forget_limits(base_url="u1", model="m1") == 1
    assert [limit.limit for limit in await store.limits()] == [20, 30]
    assert await store.forget_limits(model="m1") == 1
    assert await store.forget_limits() == 1
    assert await store.limits() == []
