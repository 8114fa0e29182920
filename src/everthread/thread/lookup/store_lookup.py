"""Look up messages of stored threads by words, pattern or id. Excerpts are exact, bounded and redacted.

Used by the tool `recall`, an engine's own tools, and `everthread mcp`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.messages import calls_of, results_of
from everthread.core.recent_dict import RecentDict
from everthread.core.search.search_results import (
    Excerpt,
    Passage,
    SearchMode,
    SearchPage,
    SearchScope,
    format_heading,
)
from everthread.core.secrets.redaction import redact_part
from everthread.core.turns import is_user_message
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import StoredMessage
from everthread.store.search.snippets import RAW_SECRET_MARGIN, find_sentence_start
from everthread.store.search.text_chunks import searchable_text
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.store import Store
from everthread.thread.lookup.search_pattern import PatternMatcher

EXCERPT_CHARS = 600
"""Characters of one excerpt."""
MAX_EXCERPTS_PER_PAGE = 50
"""Excerpts on one page."""
MAX_QUERY_CHARS = 1_000
MAX_PASSAGE_CHARS = 50_000
MAX_PATTERN_THREADS = 200
"""Search by pattern covers this many of a tenant's latest threads."""
SEARCH_SECONDS = 5.0
"""A search by pattern returns its results after this time; the next page continues from there."""
MESSAGES_PER_QUERY = 200
_MESSAGE_ID = re.compile(r"(?:message:|#)?(\d{1,18})")
_OUTPUT_ID = re.compile(r"output:[0-9a-f]{16}")
_COMPACTION_ID = re.compile(r"compaction:(\d{1,18})")
_NODE_ID = re.compile(r"n[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class OriginalsLayout:
    """The originals of a summary, in order: their ids and their sizes in characters."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]


MAX_CACHED_THREADS = 64
MAX_CACHED_LAYOUTS = 256


class LookupCache:
    """A cache of facts about recently used threads, for one conversation or a whole server.

    It contains threads of all tenants; callers check access first.
    """

    def __init__(self) -> None:
        self._turns: RecentDict[str, dict[int, int]] = RecentDict(MAX_CACHED_THREADS)
        self.layouts: RecentDict[tuple[str, str], OriginalsLayout] = RecentDict(
            MAX_CACHED_LAYOUTS
        )
        """The layouts by thread and id of the summary."""

    def turns(self, thread: str) -> dict[int, int]:
        """Return the turns of a thread's messages that have been read so far, in order."""
        turns = self._turns.get(thread, {})
        self._turns[thread] = turns
        return turns

    def cache_layout(
        self, thread: str, summary_id: str, layout: OriginalsLayout
    ) -> OriginalsLayout:
        self.layouts[thread, summary_id] = layout
        return layout


class StoreLookup:
    """`Lookup` and `Graph` over a store. Without a thread, or with `reach="all"`, search all threads of the tenant.

    `tenant`: None to search the threads of every tenant.
    """

    def __init__(
        self,
        store: Store,
        tenant: str | None,
        thread: str | None,
        *,
        reach: SearchScope = "thread",
        family: bool = False,
        skip_visible: bool = False,
        cache: LookupCache | None = None,
    ) -> None:
        """Set the scope.

        `family`: also search the threads of the client's session and those it branched from. `skip_visible`: leave out
        messages that the thread's context still shows, unless a search by words finds nothing else.
        """
        self.store = store
        self.tenant = tenant
        self.thread = thread
        self._reach: SearchScope = reach if thread is not None else "all"
        self._has_family = family and thread is not None
        self._skips_visible = skip_visible
        self.cache = cache or LookupCache()

    async def threads(self) -> list[str]:
        """List the threads that are searched; empty if all threads of the tenant are."""
        if self.thread is None or self._reach == "all":
            return []
        return await self._list_family(self.thread)

    async def _list_family(self, thread: str) -> list[str]:
        """List the threads to search for this one: itself, and its family if that is included."""
        return await self.store.family(thread) if self._has_family else [thread]

    # Searching

    async def search(
        self,
        text: str,
        *,
        mode: SearchMode = "text",
        scope: SearchScope = "thread",
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        limit: int = 8,
        offset: int = 0,
    ) -> SearchPage:
        """Return a page of exact excerpts: by words the best first, by pattern the earliest first."""
        if scope == "all" and self._reach != "all":
            raise InputError(
                "only this conversation can be searched; leave the scope out"
            )
        if scope == "thread" and self.thread is None:
            raise InputError("no thread was chosen; name one, or search in all")
        if len(text) > MAX_QUERY_CHARS:
            raise InputError(
                f"a query has at most {MAX_QUERY_CHARS:,} characters, not {len(text):,}"
            )
        searched_thread = self.thread if scope == "thread" else None
        page_size = max(1, min(limit, MAX_EXCERPTS_PER_PAGE))
        start = max(0, offset)
        query = SearchQuery(
            text,
            self.tenant,
            searched_thread,
            include_family=self._has_family and searched_thread is not None,
            role=role,
            tool=tool,
            limit=page_size,
            offset=start,
            path=path,
        )
        if mode == "regex":
            if path:
                raise InputError("a path narrows a search by words, not one by pattern")
            page = await self._search_pattern(PatternMatcher(text), query)
            return await self._add_neighbours(page)
        visible_ids = await self._list_visible_ids()
        if visible_ids:
            page = await self._search_words(
                replace(query, visible_messages=visible_ids)
            )
            if page.excerpts:
                return page
        return await self._search_words(query)

    async def _list_visible_ids(self) -> frozenset[int]:
        """List the messages to leave out of a search by words."""
        if self.thread is None or not self._skips_visible:
            return frozenset()
        return frozenset(await self.store.visible_ids(self.thread))

    async def _add_neighbours(self, page: SearchPage) -> SearchPage:
        """Return the excerpts with the beginnings of the messages before and after each."""
        id_matches = [
            _MESSAGE_ID.fullmatch(found_excerpt.id) for found_excerpt in page.excerpts
        ]
        positions = [
            (id_match and int(id_match[1]), excerpt.text)
            for id_match, excerpt in zip(id_matches, page.excerpts, strict=True)
        ]
        neighbours = await self.store.neighbours(positions)
        pairs = zip(page.excerpts, neighbours, strict=True)
        return replace(
            page,
            excerpts=tuple(
                replace(excerpt, before=str(before or ""), after=str(after or ""))
                for excerpt, (before, after) in pairs
            ),
        )

    async def _search_words(self, query: SearchQuery) -> SearchPage:
        """Return a page of `Store.find`, skipping pages with nothing but earlier searches."""
        offset = query.offset
        while True:
            page = await self.store.find(replace(query, offset=offset))
            offset += query.limit
            excerpts = [
                excerpt
                for hit in page.hits
                if (excerpt := await self._load_excerpt(hit)) is not None
            ]
            if excerpts or not page.has_more:
                return SearchPage(
                    tuple(excerpts),
                    offset if page.has_more else None,
                    is_approximate=page.is_approximate,
                )

    async def _load_excerpt(self, hit: SearchHit) -> Excerpt | None:
        """Return a hit as an excerpt with the text around it, or None for the arguments of an earlier search."""
        if is_lookup_tool(hit.tool):
            return None
        text = hit.snippet if hit.is_passage else await self._show_hit(hit)
        if text is None:
            return None
        turn = None
        if hit.message is not None:
            turn = await self._find_turn(hit.thread, hit.message)
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

    async def _show_hit(self, hit: SearchHit) -> str | None:
        """Return the text around a hit, or None if it shows the arguments of an earlier search."""
        if hit.message is None:
            text = await self.store.output(hit.output or "", tenant=self.tenant)
            return _show_around(text, hit.snippet)
        stored_message = await self.store.message(hit.message, tenant=self.tenant)
        excerpt = _show_around(searchable_text(stored_message.body), hit.snippet)
        search_arguments = [
            call.arguments
            for call in calls_of(stored_message.body)
            if is_lookup_tool(call.name)
        ]
        if any(argument and argument in excerpt for argument in search_arguments):
            return None
        if (
            hit.role == "assistant" and hit.tool
        ):  # the arguments of a call, without JSON's escapes
            excerpt = (
                excerpt.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
            )
        return excerpt

    async def _search_pattern(
        self, matcher: PatternMatcher, query: SearchQuery
    ) -> SearchPage:
        excerpts: list[Excerpt] = []
        position = 0
        deadline = 0.0
        async for texts in self._read_texts(query.thread):
            start = position
            position = position + len(texts)
            skipped = max(0, query.offset - start)
            if skipped >= len(texts):
                continue
            deadline = deadline or time.monotonic() + SEARCH_SECONDS
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
        self, searched_thread: str | None
    ) -> AsyncIterator[list[Excerpt]]:
        """Yield every whole text, without calls of a search tool and their results.

        The earliest thread and message come first, so that an offset stays valid while messages are added.
        """
        threads = (
            await self._list_family(searched_thread)
            if searched_thread is not None
            else []
        )
        if searched_thread is None:
            rows = await self.store.list_threads(
                tenant=self.tenant, limit=MAX_PATTERN_THREADS
            )
            threads = [
                row.first.id
                for row in sorted(
                    rows, key=lambda row: (row.first.started, row.first.id)
                )
            ]
        for thread in threads:
            async for texts in self._read_messages(thread):
                yield texts
            yield await self._read_outputs(thread)

    async def _read_messages(self, thread: str) -> AsyncIterator[list[Excerpt]]:
        """Yield the texts of a thread's messages, page by page."""
        turn = 0
        tool_by_call: dict[str, str] = {}
        for start in itertools.count(0, MESSAGES_PER_QUERY):
            page = await self.store.history(
                thread, start=start, limit=MESSAGES_PER_QUERY
            )
            texts = []
            for stored_message in page:
                turn += is_user_message(stored_message.body)
                calls = {call.id: call.name for call in calls_of(stored_message.body)}
                tool_by_call |= calls
                tool_names = (
                    result.name or tool_by_call.get(result.call_id, "")
                    for result in results_of(stored_message.body)
                )
                tools = [*filter(None, tool_names)]
                if not any(map(is_lookup_tool, (*tools, *calls.values()))):
                    texts.append(
                        _make_excerpt(stored_message, thread, turn, ",".join(tools))
                    )
            yield texts
            if len(page) < MESSAGES_PER_QUERY:
                break

    async def _read_outputs(self, thread: str) -> list[Excerpt]:
        """Return the whole stored outputs of a thread."""
        return [
            Excerpt(
                output.id,
                thread,
                turn=None,
                role="tool",
                tool=output.tool,
                created=output.created,
                text=await self.store.output(output.id, tenant=self.tenant),
            )
            for output in await self.store.outputs(thread)
            if not is_lookup_tool(output.tool)
        ]

    # Reading

    async def read(
        self, requested_id: str, *, offset: int = 0, limit: int = 8_000
    ) -> Passage:
        """Return a part of a message or stored output."""
        item_id = requested_id.strip()
        start = max(0, offset)
        max_chars = max(1, min(limit, MAX_PASSAGE_CHARS))
        if _OUTPUT_ID.fullmatch(item_id):
            await self._check_output(item_id)
            text = await self.store.output(item_id, tenant=self.tenant)
            return _make_passage(
                Excerpt(
                    item_id,
                    self.thread or "",
                    turn=None,
                    role="tool",
                    tool="",
                    created=0.0,
                    text=text,
                ),
                start,
                max_chars,
            )
        id_match = _MESSAGE_ID.fullmatch(item_id)
        if id_match is None:
            raise InputError(
                f"{item_id[:80]!r} is no id; use message:123 or output:0123456789abcdef as an answer gave them"
            )
        stored_message, thread = await self._find_message(int(id_match[1]))
        turn = await self._find_turn(thread, stored_message.id)
        return _make_passage(
            _make_excerpt(stored_message, thread, turn), start, max_chars
        )

    async def _check_output(self, output_id: str) -> None:
        if self._reach == "thread" and self.thread is not None:
            lists = [
                await self.store.outputs(thread)
                for thread in await self._list_family(self.thread)
            ]
            if not any(
                output.id == output_id for outputs in lists for output in outputs
            ):
                raise UnknownIdError(
                    f"this conversation has no stored output {output_id}"
                )

    async def _find_message(self, message_id: int) -> tuple[StoredMessage, str]:
        """Return a message and its thread. Raise `UnknownIdError` if it is out of reach."""
        stored_message = await self.store.message(message_id, tenant=self.tenant)
        thread = (await self.store.session(stored_message.session)).thread
        if self.thread is None or thread == self.thread:
            return stored_message, thread
        # A branch has its parent's messages too.
        if await self.turn_of(message_id) is not None:
            return stored_message, self.thread
        if self._reach == "all" or thread in await self._list_family(self.thread):
            return stored_message, thread
        raise UnknownIdError(f"this conversation has no message {message_id}")

    # Turns

    async def turn_of(self, message: int) -> int | None:
        """Return the turn of a message of this thread, or None for a message of another."""
        return (
            None if self.thread is None else await self._find_turn(self.thread, message)
        )

    async def turns(
        self, thread: str, *, needed_ids: Collection[int] = ()
    ) -> Mapping[int, int]:
        """Return the turn of every message, in order. If the cache has all of `needed_ids`, return only the cache.

        Stored messages do not change, so only those added since the last call are read.
        """
        turn_by_message = self.cache.turns(thread)
        has_more = not needed_ids or any(
            message_id not in turn_by_message for message_id in needed_ids
        )
        while has_more:
            start = len(turn_by_message)
            turn = max(turn_by_message.values(), default=0)
            page = await self.store.history(
                thread, start=start, limit=MESSAGES_PER_QUERY
            )
            for stored_message in page:
                turn += is_user_message(stored_message.body)
                turn_by_message[stored_message.id] = turn
            has_more = len(page) == MESSAGES_PER_QUERY
        return turn_by_message

    async def _find_turn(self, thread: str, message: int) -> int | None:
        return (await self.turns(thread, needed_ids=(message,))).get(message) or None

    # Sources of a summary

    async def nodes(self) -> Sequence[Node]:
        if self.thread is None:
            raise InputError("a node belongs to a thread; name it")
        return await self.store.nodes(self.thread)

    async def expand(
        self, requested_id: str, *, offset: int = 0, limit: int = 8_000
    ) -> Passage:
        """Return a part of an original: of a message or output by its id, or of all messages that a summary covers.

        A summary is named as `compaction:12`, by the id of its message, or as a node of the thread's graph.
        """
        item_id = requested_id.strip()
        thread = self.thread
        if thread is None:
            if _COMPACTION_ID.fullmatch(item_id) or _NODE_ID.fullmatch(item_id):
                raise InputError(f"name the thread of {item_id}")
            return await self.read(item_id, offset=offset, limit=limit)
        layout = self.cache.layouts.get((thread, item_id))
        if layout is None:
            ids = await self._find_covered(thread, item_id)
            if ids is None:
                return await self.read(item_id, offset=offset, limit=limit)
            layout = self.cache.cache_layout(
                thread, item_id, await self._make_layout(thread, ids)
            )
        return await self._read_covered(
            thread,
            item_id,
            layout,
            max(0, offset),
            max(1, min(limit, MAX_PASSAGE_CHARS)),
        )

    async def _make_layout(self, thread: str, ids: Collection[int]) -> OriginalsLayout:
        """Return the layout of these messages, in order. Read only the part of the history that holds them."""
        turns = await self.turns(thread)
        wanted_ids = set(ids)
        positions = [
            index for index, message_id in enumerate(turns) if message_id in wanted_ids
        ]
        sizes: dict[int, int] = {}
        first, last = (positions[0], positions[-1] + 1) if positions else (0, 0)
        for start in range(first, last, MESSAGES_PER_QUERY):
            for stored_message in await self.store.history(
                thread, start=start, limit=min(MESSAGES_PER_QUERY, last - start)
            ):
                if stored_message.id in wanted_ids:
                    sizes[stored_message.id] = len(
                        _render_block(stored_message, thread, turns[stored_message.id])
                    )
        return OriginalsLayout(tuple(sizes), tuple(sizes.values()))

    async def _read_covered(
        self,
        thread: str,
        summary_id: str,
        layout: OriginalsLayout,
        start: int,
        max_chars: int,
    ) -> Passage:
        """Return a part of the covered messages, in order, each under its heading. Read only the messages shown."""
        turns = await self.turns(thread, needed_ids=layout.ids)
        blocks: list[str] = []
        total = 0
        for message_id, size in zip(layout.ids, layout.sizes, strict=True):
            first = max(start - total, 0)
            last = min(start + max_chars - total, size)
            total += size
            if first < last:
                stored_message = await self.store.message(
                    message_id, tenant=self.tenant
                )
                blocks.append(
                    redact_part(
                        _render_block(stored_message, thread, turns[message_id]),
                        first,
                        last,
                        margin=RAW_SECRET_MARGIN,
                    )
                )
        end = min(total, start + max_chars)
        return Passage(
            summary_id,
            thread,
            turn=None,
            role="",
            tool="",
            created=None,
            text="".join(blocks),
            start=min(start, total),
            end=end,
            size=total,
        )

    async def _find_covered(self, thread: str, summary_id: str) -> list[int] | None:
        """Return the ids of the messages that a summary covers, or None if the id does not name a summary."""
        if _NODE_ID.fullmatch(summary_id):
            nodes = {node.id: node for node in await self.store.nodes(thread)}
            if summary_id not in nodes:
                raise UnknownIdError(f"this conversation has no node {summary_id}")
            return await self._find_originals(_list_leaves(nodes, summary_id))
        compaction_match = _COMPACTION_ID.fullmatch(summary_id)
        number = _MESSAGE_ID.fullmatch(summary_id)
        session = (
            await self._find_summary_session(int(number[1]))
            if number is not None
            else None
        )
        if compaction_match is None and session is None:
            return None
        records = await self.store.compactions(thread)
        if compaction_match is not None:
            compaction_record = next(
                (record for record in records if record.id == int(compaction_match[1])),
                None,
            )
            if compaction_record is None:
                raise UnknownIdError(
                    f"this thread has no {summary_id}; `status` lists its compactions"
                )
        else:
            compaction_record = next(
                (record for record in records if record.session == session), None
            )
            if compaction_record is None:
                return None
        # A compaction of a proxied client covers all messages before it.
        if not compaction_record.record.covered:
            history = await self.store.history(thread)
            return [
                stored_message.id
                for stored_message in history
                if stored_message.created <= compaction_record.created
            ]
        earlier_records = (
            record
            for record in records
            if record.id < compaction_record.id and record.reverted is None
        )
        return await self._find_originals(
            [
                number
                for record in (*earlier_records, compaction_record)
                for number in record.record.covered
            ]
        )

    async def _find_summary_session(self, message_id: int) -> str | None:
        """Return the session that a summary message begins, or None for any other message."""
        stored_message = await self.load_message(message_id)
        return (
            stored_message.session
            if stored_message is not None and stored_message.kind == "summary"
            else None
        )

    async def _find_originals(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of the original messages; a shortened copy is replaced by its original."""
        originals: set[int] = set()
        for message_id in dict.fromkeys(ids):
            if await self.turn_of(message_id) is not None:
                originals.add(message_id)
            elif (stored_message := await self.load_message(message_id)) is not None:
                originals.add(
                    message_id
                    if stored_message.origin is None
                    else stored_message.origin
                )
        return sorted(originals)

    async def load_message(self, message_id: int) -> StoredMessage | None:
        """Return a message of the tenant, or None if it does not exist."""
        try:
            return await self.store.message(message_id, tenant=self.tenant)
        except UnknownIdError:
            return None


def _render_block(stored_message: StoredMessage, thread: str, turn: int) -> str:
    excerpt = _make_excerpt(stored_message, thread, turn)
    return f"{format_heading(excerpt)}:\n{excerpt.text}\n\n"


def _list_leaves(nodes: Mapping[str, Node], node_id: str) -> list[int]:
    """Return the ids of the messages under a node, in order."""
    messages: list[int] = []
    pending_ids = [node_id]
    visited: set[str] = set()
    while pending_ids:
        node = nodes.get(pending_ids.pop())
        if node is None or node.id in visited:
            continue
        visited.add(node.id)
        if node.level == 0:
            messages += (int(source) for source in node.sources if source.isdecimal())
        else:
            pending_ids += node.sources
    return sorted(messages)


def _make_excerpt(
    stored_message: StoredMessage, thread: str, turn: int | None, tool: str = ""
) -> Excerpt:
    role = str(stored_message.body.get("role", ""))
    text = searchable_text(stored_message.body)
    return Excerpt(
        f"message:{stored_message.id}",
        thread,
        turn=turn or None,
        role=role,
        tool=tool,
        created=stored_message.created,
        text=text,
    )


def _make_passage(excerpt: Excerpt, start: int, max_chars: int) -> Passage:
    """Return a part of a whole text."""
    size = len(excerpt.text)
    first = min(start, size)
    end = min(size, first + max_chars)
    text = redact_part(excerpt.text, first, end, margin=RAW_SECRET_MARGIN)
    created = excerpt.created or None
    return Passage(
        excerpt.id,
        excerpt.thread,
        turn=excerpt.turn,
        role=excerpt.role,
        tool=excerpt.tool,
        created=created,
        text=text,
        start=first,
        end=end,
        size=size,
    )


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
