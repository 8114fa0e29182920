"""Search stored messages by words."""

from __future__ import annotations

import re
from dataclasses import replace

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.messages import calls_of
from everthread.core.search.search_results import Excerpt, SearchPage
from everthread.core.secrets.redaction import redact_part
from everthread.store.search.snippets import RAW_SECRET_MARGIN, find_sentence_start
from everthread.store.search.text_chunks import searchable_text
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.store import Store
from everthread.thread.lookup.lookup_cache import LookupCache

EXCERPT_CHARS = 600
"""Characters of one excerpt."""


async def search_words(store: Store, cache: LookupCache, query: SearchQuery) -> SearchPage:
    """Return a page of excerpts, skipping pages with nothing but earlier searches."""
    offset = query.offset
    while True:
        page = await store.find(replace(query, offset=offset))
        offset += query.limit
        excerpts = [
            excerpt
            for hit in page.hits
            if (excerpt := await _load_excerpt(store, cache, hit, query.tenant)) is not None
        ]
        if excerpts or not page.has_more:
            return SearchPage(
                tuple(excerpts),
                offset if page.has_more else None,
                is_approximate=page.is_approximate,
            )


async def _load_excerpt(
    store: Store, cache: LookupCache, hit: SearchHit, tenant: str | None
) -> Excerpt | None:
    """Return a hit as an excerpt with the text around it, or None for the arguments of an earlier search."""
    if is_lookup_tool(hit.tool):
        return None
    text = hit.snippet if hit.is_passage else await _show_hit(store, hit, tenant)
    if text is None:
        return None
    turn = None
    if hit.message is not None:
        turn = await cache.find_turn(store, hit.thread, hit.message)
    return Excerpt(
        hit.output or f"message:{hit.message}",
        hit.thread,
        turn=turn,
        role=hit.role,
        tool=hit.tool,
        created=hit.created,
        text=text,
        before=str(hit.before or ""),
        after=str(hit.after or ""),
    )


async def _show_hit(store: Store, hit: SearchHit, tenant: str | None) -> str | None:
    """Return the text around a hit, or None if it shows the arguments of an earlier search."""
    if hit.message is None:
        text = await store.outputs.load_output(hit.output or "", tenant=tenant)
        return _show_around(text, hit.snippet)
    stored_message = await store.load_message(hit.message, tenant=tenant)
    excerpt = _show_around(searchable_text(stored_message.body), hit.snippet)
    search_arguments = [
        call.arguments for call in calls_of(stored_message.body) if is_lookup_tool(call.name)
    ]
    if any(argument and argument in excerpt for argument in search_arguments):
        return None
    if hit.role == "assistant" and hit.tool:  # the arguments of a call, without JSON's escapes
        excerpt = excerpt.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    return excerpt


def _show_around(text: str, snippet: str) -> str:
    """Return the text around a snippet, or the snippet itself if the text lacks it (it held a secret)."""
    words = snippet.strip("…").split()
    match = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
    if match is None:
        return snippet[:EXCERPT_CHARS]
    context_chars = max(0, EXCERPT_CHARS - (match.end() - match.start())) // 2
    start = find_sentence_start(text, max(0, match.start() - context_chars))
    end = min(len(text), max(match.end() + context_chars, start + EXCERPT_CHARS))
    excerpt = redact_part(text, start, end, margin=RAW_SECRET_MARGIN)
    is_cut = end < len(text) or len(excerpt) > EXCERPT_CHARS
    return f"{'…' if start else ''}{excerpt[:EXCERPT_CHARS]}{'…' if is_cut else ''}"
