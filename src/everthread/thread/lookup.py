"""Lookup in a stored thread: by words, by pattern, by id. Excerpts are exact, bounded and redacted.

Used by the tool `recall`, an engine's own tools, and `everthread mcp`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import regex

from everthread.core.messages import calls_of, results_of
from everthread.core.recent_dict import RecentDict
from everthread.core.search.lookup import (
    Excerpt,
    Passage,
    SearchMode,
    SearchPage,
    SearchScope,
    heading,
)
from everthread.core.secrets.redaction import redact, redact_part
from everthread.core.transcript import is_lookup, is_user_message
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.index_pieces import searchable_text
from everthread.store.records import SearchHit, SearchQuery, StoredMessage
from everthread.store.sql.snippets import RAW_MARGIN, sentence_start
from everthread.store.store import Store

# Patterns

MAX_PATTERN = 1_000
"""Maximum characters of a pattern."""
PATTERN_SECONDS = 2.0
"""Maximum seconds of a pattern for all texts of a search together."""
MAX_REPEATS = 10_000
"""Maximum product of counted repetitions: a pattern is unrolled by them before use, which takes memory."""
_COUNTS = regex.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def compile_pattern(pattern: str, flags: int) -> regex.Pattern[str]:
    """Compile a pattern of a model. Raise `InputError` if it is invalid or would take too much room."""
    repeats = (
        int(group or 0)
        for match in _COUNTS.finditer(pattern)
        for group in match.groups()
    )
    if (
        math.prod(max(1, min(count, MAX_REPEATS + 1)) for count in repeats)
        > MAX_REPEATS
    ):
        raise InputError(
            f"the pattern {pattern[:80]!r} repeats too often; use * or + instead of large numbers"
        )
    try:
        return regex.compile(pattern, flags)
    except (regex.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"{pattern[:80]!r} is no regular expression: {error}"
        ) from error


class PatternMatcher:
    """One pattern and the seconds it may still take."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > MAX_PATTERN:
            raise InputError(
                f"a pattern has 1 to {MAX_PATTERN:,} characters, not {len(pattern):,}"
            )
        self._pattern = compile_pattern(pattern, regex.MULTILINE)
        self._seconds = PATTERN_SECONDS

    def scan(self, texts: Sequence[str], around: int) -> list[str]:
        """Return the words around the first match in each text, without secrets; empty if nothing matches.

        Return fewer results than `texts` if the time runs out. Raise `InputError` if a single text takes too long.
        """
        shown = []
        for text in texts:
            if self._seconds <= 0:
                break
            started = time.monotonic()
            shown.append(self._show_match(text, around))
            self._seconds -= time.monotonic() - started
        return shown

    def _show_match(self, text: str, around: int) -> str:
        if self._find_first(text) is None:
            return ""
        clean = redact(text)
        span = self._find_first(clean)
        if span is None:  # only a secret matches
            return ""
        spare = max(0, around - (span[1] - span[0])) // 2
        start = max(0, span[0] - spare)
        end = min(len(clean), start + around)
        return (
            f"{'…' if start else ''}{clean[start:end]}{'…' if end < len(clean) else ''}"
        )

    def _find_first(self, text: str) -> tuple[int, int] | None:
        try:
            match = self._pattern.search(text, timeout=self._seconds, concurrent=True)
        except TimeoutError as error:
            raise InputError(
                f"the pattern takes too long on a text of {len(text):,} characters; make it simpler (no repetition "
                "inside a repetition), or search for words"
            ) from error
        return None if match is None else match.span()


# Lookup

