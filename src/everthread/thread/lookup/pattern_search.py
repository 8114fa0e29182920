"""Search the stored texts of threads by a regular expression."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.messages import calls_of, results_of
from everthread.core.search.search_results import Excerpt, SearchPage
from everthread.core.turns import is_user_message
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.thread.lookup.excerpts import make_excerpt
from everthread.thread.lookup.lookup_cache import MESSAGES_PER_QUERY
from everthread.thread.lookup.pattern_matcher import PatternMatcher
from everthread.thread.lookup.word_search import EXCERPT_CHARS

SEARCH_TIMEOUT_SECONDS = 5.0
"""A search by pattern returns its results after this time; the next page continues from there."""


async def search_pattern(
    store: Store, threads: Sequence[str], pattern: str, query: SearchQuery
) -> SearchPage:
    """Return a page of the texts that match a pattern, the earliest first."""
    matcher = PatternMatcher(pattern)
    excerpts: list[Excerpt] = []
    position = 0
    deadline = 0.0
    async for texts in _read_texts(store, threads, query.tenant):
        start = position
        position = position + len(texts)
        skipped = max(0, query.offset - start)
        if skipped >= len(texts):
            continue
        deadline = deadline or time.monotonic() + SEARCH_TIMEOUT_SECONDS
        matching_texts = [
            (index, text)
            for index, text in enumerate(texts[skipped:], start + skipped)
            if query.role in (None, text.role) and query.tool in (None, text.tool)
        ]
        snippets = await asyncio.to_thread(
            matcher.scan, [text.text for _, text in matching_texts], EXCERPT_CHARS
        )
        for (index, text), snippet in zip(matching_texts, snippets, strict=False):
            if snippet and len(excerpts) == query.limit:
                return SearchPage(tuple(excerpts), index)
            if snippet:
                excerpts.append(replace(text, text=snippet))
        if len(snippets) < len(matching_texts):
            return SearchPage(tuple(excerpts), matching_texts[len(snippets)][0])
        if time.monotonic() > deadline:
            return SearchPage(tuple(excerpts), position)
    return SearchPage(tuple(excerpts), None)


async def _read_texts(
    store: Store, threads: Sequence[str], tenant: str | None
) -> AsyncIterator[list[Excerpt]]:
    """Yield every whole text, without calls of a search tool and their results.

    The earliest thread and message come first, so that an offset stays valid while messages are added.
    """
    for thread in threads:
        async for texts in _read_messages(store, thread):
            yield texts
        yield await _read_outputs(store, thread, tenant)


async def _read_messages(store: Store, thread: str) -> AsyncIterator[list[Excerpt]]:
    """Yield the texts of a thread's messages, page by page."""
    turn = 0
    tool_by_call: dict[str, str] = {}
    for start in itertools.count(0, MESSAGES_PER_QUERY):
        page = await store.load_history(thread, start=start, limit=MESSAGES_PER_QUERY)
        texts = []
        for stored_message in page:
            turn += is_user_message(stored_message.body)
            calls = {call.id: call.name for call in calls_of(stored_message.body)}
            tool_by_call |= calls
            tool_names = (
                result.tool_name or tool_by_call.get(result.call_id, "")
                for result in results_of(stored_message.body)
            )
            tools = [*filter(None, tool_names)]
            if not any(map(is_lookup_tool, (*tools, *calls.values()))):
                texts.append(make_excerpt(stored_message, thread, turn, ",".join(tools)))
        yield texts
        if len(page) < MESSAGES_PER_QUERY:
            break


async def _read_outputs(store: Store, thread: str, tenant: str | None) -> list[Excerpt]:
    """Return the whole stored outputs of a thread."""
    return [
        Excerpt(
            output.id,
            thread,
            turn=None,
            role="tool",
            tool=output.tool,
            created=output.created,
            text=await store.outputs.load_output(output.id, tenant=tenant),
        )
        for output in await store.outputs.list_outputs(thread)
        if not is_lookup_tool(output.tool)
    ]
