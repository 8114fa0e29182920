"""Learnt windows and output caps, accepted credentials, pins, and which client a thread is of."""

from __future__ import annotations

import pytest

from everthread.errors import InputError, UnknownIdError
from everthread.store.models import NewSession
from everthread.store.store import Store
from tests.store.conftest import Clock
from tests.store.talk import new_thread, numbered

DAY = 86_400.0
URL = "https://api.example.test/v1"


async def test_a_limit_holds_at_once_for_the_tenant_that_met_it_and_for_no_other(store: Store) -> None:
    learnt = await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c1")
    assert (await store.limits_for(URL, "m", tenant="a")).window == learnt
    assert (await store.limits_for(URL, "m", tenant="b")).window is None
    assert await store.limit_for(URL, "m") is None


async def test_a_limit_holds_for_all_once_a_second_credential_met_it(store: Store) -> None:
    await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c1")
    await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c1")
    assert (await store.limits_for(URL, "m", tenant="c")).window is None, "the same credential twice is one witness"
    await store.learn_limit(URL, "m", 16_000, source="error", tenant="b", credential="c2")
    assert (await store.limits_for(URL, "m", tenant="c")).window is None, "they met different limits"
    await store.learn_limit(URL, "m", 32_000, source="error", tenant="b", credential="c3")
    found = await store.limits_for(URL, "m", tenant="c")
    assert found.window is not None
    assert found.window.limit == 32_000


async def test_the_newest_of_a_tenants_own_limits_counts(store: Store, clock: Clock) -> None:
    await store.learn_limit(URL, "m", 16_000, source="error", tenant="a", credential="c1")
    clock.now += 60
    newer = await store.learn_limit(URL, "m", 32_000, source="error", tenant="a", credential="c2")
    assert (await store.limits_for(URL, "m", tenant="a")).window == newer


async def test_an_output_cap_is_kept_beside_the_window(store: Store) -> None:
    await store.learn_limit(URL, "m", 4_096, source="error", kind="output")
    found = await store.limits_for(URL, "m")
    assert found.window is None
    assert found.output is not None
    assert found.output.limit == 4_096
    assert await store.forget_limits(below=10_000) == 0, "a large prompt says nothing of the output"
    assert await store.forget_limits(kind="output") == 1


async def test_a_success_disproves_a_smaller_window_of_its_tenant(store: Store, clock: Clock) -> None:
    for tenant, credential in (("a", "c1"), ("b", "c2")):
        await store.learn_limit(URL, "m", 32_000, source="error", tenant=tenant, credential=credential)
    await store.record_success(URL, "m", 32_000, tenant="a")
    assert (await store.limits_for(URL, "m", tenant="a")).window is not None, "it fits exactly"
    await store.record_success(URL, "m", 40_000, tenant="a")
    await store.record_success(URL, "m", 10_000, tenant="a")
    found = await store.limits_for(URL, "m", tenant="a")
    assert (found.window, found.succeeded) == (None, 40_000)
    assert (await store.limits_for(URL, "m", tenant="b")).window is not None
    clock.now += 8 * DAY
    assert (await store.limits_for(URL, "m", tenant="a")).succeeded == 0, "a success counts for seven days"


async def test_an_accepted_credential_is_known_for_thirty_days(store: Store, clock: Clock) -> None:
    await store.accept_credential(URL, "digest")
    assert await store.is_credential_accepted(URL, "digest")
    assert not await store.is_credential_accepted("https://elsewhere", "digest")
    clock.now += 30 * DAY + 1
    assert not await store.is_credential_accepted(URL, "digest")
    await store.accept_credential(URL, "digest")
    await store.reject_credential(URL, "digest")
    assert not await store.is_credential_accepted(URL, "digest")


async def test_a_text_is_pinned_once_and_taken_back_by_its_id(store: Store) -> None:
    thread = await new_thread(store, *numbered(0, 1))
    first = await store.put_pin(thread.id, "Never push to main.")
    assert await store.put_pin(thread.id, "Never push to main.") == first
    assert [pin.text for pin in await store.pins(thread.id)] == ["Never push to main."]
    await store.put_pin(thread.id, "note", most=2)
    with pytest.raises(InputError, match="2 texts are pinned"):
        await store.put_pin(thread.id, "one more", most=2)
    await store.delete_pin(thread.id, first.id)
    with pytest.raises(UnknownIdError, match="nothing is pinned"):
        await store.delete_pin(thread.id, first.id)


async def test_a_branch_begins_with_the_pins_of_its_parent_and_keeps_them(store: Store) -> None:
    thread = await new_thread(store, *numbered(0, 3))
    kept = await store.put_pin(thread.id, "Never push to main.")
    history = await store.history(thread.id)
    branch = await store.branch(thread.id, history[-1].id)
    await store.delete_pin(thread.id, kept.id)
    assert await store.pins(thread.id) == []
    assert await store.pins(branch.id) == [kept]
    await store.delete_thread(thread.id)
    assert await store.pins(branch.id) == [kept]


async def test_pins_go_with_an_export(store: Store, elsewhere: Store) -> None:
    thread = await new_thread(store, *numbered(0, 1))
    kept = await store.put_pin(thread.id, "Never push to main.")
    await elsewhere.import_lines(await store.export(thread.id))
    assert await elsewhere.pins(thread.id) == [kept]


async def test_side_calls_stand_under_the_conversation_of_their_client(store: Store) -> None:
    talk = await store.create_session(NewSession(id="talk", client="coder", client_session="s1"))
    side = await store.create_session(NewSession(id="title", kind="side", parent="talk", client_session="s1"))
    await store.create_session(NewSession(id="count"))
    await store.set_client("count", client="coder", client_session="s1", parent="talk")
    assert [row.first.id for row in await store.list_threads()] == ["talk"]
    assert {session.id for session in await store.client_sessions("default", "s1")} == {"talk", "title", "count"}
    assert set(await store.subagents("talk")) == {side.id, "count"}
    assert await store.client_sessions("other", "s1") == []
    assert await store.delete_thread(talk.id) == 3
