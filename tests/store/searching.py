"""Run searches, and compare the texts that they find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.store.search_records import RecallQuery, SearchHit, SearchQuery
from everthread.store.store import Store

FILLER = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor "


async def search(store: Store, query: str, **bounds: Any) -> list[SearchHit]:
    return await store.search(SearchQuery(query, **bounds))


async def search_texts(store: Store, query: str, **bounds: Any) -> list[str]:
    """Return the texts of the messages that a query finds, the best first."""
    hits = await search(store, query, **bounds)
    texts = [
        str((await store.load_message(hit.message)).body["content"])
        for hit in hits
        if hit.message is not None
    ]
    assert len(texts) == len(set(texts)), "a text was found twice"
    return texts


async def assert_finds(store: Store, expected: Mapping[str, set[str]], **bounds: Any) -> None:
    """Check which texts each query finds."""
    found = {query: set(await search_texts(store, query, **bounds)) for query in expected}
    assert found == expected


async def assert_bounds_find(
    store: Store, query: str, *cases: tuple[Mapping[str, Any], set[str]]
) -> None:
    """Check which texts a query finds within each of several bounds."""
    for bounds, expected in cases:
        texts = await search_texts(store, query, **bounds)
        assert set(texts) == expected, bounds


async def recall_texts(store: Store, question: str, **bounds: Any) -> list[str]:
    """Return the passages that may answer a question, the best first."""
    query = RecallQuery(question, **{"tenant": "default", **bounds})
    return [passage.text for passage in await store.recall(query)]