EXCERPT_CHARS = 600
"""Characters of one excerpt."""
MAX_PLACES = 50
"""Excerpts on one page."""
MAX_QUERY = 1_000
MAX_PART = 50_000
MAX_PATTERN_THREADS = 200
"""Search by pattern covers this many of a tenant's latest threads."""
SEARCH_SECONDS = 5.0
"""A search by pattern returns its results after this time; the next page continues from there."""
MESSAGES_PER_QUERY = 200
_MESSAGE = re.compile(r"(?:message:|#)?(\d{1,18})")
_OUTPUT = re.compile(r"output:[0-9a-f]{16}")
_COMPACTION = re.compile(r"compaction:(\d{1,18})")
_NODE = re.compile(r"n[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class OriginalsLayout:
    """The originals of a summary, in order: their ids and their sizes in characters."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]


CACHED_THREADS = 64
CACHED_LAYOUTS = 256


class LookupCache:
    """Facts of the threads used last, for one conversation or a whole server.

    It holds threads of any tenant: access is checked before.
    """

    def __init__(self) -> None:
        self._turns: RecentDict[str, dict[int, int]] = RecentDict(CACHED_THREADS)
        self.layouts: RecentDict[tuple[str, str], OriginalsLayout] = RecentDict(
            CACHED_LAYOUTS
        )
        """By the thread and the id of a summary."""

    def turns(self, thread: str) -> dict[int, int]:
        """Return the turns of a thread's messages that have been read so far, in order."""
        turns = self._turns.get(thread, {})
        self._turns[thread] = turns
        return turns

    def keep(
        self, thread: str, wanted: str, layout: OriginalsLayout
    ) -> OriginalsLayout:
        self.layouts[thread, wanted] = layout
        return layout


class StoreLookup:
    """`Lookup` and `Graph` over a store. Without a thread, or with `reach="all"`, it looks in all of the tenant's.

    `tenant` None: in the threads of every tenant.
    """

    def __init__(
        self,
        store: Store,
        tenant: str | None,
        thread: str | None,
        *,
        reach: SearchScope = "thread",
        family: bool = False,
        cache: LookupCache | None = None,
    ) -> None:
        """Set the scope. `family`: also search all threads of the client's session and those it branched from."""
        self.store = store
        self.tenant = tenant
        self.thread = thread
        self._reach: SearchScope = reach if thread is not None else "all"
        self._has_family = family and thread is not None
        self.cache = cache or LookupCache()

    async def threads(self) -> list[str]:
        """List the threads that are searched; empty for all of the tenant's."""
        if self.thread is None or self._reach == "all":
            return []
        return await self._threads(self.thread)

    async def _threads(self, thread: str) -> list[str]:
        """Return the threads to search when this one is named."""
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
        if len(text) > MAX_QUERY:
            raise InputError(
                f"a query has at most {MAX_QUERY:,} characters, not {len(text):,}"
            )
        within = self.thread if scope == "thread" else None
        most = max(1, min(limit, MAX_PLACES))
        first = max(0, offset)
        query = SearchQuery(
            text,
            self.tenant,
            within,
            family=self._has_family and within is not None,
            role=role,
            tool=tool,
            limit=most,
            offset=first,
            path=path,
        )
        if mode == "regex":
            if path:
                raise InputError("a path narrows a search by words, not one by pattern")
            page = await self._search_pattern(PatternMatcher(text), query)
            return await self._add_neighbours(page)
        return await self._search_words(query)

    async def _add_neighbours(self, page: SearchPage) -> SearchPage:
        """Return the excerpts with the beginnings of the messages before and after each."""
        numbers = [_MESSAGE.fullmatch(excerpt.id) for excerpt in page.excerpts]
        places = [
            (number and int(number[1]), one.text)
            for number, one in zip(numbers, page.excerpts, strict=True)
        ]
        beside = await self.store.neighbours(places)
        pairs = zip(page.excerpts, beside, strict=True)
        return replace(
            page,
            excerpts=tuple(
                replace(one, before=str(before or ""), after=str(after or ""))
                for one, (before, after) in pairs
            ),
        )

    async def _search_words(self, query: SearchQuery) -> SearchPage:
        """Return a page of `Store.find`. Skip pages that hold only earlier searches."""
        at = query.offset
        while True:
            page = await self.store.find(replace(query, offset=at))
            at += query.limit
            excerpts = [
                excerpt
                for hit in page.hits
                if (excerpt := await self._load_excerpt(hit)) is not None
            ]
            if excerpts or not page.more:
                return SearchPage(
                    tuple(excerpts), at if page.more else None, near=page.near
                )

    async def _load_excerpt(self, hit: SearchHit) -> Excerpt | None:
        """Return a hit as an excerpt with the text around it, or None for the arguments of an earlier search."""
        if is_lookup(hit.tool):
            return None
        text = hit.snippet if hit.is_passage else await self._show_hit(hit)
        if text is None:
            return None
        turn = None
        if hit.message is not None:
            turn = await self._turn(hit.thread, hit.message)
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
        stored = await self.store.message(hit.message, tenant=self.tenant)
        shown = _show_around(searchable_text(stored.body), hit.snippet)
        searched = [
            call.arguments for call in calls_of(stored.body) if is_lookup(call.name)
        ]
        if any(argument and argument in shown for argument in searched):
            return None
        if (
            hit.role == "assistant" and hit.tool
        ):  # the arguments of a call, without JSON's escapes
            shown = shown.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        return shown

    async def _search_pattern(
        self, matcher: PatternMatcher, query: SearchQuery
    ) -> SearchPage:
        excerpts: list[Excerpt] = []
        at = 0
        deadline = 0.0
        async for texts in self._read_texts(query.thread):
            start = at
            at = at + len(texts)
            skipped = max(0, query.offset - start)
            if skipped >= len(texts):
                continue
            deadline = deadline or time.monotonic() + SEARCH_SECONDS
            fitting = [
                (index, text)
                for index, text in enumerate(texts[skipped:], start + skipped)
                if query.role in (None, text.role) and query.tool in (None, text.tool)
            ]
            shown = await asyncio.to_thread(
                matcher.scan, [text.text for _, text in fitting], EXCERPT_CHARS
            )
            for (index, text), words in zip(fitting, shown, strict=False):
                if words and len(excerpts) == query.limit:
                    return SearchPage(tuple(excerpts), index)
                if words:
                    excerpts.append(replace(text, text=words))
            if len(shown) < len(fitting):
                return SearchPage(tuple(excerpts), fitting[len(shown)][0])
            if time.monotonic() > deadline:
                return SearchPage(tuple(excerpts), at)
        return SearchPage(tuple(excerpts), None)

    async def _read_texts(self, within: str | None) -> AsyncIterator[list[Excerpt]]:
        """Yield every whole text, without calls of a search tool and their results.

        The earliest thread and message come first, so that an offset stays valid while messages are added.
        """
        threads = await self._threads(within) if within is not None else []
        if within is None:
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
            turn = 0
            called = dict[str, str]()
            for start in itertools.count(0, MESSAGES_PER_QUERY):
                page = await self.store.history(
                    thread, start=start, limit=MESSAGES_PER_QUERY
                )
                texts = []
                for stored in page:
                    turn += is_user_message(stored.body)
                    calls = {call.id: call.name for call in calls_of(stored.body)}
                    called |= calls
                    named = (
                        one.name or called.get(one.call_id, "")
                        for one in results_of(stored.body)
                    )
                    tools = [*filter(None, named)]
                    if not any(map(is_lookup, (*tools, *calls.values()))):
                        texts.append(
                            _whole_message(stored, thread, turn, ",".join(tools))
                        )
                yield texts
                if len(page) < MESSAGES_PER_QUERY:
                    break
            outputs = [
                output
                for output in await self.store.outputs(thread)
                if not is_lookup(output.tool)
            ]
            yield [
                Excerpt(
                    output.id,
                    thread,
                    turn=None,
                    role="tool",
                    tool=output.tool,
                    created=output.created,
                    text=await self.store.output(output.id, tenant=self.tenant),
                )
                for output in outputs
            ]

    # Reading

    async def read(
        self, wanted: str, *, offset: int = 0, limit: int = 8_000
    ) -> Passage:
        """Return a part of a message or stored output."""
        cited = wanted.strip()
        start = max(0, offset)
        most = max(1, min(limit, MAX_PART))
        if _OUTPUT.fullmatch(cited):
            await self._check_output(cited)
            text = await self.store.output(cited, tenant=self.tenant)
            return _make_passage(
                Excerpt(
                    cited,
                    self.thread or "",
                    turn=None,
                    role="tool",
                    tool="",
                    created=0.0,
                    text=text,
                ),
                start,
                most,
            )
        number = _MESSAGE.fullmatch(cited)
        if number is None:
            raise InputError(
                f"{cited[:80]!r} is no id; use message:123 or output:0123456789abcdef as an answer gave them"
            )
        stored, thread = await self._message(int(number[1]))
        turn = await self._turn(thread, stored.id)
        return _make_passage(_whole_message(stored, thread, turn), start, most)

    async def _check_output(self, cited: str) -> None:
        if self._reach == "thread" and self.thread is not None:
            lists = [
                await self.store.outputs(thread)
                for thread in await self._threads(self.thread)
            ]
            if not any(output.id == cited for outputs in lists for output in outputs):
                raise UnknownIdError(f"this conversation has no stored output {cited}")

    async def _message(self, number: int) -> tuple[StoredMessage, str]:
        """Return a message and its thread. Raise `UnknownIdError` if it is out of reach."""
        stored = await self.store.message(number, tenant=self.tenant)
        thread = (await self.store.session(stored.session)).thread
        if self.thread is None or thread == self.thread:
            return stored, thread
        # A branch has its parent's messages too.
        if await self.turn_of(number) is not None:
            return stored, self.thread
        if self._reach == "all" or thread in await self._threads(self.thread):
            return stored, thread
        raise UnknownIdError(f"this conversation has no message {number}")

    # Turns

    async def turn_of(self, message: int) -> int | None:
        """Return the turn of a message of this thread, or None for a message of another."""
        return None if self.thread is None else await self._turn(self.thread, message)

    async def turns(
        self, thread: str, *, upto: Collection[int] = ()
    ) -> Mapping[int, int]:
        """Return the turn of every message, in order. Read nothing if the cache covers all of `upto`.

        Stored messages do not change, so only those added since the last call are read.
        """
        numbers = self.cache.turns(thread)
        more = not upto or any(number not in numbers for number in upto)
        while more:
            start = len(numbers)
            turn = max(numbers.values(), default=0)
            page = await self.store.history(
                thread, start=start, limit=MESSAGES_PER_QUERY
            )
            for stored in page:
                turn += is_user_message(stored.body)
                numbers[stored.id] = turn
            more = len(page) == MESSAGES_PER_QUERY
        return numbers

    async def _turn(self, thread: str, message: int) -> int | None:
        return (await self.turns(thread, upto=(message,))).get(message) or None

    # Sources of a summary

    async def nodes(self) -> Sequence[Node]:
        if self.thread is None:
            raise InputError("a node belongs to a thread; name it")
        return await self.store.nodes(self.thread)

    async def expand(
        self, wanted: str, *, offset: int = 0, limit: int = 8_000
    ) -> Passage:
        """Return a part of an original: of a message or output by its id, or of all messages that a summary covers.

        A summary is named as `compaction:12`, by the id of its message, or as a node of the thread's graph.
        """
        cited = wanted.strip()
        thread = self.thread
        if thread is None:
            if _COMPACTION.fullmatch(cited) or _NODE.fullmatch(cited):
                raise InputError(f"name the thread of {cited}")
            return await self.read(cited, offset=offset, limit=limit)
        layout = self.cache.layouts.get((thread, cited))
        if layout is None:
            ids = await self._find_covered(thread, cited)
            if ids is None:
                return await self.read(cited, offset=offset, limit=limit)
            layout = self.cache.keep(thread, cited, await self._lay_out(thread, ids))
        return await self._read_covered(
            thread, cited, layout, max(0, offset), max(1, min(limit, MAX_PART))
        )

    async def _lay_out(self, thread: str, ids: Collection[int]) -> OriginalsLayout:
        """Return the layout of these messages, in order. Read only the part of the history that holds them."""
        turns = await self.turns(thread)
        wanted = set(ids)
        places = [index for index, number in enumerate(turns) if number in wanted]
        sizes: dict[int, int] = {}
        first, last = (places[0], places[-1] + 1) if places else (0, 0)
        for start in range(first, last, MESSAGES_PER_QUERY):
            for stored in await self.store.history(
                thread, start=start, limit=min(MESSAGES_PER_QUERY, last - start)
            ):
                if stored.id in wanted:
                    sizes[stored.id] = len(
                        _render_block(stored, thread, turns[stored.id])
                    )
        return OriginalsLayout(tuple(sizes), tuple(sizes.values()))

    async def _read_covered(
        self, thread: str, wanted: str, layout: OriginalsLayout, start: int, most: int
    ) -> Passage:
        """Return a part of the covered messages, in order, each under its heading. Read only the messages shown."""
        turns = await self.turns(thread, upto=layout.ids)
        shown: list[str] = []
        total = 0
        for number, size in zip(layout.ids, layout.sizes, strict=True):
            first = max(start - total, 0)
            last = min(start + most - total, size)
            total += size
            if first < last:
                stored = await self.store.message(number, tenant=self.tenant)
                shown.append(
                    redact_part(
                        _render_block(stored, thread, turns[number]),
                        first,
                        last,
                        margin=RAW_MARGIN,
                    )
                )
        end = min(total, start + most)
        return Passage(
            wanted,
            thread,
            turn=None,
            role="",
            tool="",
            created=None,
            text="".join(shown),
            start=min(start, total),
            end=end,
            size=total,
        )

    async def _find_covered(self, thread: str, wanted: str) -> list[int] | None:
        """Return the ids of the messages that a summary covers, or None if the id does not name a summary."""
        if _NODE.fullmatch(wanted):
            nodes = {node.id: node for node in await self.store.nodes(thread)}
            if wanted not in nodes:
                raise UnknownIdError(f"this conversation has no node {wanted}")
            return await self._find_originals(_list_leaves(nodes, wanted))
        compaction = _COMPACTION.fullmatch(wanted)
        number = _MESSAGE.fullmatch(wanted)
        session = (
            await self._session_of_summary(int(number[1]))
            if number is not None
            else None
        )
        if compaction is None and session is None:
            return None
        records = await self.store.compactions(thread)
        if compaction is not None:
            chosen = next(
                (record for record in records if record.id == int(compaction[1])), None
            )
            if chosen is None:
                raise UnknownIdError(
                    f"this thread has no {wanted}; `status` lists its compactions"
                )
        else:
            chosen = next(
                (record for record in records if record.session == session), None
            )
            if chosen is None:
                return None
        # A proxied client's: it covers all messages before it.
        if not chosen.record.covered:
            history = await self.store.history(thread)
            return [stored.id for stored in history if stored.created <= chosen.created]
        before = (
            record
            for record in records
            if record.id < chosen.id and record.reverted is None
        )
        return await self._find_originals(
            [number for record in (*before, chosen) for number in record.record.covered]
        )

    async def _session_of_summary(self, number: int) -> str | None:
        """Return the session that a summary message begins, or None for any other message."""
        stored = await self.load_message(number)
        return (
            stored.session if stored is not None and stored.kind == "summary" else None
        )

    async def _find_originals(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of the originals, with the original's id instead of a shortened copy's."""
        originals: set[int] = set()
        for number in dict.fromkeys(ids):
            if await self.turn_of(number) is not None:
                originals.add(number)
            elif (stored := await self.load_message(number)) is not None:
                originals.add(number if stored.origin is None else stored.origin)
        return sorted(originals)

    async def load_message(self, number: int) -> StoredMessage | None:
        """Return a message of the tenant, or None if it does not exist."""
        try:
            return await self.store.message(number, tenant=self.tenant)
        except UnknownIdError:
            return None


def _render_block(stored: StoredMessage, thread: str, turn: int) -> str:
    whole = _whole_message(stored, thread, turn)
    return f"{heading(whole)}:\n{whole.text}\n\n"


def _list_leaves(nodes: Mapping[str, Node], wanted: str) -> list[int]:
    """Return the ids of the messages under a node, in order."""
    messages: list[int] = []
    waiting = [wanted]
    visited: set[str] = set()
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None or node.id in visited:
            continue
        visited.add(node.id)
        if node.level == 0:
            messages += (int(source) for source in node.sources if source.isdecimal())
        else:
            waiting += node.sources
    return sorted(messages)


def _whole_message(
    stored: StoredMessage, thread: str, turn: int | None, tool: str = ""
) -> Excerpt:
    role = str(stored.body.get("role", ""))
    text = searchable_text(stored.body)
    return Excerpt(
        f"message:{stored.id}",
        thread,
        turn=turn or None,
        role=role,
        tool=tool,
        created=stored.created,
        text=text,
    )


def _make_passage(whole: Excerpt, start: int, most: int) -> Passage:
    """Return a part of a whole text."""
    size = len(whole.text)
    first = min(start, size)
    end = min(size, first + most)
    shown = redact_part(whole.text, first, end, margin=RAW_MARGIN)
    when = whole.created or None
    return Passage(
        whole.id,
        whole.thread,
        turn=whole.turn,
        role=whole.role,
        tool=whole.tool,
        created=when,
        text=shown,
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
    spare = max(0, EXCERPT_CHARS - (match.end() - match.start())) // 2
    start = sentence_start(text, max(0, match.start() - spare))
    end = min(len(text), max(match.end() + spare, start + EXCERPT_CHARS))
    shown = redact_part(text, start, end, margin=RAW_MARGIN)
    is_cut = end < len(text) or len(shown) > EXCERPT_CHARS
    return f"{'…' if start else ''}{shown[:EXCERPT_CHARS]}{'…' if is_cut else ''}"
