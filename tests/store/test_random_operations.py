"""After any sequence of operations threads equal the reference model, in the store and after import."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.store.store import Store
from tests.store.reference_model import OPERATIONS, Model
from tests.store.tables import count_rows

STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 40)),
    min_size=10,
    max_size=40,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=12,
)
@given(steps=STEPS)
async def test_store_matches_the_reference_model_after_any_operations(
    store: Store, other_store: Store, steps: list[tuple[str, int, int]]
) -> None:
    model = Model(store)
    await model.start(3, 0)
    for name, number, amount in steps:
        await getattr(model, name)(number, amount)
    await model.compare(store)
    exported = [await store.export(thread.id) for thread in model.threads]
    for lines in exported:
        assert await other_store.import_lines(lines) == [lines[0]["thread"]]
    assert [await other_store.export(thread.id) for thread in model.threads] == exported
    await model.compare(other_store)
    for each in (store, other_store):
        health = await each.check()
        assert health.problems == ()
    for thread in model.threads:
        await store.delete_thread(thread.id)
        await other_store.delete_thread(thread.id)
    for name in (
        "messages",
        "places",
        "sessions",
        "compactions",
        "texts",
        "chunks",
        "unindexed",
    ):
        assert count_rows(store, name) == 0
