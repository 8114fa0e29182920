"""Lookup in a stored thread: by words, by pattern, by id. Excerpts are exact, bounded and redacted.

Used by the tool `recall`, an engine's own tools, and `everthread mcp`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import regex

from everthread.core.messages import calls_of, results_of
from everthread.core.redaction import redact, redact_part
from everthread.core.search.lookup import Excerpt, Passage, SearchMode, SearchPage, SearchScope, heading
from everthread.core.transcript import is_lookup, is_user_message
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.index import searchable_text
from everthread.store.models import CompactionRecord, RecallQuery, SearchHit, SearchQuery, StoredMessage
from everthread.store.sql.search import sentence_start
from everthread.store.store import Store

# What lookups remember

CACHED_THREADS = 64
"""How many threads the cache holds, those used last."""
CACHED_LAYOUTS = 32
"""How many layouts the cache holds for one thread."""


@dataclass(frozen=True, slots=True)
class OriginalsLayout:
    """The originals of a summary one after the other: their ids, and how many characters each takes."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(slots=True)
class ThreadFacts:
    """The cached facts of a thread: the turn of each message, in order, and layouts by the id of a summary."""

    turns: dict[int, int] = field(default_factory=dict)
    layouts: OrderedDict[str, OriginalsLayout] = field(default_factory=OrderedDict)

    def keep(self, wanted: str, layout: OriginalsLayout) -> OriginalsLayout:
        self.layouts[wanted] = layout
        while len(self.layouts) > CACHED_LAYOUTS:
            self.layouts.popitem(last=False)
        return layout


class LookupCache:
    """A cache for one conversation or a whole server. It holds threads of any tenant: access is checked before."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, ThreadFacts] = OrderedDict()

    def of(self, thread: str) -> ThreadFacts:
        facts = self._threads.setdefault(thread, ThreadFacts())
        self._threads.move_to_end(thread)
        while len(self._threads) > CACHED_THREADS:
            self._threads.popitem(last=False)
        return facts


# Patterns

LONGEST_PATTERN = 1_000
"""Characters of a pattern."""
PATTERN_SECONDS = 2.0
"""The most seconds a pattern may take, for all texts of a search together."""
MOST_REPEATS = 10_000
"""Counted repetitions, multiplied: a pattern is unrolled by them before it is used, and takes room accordingly."""
_COUNTS = regex.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def compile_pattern(pattern: str, flags: int) -> regex.Pattern[str]:
    """Compile a pattern of a model; `InputError` where it is none, or would take too much room."""
    repeats = (int(group or 0) for match in _COUNTS.finditer(pattern) for group in match.groups())
    if math.prod(max(1, min(count, MOST_REPEATS + 1)) for count in repeats) > MOST_REPEATS:
        raise InputError(f"the pattern {pattern[:80]!r} repeats too often; use * or + instead of large numbers")
    try:
        return regex.compile(pattern, flags)
    except (regex.error, RecursionError, OverflowError) as error:
        raise InputError(f"{pattern[:80]!r} is no regular expression: {error}") from error


class PatternMatcher:
    """One pattern and the seconds it may still take."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > LONGEST_PATTERN:
            raise InputError(f"a pattern has 1 to {LONGEST_PATTERN:,} characters, not {len(pattern):,}")
        self._pattern = compile_pattern(pattern, regex.MULTILINE)
        self._seconds = PATTERN_SECONDS

    @property
    def is_spent(self) -> bool:
        """Whether the pattern has used up its time."""
        return self._seconds <= 0

    def scan(self, texts: Sequence[str], around: int) -> list[str]:
        """For each text the words around the first match, without secrets; empty where nothing matches.

        The answer is shorter than `texts` where the time ends. `InputError` where one text alone takes too long.
        """
        shown = []
        for text in texts:
            if self.is_spent:
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
        return f"{'…' if start else ''}{clean[start:end]}{'…' if end < len(clean) else ''}"

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

