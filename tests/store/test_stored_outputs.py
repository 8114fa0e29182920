"""Tool outputs: kept whole, once a tenant, and verified."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.core.tool_outputs import output_id
from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.messages import (
    compact_session,
    new_thread,
    numbered_thread,
)
from tests.store.tables import transaction


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    text=st.text(st.characters(exclude_categories=())),
    call=st.text(st.characters(exclude_categories=())),
)
async def test_any_text_is_returned_unchanged(store: Store, text: str, call: str) -> None:
    thread = await new_thread(store)
    stored = await store.outputs.put_output(thread, text, call_id=call, tool=call)
    assert stored.id == output_id(text)
    assert stored.size == len(text)
    assert await store.outputs.load_output(stored.id) == text
    assert await store.outputs.list_outputs(thread) == [stored]


async def test_equal_outputs_are_stored_once(store: Store, clock: SteppedClock) -> None:
    one = await new_thread(store)
    two = await new_thread(store)
    text = "line\n" * 100_000
    first = await store.outputs.put_output(one, text, call_id="c1", tool="run")
    await store.outputs.put_output(one, text, call_id="c1", tool="run")
    clock.now += 1
    await store.outputs.put_output(one, text, call_id="c2", tool="run")
    await store.outputs.put_output(two, text, call_id="c3", tool="run")
    outputs = await store.outputs.list_outputs(one)
    assert [cited.call_id for cited in outputs] == ["c1", "c2"]
    assert first.size == len(text)
    with transaction(store) as tx:
        [(key, stored_length)] = tx.all("SELECT id, LENGTH(content) FROM outputs")
    assert key == first.id
    assert stored_length < len(text) / 20, "compressed"


async def test_an_output_belongs_to_its_thread_under_any_id(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    stored = await store.outputs.put_output(tip, "text")
    assert stored.thread == thread
    assert await store.outputs.list_outputs(thread) == [stored]


async def test_tenants_share_no_outputs(store: Store) -> None:
    one = await new_thread(store, tenant="a")
    key = (await store.outputs.put_output(one, "secret of a")).id
    assert await store.outputs.load_output(key, tenant="a") == "secret of a"
    for tenant in ("b", "default"):
        with pytest.raises(UnknownIdError):
            await store.outputs.load_output(key, tenant=tenant)
    two = await new_thread(store, tenant="b")
    await store.outputs.put_output(two, "secret of a")
    await store.delete_thread(one)
    assert await store.outputs.load_output(key, tenant="b") == "secret of a"


@pytest.mark.parametrize("damage", [b"garbage", b"x\x9c\x03\x00\x00\x00\x00\x01", b""])
async def test_a_damaged_output_is_reported_and_never_cited(
    store: Store, thread: str, damage: bytes
) -> None:
    key = (await store.outputs.put_output(thread, "good")).id
    with transaction(store) as tx:
        tx.run("UPDATE outputs SET content = ?", (damage,))
    with pytest.raises(StoreDamagedError, match=key):
        await store.outputs.load_output(key)
    with pytest.raises(StoreDamagedError, match=key):
        await store.outputs.put_output(thread, "good", call_id="again")
    outputs = await store.outputs.list_outputs(thread)
    assert len(outputs) == 1
    await store.delete_thread(thread)


async def test_an_output_is_deleted_while_another_thread_cites_it(
    store: Store, stores: list[Store]
) -> None:
    other = stores[1]
    keep = await new_thread(store)
    for number in range(15):
        text = f"output {number}"
        gone = await new_thread(store)
        await store.outputs.put_output(gone, text)
        await asyncio.gather(store.delete_thread(gone), other.outputs.put_output(keep, text))
        assert await store.outputs.load_output(output_id(text)) == text
    outputs = await store.outputs.list_outputs(keep)
    assert len(outputs) == 15
