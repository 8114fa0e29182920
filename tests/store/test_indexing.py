"""Indexing: every character of a text, in chunks that every index keeps apart, without secrets."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.core.search.indexed_terms import encode_term
from everthread.core.search.terms import list_phrase_terms, list_terms
from everthread.store.records import NewSession
from everthread.store.search.background_indexer import DELAY_SECONDS
from everthread.store.search.index_queue import (
    BACKGROUND_BATCH_CHARS,
    CHUNKS_PER_WRITE,
    MAX_BATCH_CHARS,
    index_parts,
    prepare_index,
)
from everthread.store.search.text_chunks import (
    CHUNK_CHARS,
    MAX_CHUNK_TERMS,
    MAX_TERM_REPEATS,
    OVERLAP_CHARS,
    make_filter_term,
    redact_and_split,
    searchable_text,
    split_text,
)
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.messages import new_thread, new_user_message
from tests.store.searching import search
from tests.store.tables import count_rows, stop_background_indexing, transaction

WORDS = "lorem ipsum dolor sit amet "


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        WORDS * 5_000,
        "x" * 30_000,
        "数据库" * 9_000,
        "0 " * 9_000,
        "的" * 9_000,
        "\n" * 20_000,
        "ﷺ" * 5_000,
    ],
    ids=[
        "empty",
        "short",
        "words",
        "one word",
        "chinese",
        "zeros",
        "one character",
        "blank",
        "expanding",
    ],
)
def test_chunks_cover_the_text_and_are_distinct(text: str) -> None:
    found = list(split_text(text))
    assert found[0].start == 0
    for cut in found:
        assert text[cut.start : cut.start + len(cut.text)] == cut.text
        assert cut.terms.split() == [encode_term(term) for term in list_terms(cut.text)]
        assert len(cut.text) <= CHUNK_CHARS
        words = cut.terms.split()
        assert len(words) <= MAX_CHUNK_TERMS
        assert max(Counter(words).values(), default=0) <= MAX_TERM_REPEATS
    for before, after in pairwise(found):
        assert before.start < after.start <= before.start + len(before.text)
    assert found[-1].start + len(found[-1].text) == len(text)


def test_neighbouring_chunks_overlap() -> None:
    found = list(split_text(WORDS * 2_000))
    assert len(found) > 5
    for before, after in pairwise(found):
        assert OVERLAP_CHARS <= before.start + len(before.text) - after.start <= 2 * OVERLAP_CHARS


def test_chunks_cut_no_words() -> None:
    found = {term for cut in split_text(WORDS * 2_000) for term in cut.terms.split()}
    assert found == set(WORDS.split())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["alpha", "beta", "数据", "x" * 60, "1", "\n", "a.b"]),
        max_size=400,
    )
)
def test_every_phrase_of_a_text_is_in_a_chunk(words: list[str]) -> None:
    text = " ".join(words)
    chunks = [" ".join(list_phrase_terms(cut.text)) for cut in split_text(text)]
    for first in range(len(words)):
        phrase = " ".join(list_phrase_terms(" ".join(words[first : first + 2])))
        assert any(phrase in chunk for chunk in chunks)


def test_secrets_are_redacted_before_the_text_is_split() -> None:
    secret = "ghp_" + "a8Kd02mQpX7zLw4nRt6Yb1Vc9Je3Hu5Gs0Fo"
    for filler in range(CHUNK_CHARS - 60, CHUNK_CHARS + 60, 7):
        chunks, redacted = redact_and_split("x " * (filler // 2) + f"token: {secret} " + "y " * 300)
        assert redacted
        for chunk in chunks:
            assert not any(
                part in chunk.text for part in (secret[:12], secret[12:24], secret[-12:])
            )
            assert not any("a8kd02" in term or "hu5gs0fo" in term for term in chunk.terms)


def test_searchable_text_of_a_message() -> None:
    call = function_call("1", "grep", '{"pattern": "x"}')
    assert searchable_text({"role": "user", "content": "hello"}) == "hello"
    assert (
        searchable_text(
            {
                "role": "tool",
                "content": "result",
                "tool_call_id": "1",
            }
        )
        == "result"
    )
    assert searchable_text(calls_message(call, text="so")) == 'so\ngrep {"pattern": "x"}'
    blocks = [
        {
            "type": "tool_result",
            "tool_use_id": "1",
            "content": "block",
        },
        {"type": "text", "text": "and"},
    ]
    assert searchable_text({"role": "user", "content": blocks}) == "and\nblock"
    assert searchable_text({"role": "user", "content": None}) == ""


@given(st.text(max_size=80), st.text(max_size=80))
def test_filter_terms_differ_exactly_if_values_differ(one: str, other: str) -> None:
    for kind in ("role", "tool"):
        assert (make_filter_term(kind, one) == make_filter_term(kind, other)) == (one == other)
    assert make_filter_term("role", one) != make_filter_term("tool", one)
    token = make_filter_term("tenant", one)
    assert token.isascii()
    assert token == token.lower()
    assert token.replace("_", "").isalnum()
    assert len(token) < 100


def test_filter_terms_of_ordinary_values_are_readable() -> None:
    assert make_filter_term("role", "user") == "role_user"


def prepare(store: Store) -> list[list[Any]]:
    with transaction(store) as tx:
        return [list(parts) for parts in prepare_index(tx)]


def index(store: Store, parts: list[Any]) -> None:
    with transaction(store) as tx:
        index_parts(tx, parts, wait_for_locked=True)


async def test_a_long_text_is_indexed_in_several_transactions(store: Store) -> None:
    stop_background_indexing(store)
    thread = await store.create_session(NewSession())
    lines = [f"line{number} " + "0 " * 120 for number in range(CHUNKS_PER_WRITE * 6)]
    await store.outputs.put_output(thread.id, "\n".join(lines), tool="terminal")
    batches = prepare(store)
    assert [len(parts) for parts in batches][:2] == [1, 1]
    assert len(batches) > 2
    index(store, batches[0])
    # Again, and out of turn: nothing happens.
    index(store, batches[0])
    index(store, batches[2])
    rest = prepare(store)
    assert len(rest) == len(batches) - 1
    for number in (0, len(lines) // 2, len(lines) - 1):
        hits = await search(store, f"line{number}")
        assert len(hits) == 1
    with transaction(store) as tx:
        starts = tx.all("SELECT start FROM chunks")
    assert len(starts) == len(set(starts))


async def test_indexing_pauses_less_when_many_texts_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr("everthread.store.search.background_indexer.PAUSE_FACTOR", 0.0)
    await new_thread(store, "short", "x " * BACKGROUND_BATCH_CHARS, "the last")
    async with asyncio.timeout(60):
        while len(pauses) < 3:
            await sleep(0.01)
    monkeypatch.undo()
    assert pauses == [DELAY_SECONDS, 0.0, DELAY_SECONDS], (
        "before the first, after a long text, after a short one"
    )
    hits = await search(store, "last")
    assert len(hits) == 1


async def test_two_stores_index_a_text_once(store: Store, stores: list[Store]) -> None:
    stop_background_indexing(store)
    other = stores[1]
    thread = await new_thread(store, *(f"needle {number}" for number in range(50)))
    first = prepare(store)
    second = prepare(other)
    for parts in first:
        index(store, parts)
    await store.delete_thread(thread)
    await new_thread(store, new_user_message("needle left"))
    for parts in second:
        index(other, parts)
    hits = await search(other, "needle")
    assert len(hits) == 1


async def test_preparation_is_limited_to_one_batch(store: Store) -> None:
    stop_background_indexing(store)
    thread = await store.create_session(NewSession())
    big = "x" * (MAX_BATCH_CHARS // 2)
    await store.append(
        thread.id, [new_user_message(f"{big} needle{number}") for number in range(4)]
    )
    batches = prepare(store)
    assert len({part.entry.id for parts in batches for part in parts}) == 2
    hits = await search(store, "needle*")
    assert len(hits) == 4


async def test_messages_deleted_meanwhile_are_not_indexed(store: Store) -> None:
    stop_background_indexing(store)
    thread = await new_thread(store, "one", "two")
    batches = prepare(store)
    await store.delete_thread(thread)
    index(store, batches[0])
    assert await search(store, "one") == []
    assert count_rows(store, "chunks") == 0


@pytest.mark.parametrize("indexed", [False, True])
async def test_a_damaged_output_stops_no_search(
    store: Store, indexed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    thread = await new_thread(store, "needle one")
    await store.outputs.put_output(thread, "needle two", tool="terminal")
    if indexed:
        stored_hits = await search(store, "needle")
        assert len(stored_hits) == 2
    with transaction(store) as tx:
        tx.run("UPDATE outputs SET content = ?", (b"broken",))
    hits = await search(store, "needle")
    assert [hit.snippet for hit in hits if hit.message is not None] == ["needle one"]
    assert "cannot be read" in caplog.text
    await store.delete_thread(thread)