EXCERPT = 600
"""Characters of one place."""
BEGINNING = 100
"""Characters of the messages before and after a place."""
MARGIN = 2_000
"""Characters around a part that are searched for secrets too: a secret is recognised by the text beside it."""
MAX_PLACES = 50
"""Places on one page."""
LONGEST_QUERY = 1_000
LONGEST_PART = 50_000
THREADS = 200
"""A pattern is looked for in so many of a tenant's threads, the latest."""
SEARCH_SECONDS = 5.0
"""After so long a search by pattern gives what it has; the next page goes on from there."""
PAGE = 200
CLOSE = 0.3
"""The share of the query's weight that a text must hold to be shown where no text holds all words."""
CLOSE_QUESTION = 0.15
"""The same for a question, whose answer is worded otherwise (`benchmarks retention`)."""
QUESTION_WORDS = 3
"""A query of so many words or more is a question."""
_MESSAGE = re.compile(r"(?:message:|#)?(\d{1,18})")
_OUTPUT = re.compile(r"output:[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text, and the excerpt it would be shown as, still without words."""

    excerpt: Excerpt
    text: str


class _Reader:
    """Reads a thread's messages in order: which turn each is of, and which tool a result is of."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self._turn = 0
        self._tools: dict[str, str] = {}

    def read(self, stored: StoredMessage) -> _Piece | None:
        """The message as a text; None for calls of a search tool and their results."""
        body = stored.body
        self._turn += is_user_message(body)
        calls = calls_of(body)
        self._tools |= {call.id: call.name for call in calls}
        named = (result.name or self._tools.get(result.call_id, "") for result in results_of(body))
        tools = [*filter(None, named)]
        if any(map(is_lookup, (*tools, *(call.name for call in calls)))):
            return None
        role = str(body.get("role", ""))
        excerpt = Excerpt(
            f"message:{stored.id}", self._thread, self._turn or None, role, ",".join(tools), stored.created, ""
        )
        return _Piece(excerpt, searchable_text(body))


class StoreLookup:
    """`Lookup` over a store. Without a thread, or with `reach="all"`, it looks in all of the tenant's."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        thread: str | None,
        *,
        reach: SearchScope = "thread",
        cache: LookupCache | None = None,
    ) -> None:
        self.store = store
        self.tenant = tenant
        self.thread = thread
        self._reach: SearchScope = reach if thread is not None else "all"
        self.cache = cache or LookupCache()

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
        """A page of exact excerpts. By words the best come first, by pattern the earliest."""
        if scope == "all" and self._reach != "all":
            raise InputError("only this conversation can be searched; leave the scope out")
        if scope == "thread" and self.thread is None:
            raise InputError("no thread was chosen; name one, or search in all")
        if len(text) > LONGEST_QUERY:
            raise InputError(f"a query has at most {LONGEST_QUERY:,} characters, not {len(text):,}")
        within = self.thread if scope == "thread" else None
        most, first = max(1, min(limit, MAX_PLACES)), max(0, offset)
        query = SearchQuery(text, self.tenant, within, role=role, tool=tool, limit=most, offset=first, path=path)
        if mode == "regex":
            if path:
                raise InputError("a path narrows a search by words, not one by pattern")
            return await self._search_pattern(PatternMatcher(text), query)
        page = await (self._search_words(query) if path or '"' in text else self._search_best(query))
        return replace(page, excerpts=tuple([await self._add_neighbours(excerpt) for excerpt in page.excerpts]))

    async def _search_best(self, query: SearchQuery) -> SearchPage:
        """A question is answered by one ranking; a word or two by the texts that hold them all, else by the closest."""
        if len(query.text.split()) >= QUESTION_WORDS:
            first = await self._search_closest(replace(query, offset=0), CLOSE_QUESTION)
            if not query.offset:
                return first
            page, shown = await self._search_words(query), {excerpt.id for excerpt in first.excerpts}
            return replace(page, excerpts=tuple(excerpt for excerpt in page.excerpts if excerpt.id not in shown))
        page = await self._search_words(query)
        return (
            page if page.excerpts or page.next is not None or query.offset else await self._search_closest(query, CLOSE)
        )

    async def _search_words(self, query: SearchQuery) -> SearchPage:
        """A page of texts that hold all the words. Pages with nothing but earlier searches are skipped."""
        at, most = query.offset, query.limit
        while True:
            hits = await self.store.search(replace(query, limit=most + 1, offset=at))
            excerpts = [excerpt for hit in hits[:most] if (excerpt := await self._load_excerpt(hit)) is not None]
            at += most
            if len(hits) <= most:
                return SearchPage(tuple(excerpts), None)
            if excerpts:
                return SearchPage(tuple(excerpts), at)

    async def _search_closest(self, query: SearchQuery, least: float) -> SearchPage:
        """The texts that hold the rarest of the words: answers are worded unlike questions."""
        question = RecallQuery(
            query.text, self.tenant, query.thread, role=query.role, tool=query.tool, limit=query.limit, least=least,
            chars=EXCERPT, as_page=True,
        )  # fmt: skip
        passages = await self.store.recall(question)
        places = [
            Excerpt(
                passage.output or f"message:{passage.message}", passage.thread,
                passage.turn or None if passage.message is not None else None, passage.role, passage.tool,
                passage.created, passage.text,
            )
            for passage in passages
        ]  # fmt: skip
        return SearchPage(tuple(places), None, near=all(passage.closeness < 1 for passage in passages))

    async def _add_neighbours(self, excerpt: Excerpt) -> Excerpt:
        """The excerpt with the beginnings of the messages before and after it, unless it shows them itself."""
        match = _MESSAGE.fullmatch(excerpt.id)
        if match is None:
            return excerpt
        stored = await self.store.message(int(match[1]), tenant=self.tenant)
        around = await self.store.messages(stored.session, start=max(0, stored.seq - 1), limit=3)
        beside = {
            message.seq - stored.seq: f"{message.body.get('role', '')}: {text}"
            for message in around
            if (text := _first_words(message)) and text.rstrip("…") not in " ".join(excerpt.text.split())
        }
        return replace(excerpt, before=beside.get(-1, ""), after=beside.get(1, ""))

    async def _load_excerpt(self, hit: SearchHit) -> Excerpt | None:
        """A hit as an excerpt with the text around it; None for the arguments of an earlier search."""
        if is_lookup(hit.tool):
            return None
        if hit.message is None:
            cited = hit.output or ""
            text = await self.store.output(cited, tenant=self.tenant)
            return Excerpt(cited, hit.thread, None, hit.role, hit.tool, hit.created, _show_around(text, hit.snippet))
        stored = await self.store.message(hit.message, tenant=self.tenant)
        shown = _show_around(searchable_text(stored.body), hit.snippet)
        searched = [call.arguments for call in calls_of(stored.body) if is_lookup(call.name)]
        if any(argument and argument in shown for argument in searched):
            return None
        turn = await self._turn(hit.thread, hit.message)
        shown = _unescape(shown) if _is_call(hit) else shown
        return Excerpt(f"message:{hit.message}", hit.thread, turn, hit.role, hit.tool, hit.created, shown)

    async def _search_pattern(self, matcher: PatternMatcher, query: SearchQuery) -> SearchPage:
        excerpts: list[Excerpt] = []
        at, deadline = 0, 0.0
        async for pieces in self._read_texts(query.thread):
            start, at = at, at + len(pieces)
            skipped = max(0, query.offset - start)
            if skipped >= len(pieces):
                continue
            deadline = deadline or time.monotonic() + SEARCH_SECONDS
            fitting = [
                (index, piece)
                for index, piece in enumerate(pieces[skipped:], start + skipped)
                if query.role in (None, piece.excerpt.role) and query.tool in (None, piece.excerpt.tool)
            ]
            shown = await asyncio.to_thread(matcher.scan, [piece.text for _, piece in fitting], EXCERPT)
            for (index, piece), text in zip(fitting, shown, strict=False):
                if text and len(excerpts) == query.limit:
                    return SearchPage(tuple(excerpts), index)
                if text:
                    excerpts.append(replace(piece.excerpt, text=text))
            if len(shown) < len(fitting):
                return SearchPage(tuple(excerpts), fitting[len(shown)][0])
            if time.monotonic() > deadline:
                return SearchPage(tuple(excerpts), at)
        return SearchPage(tuple(excerpts), None)

    async def _read_texts(self, within: str | None) -> AsyncIterator[list[_Piece]]:
        """Every text, the earliest thread and message first, so that an offset stays valid while messages are added."""
        if within is not None:
            threads = [within]
        else:
            rows = await self.store.list_threads(tenant=self.tenant, limit=THREADS)
            threads = [row.first.id for row in sorted(rows, key=lambda row: (row.first.started, row.first.id))]
        for thread in threads:
            reader = _Reader(thread)
            for start in itertools.count(0, PAGE):
                page = await self.store.history(thread, start=start, limit=PAGE)
                yield [piece for stored in page if (piece := reader.read(stored)) is not None]
                if len(page) < PAGE:
                    break
            yield [
                _Piece(
                    Excerpt(output.id, thread, None, "tool", output.tool, output.created, ""),
                    await self.store.output(output.id, tenant=self.tenant),
                )
                for output in await self.store.outputs(thread)
                if not is_lookup(output.tool)
            ]

    # Reading

    async def read(self, wanted: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
        """A part of a message or stored output."""
        cited = wanted.strip()
        start, most = max(0, offset), max(1, min(limit, LONGEST_PART))
        if _OUTPUT.fullmatch(cited):
            await self._check_output(cited)
            text = await self.store.output(cited, tenant=self.tenant)
            return _make_passage(Excerpt(cited, self.thread or "", None, "tool", "", 0.0, ""), text, start, most)
        number = _MESSAGE.fullmatch(cited)
        if number is None:
            raise InputError(
                f"{cited[:80]!r} is no id; use message:123 or output:0123456789abcdef as an answer gave them"
            )
        stored, thread = await self._message(int(number[1]))
        turn = await self._turn(thread, stored.id)
        role = str(stored.body.get("role", ""))
        excerpt = Excerpt(f"message:{stored.id}", thread, turn, role, "", stored.created, "")
        return _make_passage(excerpt, searchable_text(stored.body), start, most)

    async def _check_output(self, cited: str) -> None:
        if self._reach == "thread" and self.thread is not None:
            ids = {output.id for output in await self.store.outputs(self.thread)}
            if cited not in ids:
                raise UnknownIdError(f"this conversation has no stored output {cited}")

    async def _message(self, number: int) -> tuple[StoredMessage, str]:
        """A message and its thread; `UnknownIdError` for one that is out of reach."""
        stored = await self.store.message(number, tenant=self.tenant)
        thread = (await self.store.session(stored.session)).thread
        if self.thread is None or thread == self.thread:
            return stored, thread
        if await self.turn_of(number) is not None:  # a branch has its parent's messages too
            return stored, self.thread
        if self._reach == "all":
            return stored, thread
        raise UnknownIdError(f"this conversation has no message {number}")

    # Turns

    async def turn_of(self, message: int) -> int | None:
        """The turn of a message of this thread; None for a message of another."""
        return None if self.thread is None else await self._turn(self.thread, message)

    async def turns(self, thread: str, *, upto: Collection[int] = ()) -> Mapping[int, int]:
        """The turn of every message in order; with `upto` nothing is read where the cache has those.

        Cached: stored messages do not change, so only those since the last call are read.
        """
        numbers = self.cache.of(thread).turns
        more = not upto or any(number not in numbers for number in upto)
        while more:
            start, turn = len(numbers), max(numbers.values(), default=0)
            page = await self.store.history(thread, start=start, limit=PAGE)
            for stored in page:
                turn += is_user_message(stored.body)
                numbers[stored.id] = turn
            more = len(page) == PAGE
        return numbers

    async def _turn(self, thread: str, message: int) -> int | None:
        return (await self.turns(thread, upto=(message,))).get(message) or None


def _make_passage(excerpt: Excerpt, text: str, start: int, most: int) -> Passage:
    first = min(start, len(text))
    end = min(len(text), first + most)
    shown = redact_part(text, first, end, margin=MARGIN)
    when = excerpt.created or None
    return Passage(
        excerpt.id, excerpt.thread, excerpt.turn, excerpt.role, excerpt.tool, when, shown, first, end, len(text)
    )  # fmt: skip


def _first_words(stored: StoredMessage) -> str:
    """The beginning of a message on one line; empty for a summary and for searches."""
    body = stored.body
    tools = [*(call.name for call in calls_of(body)), *(result.name for result in results_of(body))]
    text = " ".join(redact_part(searchable_text(body), 0, BEGINNING, margin=MARGIN).split())
    if stored.kind == "summary" or not text or any(map(is_lookup, tools)):
        return ""
    return f"{text[:BEGINNING]}{'…' if len(text) >= BEGINNING else ''}"


def _is_call(hit: SearchHit) -> bool:
    return hit.role == "assistant" and bool(hit.tool)


def _unescape(text: str) -> str:
    """The arguments of a call without JSON's escapes."""
    return text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


def _show_around(text: str, snippet: str) -> str:
    """The text around a snippet; the snippet itself where the text does not hold it (a secret was in it)."""
    words = snippet.strip("…").split()
    match = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
    if match is None:
        return snippet[:EXCERPT]
    spare = max(0, EXCERPT - (match.end() - match.start())) // 2
    start = sentence_start(text, max(0, match.start() - spare))
    end = min(len(text), max(match.end() + spare, start + EXCERPT))
    shown = redact_part(text, start, end, margin=MARGIN)
    return f"{'…' if start else ''}{shown[:EXCERPT]}{'…' if end < len(text) or len(shown) > EXCERPT else ''}"


# What a summary stands for

_COMPACTION = re.compile(r"compaction:(\d{1,18})")
_NODE = re.compile(r"n[0-9a-f]{12}")


class ThreadGraph:
    """`compaction.engine.Graph` of a lookup's thread."""

    def __init__(self, lookup: StoreLookup) -> None:
        self._lookup = lookup

    async def nodes(self) -> Sequence[Node]:
        thread = self._lookup.thread
        if thread is None:
            raise InputError("a node belongs to a thread; name it")
        return await self._lookup.store.nodes(thread)

    async def expand(self, wanted: str, *, offset: int, limit: int) -> Passage:
        return await expand(self._lookup, wanted, offset=offset, limit=limit)


async def expand(lookup: StoreLookup, wanted: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
    """A part of an original: of a message or output by its id, or of all that a summary covers.

    A summary is named as `compaction:12`, by the id of its message, or as a node of the thread's graph.
    """
    cited = wanted.strip()
    layout = await _layout(lookup, cited)
    if layout is None:
        return await lookup.read(cited, offset=offset, limit=limit)
    return await _covered_passage(lookup, cited, layout, max(0, offset), max(1, min(limit, LONGEST_PART)))


async def _layout(lookup: StoreLookup, wanted: str) -> OriginalsLayout | None:
    """The layout of a summary's originals, cached; None for an id that names no summary."""
    if lookup.thread is None:
        if _COMPACTION.fullmatch(wanted) or _NODE.fullmatch(wanted):
            raise InputError(f"name the thread of {wanted}")
        return None
    facts = lookup.cache.of(lookup.thread)
    if wanted in facts.layouts:
        return facts.layouts[wanted]
    ids = await _find_covered(lookup, lookup.thread, wanted)
    return None if ids is None else facts.keep(wanted, await _make_layout(lookup, lookup.thread, ids))


async def _make_layout(lookup: StoreLookup, thread: str, ids: Sequence[int]) -> OriginalsLayout:
    """The layout of these messages, in order. Only the part of the history that holds them is read."""
    turns = await lookup.turns(thread)
    wanted = set(ids)
    places = [index for index, number in enumerate(turns) if number in wanted]
    sizes: dict[int, int] = {}
    first, last = (places[0], places[-1] + 1) if places else (0, 0)
    for start in range(first, last, PAGE):
        for stored in await lookup.store.history(thread, start=start, limit=min(PAGE, last - start)):
            if stored.id in wanted:
                sizes[stored.id] = len(_render_block(stored, thread, turns[stored.id]))
    return OriginalsLayout(tuple(sizes), tuple(sizes.values()))


async def _covered_passage(lookup: StoreLookup, wanted: str, layout: OriginalsLayout, start: int, most: int) -> Passage:
    """A part of the covered messages one after the other, each under its heading; only those it shows are read."""
    thread = lookup.thread or ""
    turns = await lookup.turns(thread, upto=layout.ids)
    shown: list[str] = []
    ends = itertools.accumulate(layout.sizes)
    for number, size, end in zip(layout.ids, layout.sizes, ends, strict=True):
        first, last = max(start - (end - size), 0), min(start + most - (end - size), size)
        if first < last:
            stored = await lookup.store.message(number, tenant=lookup.tenant)
            shown.append(redact_part(_render_block(stored, thread, turns[number]), first, last, margin=MARGIN))
    total = layout.size
    return Passage(
        wanted, thread, None, "", "", None, "".join(shown), min(start, total), min(total, start + most), total
    )  # fmt: skip


def _render_block(stored: StoredMessage, thread: str, turn: int) -> str:
    role = str(stored.body.get("role", ""))
    excerpt = Excerpt(f"message:{stored.id}", thread, turn or None, role, "", stored.created, "")
    return f"{heading(excerpt)}:\n{searchable_text(stored.body)}\n\n"


# Which messages a summary covers


async def _find_covered(lookup: StoreLookup, thread: str, wanted: str) -> list[int] | None:
    """The ids of the messages that a summary covers; None for an id that names no summary."""
    compaction, number = _COMPACTION.fullmatch(wanted), _MESSAGE.fullmatch(wanted)
    if _NODE.fullmatch(wanted):
        nodes = {node.id: node for node in await lookup.store.nodes(thread)}
        if wanted not in nodes:
            raise UnknownIdError(f"this conversation has no node {wanted}")
        return await _find_originals(lookup, _list_leaves(nodes, wanted))
    if compaction is not None:
        records = await lookup.store.compactions(thread)
        chosen = next((record for record in records if record.id == int(compaction[1])), None)
        if chosen is None:
            raise UnknownIdError(f"this thread has no {wanted}; `status` lists its compactions")
        return await _list_covered(lookup, records, chosen)
    if number is not None:
        return await _find_covered_by_message(lookup, thread, int(number[1]))
    return None


async def _find_covered_by_message(lookup: StoreLookup, thread: str, number: int) -> list[int] | None:
    """The ids that a summary message covers; None for any other message."""
    try:
        stored = await lookup.store.message(number, tenant=lookup.tenant)
    except UnknownIdError:
        return None
    if stored.kind != "summary":
        return None
    records = await lookup.store.compactions(thread)
    chosen = next((record for record in records if record.session == stored.session), None)
    return None if chosen is None else await _list_covered(lookup, records, chosen)


def _list_leaves(nodes: Mapping[str, Node], wanted: str) -> list[int]:
    """The ids of the messages under a node, in order."""
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


async def _list_covered(
    lookup: StoreLookup, records: Sequence[CompactionRecord], chosen: CompactionRecord
) -> list[int]:
    """The ids that a compaction and the ones before it cover."""
    if not chosen.record.covered:  # a proxied client's: it covers all messages before it
        history = await lookup.store.history(lookup.thread or "")
        return [stored.id for stored in history if stored.created <= chosen.created]
    before = (record for record in records if record.id < chosen.id and record.reverted is None)
    return await _find_originals(lookup, [number for record in (*before, chosen) for number in record.record.covered])


async def _find_originals(lookup: StoreLookup, ids: Sequence[int]) -> list[int]:
    """The ids of the originals: an id of a shortened copy is replaced by its original's."""
    originals: set[int] = set()
    for number in dict.fromkeys(ids):
        if await lookup.turn_of(number) is not None:
            originals.add(number)
            continue
        try:
            stored = await lookup.store.message(number, tenant=lookup.tenant)
        except UnknownIdError:
            continue
        originals.add(number if stored.origin is None else stored.origin)
    return sorted(originals)
