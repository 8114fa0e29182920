"""Vectors of pieces: made once, compared within their scope, gone with what they are of; on both databases alike."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.vectors import Vector, packed
from everthread.store.base import NewSession
from everthread.store.recalled import RecallQuery
from everthread.store.sql_store import SqlStore
from tests.providers.embedding_server import vector
from tests.store.talk import new_thread, result, user

MODEL = "embed-1"


async def embed(store: SqlStore, thread: str, model: str = MODEL, **more: Any) -> int:
    made = [(key, packed(vector(text))) for key, text in await store.without_vectors(thread, model, **more)]
    await store.put_vectors(model, made)
    return len(made)


async def recalled(store: SqlStore, text: str, **more: Any) -> list[str]:
    more = {"similarity": 0.5, "least": 0.5, "tenant": "default", **more}
    wanted = Vector(more.pop("model", MODEL), packed(vector(text)))
    return [passage.text for passage in await store.recall(RecallQuery(text, vector=wanted, **more))]


async def test_what_means_the_same_is_found_though_no_word_is_the_same(store: SqlStore) -> None:
    pytest.importorskip("numpy")
    mine = await new_thread(
        store, user("Her automobile is crimson."), user("Rain again."), *(user(f"Page {n} done.") for n in range(9))
    )
    await new_thread(store, user("His automobile is crimson too."), tenant="other")
    asked = "Which colour has the vehicle?"
    assert await recalled(store, asked, thread=mine.id) == [], "no word of it was said, and there are no vectors"
    seen = {(await store.messages(mine.id))[1].id}
    assert await embed(store, mine.id, seen=seen) == 10
    assert await embed(store, mine.id, seen=seen) == 0, "once only"
    assert await embed(store, mine.id) == 1, "the one that was in view"
    assert (await recalled(store, asked, thread=mine.id))[0] == "Her automobile is crimson."
    assert (await recalled(store, asked))[0] == "Her automobile is crimson."
    assert await recalled(store, asked, thread=mine.id, model="another") == []
    assert await recalled(store, "bicycle repair manuals", thread=mine.id) == []
    assert await recalled(store, asked, tenant="other") == []
    first = (await store.messages(mine.id))[0].id
    assert "Her automobile is crimson." not in await recalled(store, asked, thread=mine.id, seen=frozenset({first}))


async def test_neither_words_nor_vectors_starve_the_other(store: SqlStore) -> None:
    pytest.importorskip("numpy")
    thread = await new_thread(
        store,
        user("The automobile is crimson."),
        *(user(f"colour vehicle, note {number} of the ledger.") for number in range(12)),
        *(user(f"Nothing happened on day {number}.") for number in range(30)),
    )
    await embed(store, thread.id)
    found = await recalled(store, "colour vehicle", thread=thread.id, limit=4)
    assert "The automobile is crimson." in found
    assert any("ledger" in text for text in found)


async def test_vectors_go_with_their_pieces_and_a_branch_has_those_it_shares(store: SqlStore) -> None:
    pytest.importorskip("numpy")
    parent = await new_thread(store, user("Her automobile is crimson."), user("Fine."))
    at = (await store.messages(parent.id))[1].id
    branch = await store.branch(parent.id, at, new=NewSession(kind="branch"))
    await store.append(parent.id, [user("My vehicle, purchased in May, is crimson."), result("recall", "crimson car")])
    assert await embed(store, parent.id) == 3, "what only looked it up has none"
    asked = "colour of the car"
    assert await recalled(store, asked, thread=branch.id, limit=1) == ["Her automobile is crimson."]
    assert not any("purchased" in text for text in await recalled(store, asked, thread=branch.id))
    await store.delete_thread(parent.id)
    assert await recalled(store, asked, thread=branch.id) == [], "indexed anew as the branch's own, without vectors"
    assert await embed(store, branch.id) == 2
    assert await recalled(store, asked, thread=branch.id, limit=1) == ["Her automobile is crimson."]
    await store.delete_thread(branch.id)
    await store.put_vectors(MODEL, [(1, packed([1.0]))])
    rows = await store._read(lambda tx: tx.all("SELECT piece_id FROM vectors"))
    assert rows == []
