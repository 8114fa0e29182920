"""Everything that was said in a thread, found again: by words, by pattern, by id; exact, bounded, without secrets.

One place for all who look things up: the tool `recall`, an engine's own tools, and `everthread mcp`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, replace

from everthread.conversation.patterns import Matcher
from everthread.conversation.remembered import Remembered
from everthread.core.lookup import Excerpt, Found, Passage, SearchMode, SearchScope, is_lookup
from everthread.core.messages import calls_of, results_of
from everthread.core.redaction import redact_part
from everthread.core.transcript import is_user_message
from everthread.errors import InputError, UnknownIdError
from everthread.store.base import Hit, SearchQuery, Store, StoredMessage
from everthread.store.indexing import searchable_text
from everthread.store.recalled import RecallQuery

EXCERPT = 600
"""Characters of one place."""
MARGIN = 2_000
"""Characters around a part that are looked through for secrets with it: one is known by what stands beside it."""
MOST = 50
"""Places on one page."""
LONGEST_QUERY = 1_000
LONGEST_PART = 50_000
THREADS = 200
"""A pattern is looked for in so many of a tenant's threads, the latest."""
SECONDS = 5.0
"""After so long a search by pattern gives what it has; the next page goes on from there."""
PAGE = 200
CLOSE = 0.3
"""How much of what was asked one place must hold where none holds all: what holds less says nothing of it."""
_MESSAGE = re.compile(r"(?:message:|#)?(\d{1,18})")
_OUTPUT = re.compile(r"output:[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text with what is known of it."""

    place: Excerpt
    text: str


class _Reader:
    """Reads a thread's messages in order: which turn each is of, and which tool a result is of."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self._turn = 0
        self._tools: dict[str, str] = {}

    def read(self, stored: StoredMessage) -> _Piece | None:
        """The message as a text; None for a search and for what one found."""
        body = stored.body
        self._turn += is_user_message(body)
        calls = calls_of(body)
        self._tools |= {call.id: call.name for call in calls}
        named = (result.name or self._tools.get(result.call_id, "") for result in results_of(body))
        tools = [*filter(None, named)]
        if any(map(is_lookup, (*tools, *(call.name for call in calls)))):
            return None
        role = str(body.get("role", ""))
        place = Excerpt(
            f"message:{stored.id}", self._thread, self._turn or None, role, ",".join(tools), stored.created, ""
        )
        return _Piece(place, searchable_text(body))


class StoreLookup:
    """`core.lookup.Lookup` over a store. Without a thread, or with `reach="all"`, it looks in all of the tenant's."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        thread: str | None,
        *,
        reach: SearchScope = "thread",
        known: Remembered | None = None,
    ) -> None:
        self.store = store
        self.tenant = tenant
        self.thread = thread
        self._reach: SearchScope = reach if thread is not None else "all"
        self.known = known or Remembered()

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
    ) -> Found:
        """A page of exact excerpts. By words the best come first, by pattern the earliest."""
        if scope == "all" and self._reach != "all":
            raise InputError("only this conversation can be searched; leave the scope out")
        if scope == "thread" and self.thread is None:
            raise InputError("no thread was chosen; name one, or search in all")
        if len(text) > LONGEST_QUERY:
            raise InputError(f"a query has at most {LONGEST_QUERY:,} characters, not {len(text):,}")
        within = self.thread if scope == "thread" else None
        most, first = max(1, min(limit, MOST)), max(0, offset)
        query = SearchQuery(text, self.tenant, within, role=role, tool=tool, limit=most, offset=first, path=path)
        if mode == "regex":
            if path:
                raise InputError("a path narrows a search by words, not one by pattern")
            return await self._by_pattern(Matcher(text), query)
        found = await self._by_words(query)
        if found.excerpts or found.next is not None or first or path or '"' in text:
            return found
        return await self._closest(query)

    async def _by_words(self, query: SearchQuery) -> Found:
        """Pages that hold nothing but earlier searches are passed over."""
        at, most = query.offset, query.limit
        while True:
            hits = await self.store.search(replace(query, limit=most + 1, offset=at))
            found = [place for hit in hits[:most] if (place := await self._place(hit)) is not None]
            at += most
            if len(hits) <= most:
                return Found(tuple(found), None)
            if found:
                return Found(tuple(found), at)

    async def _closest(self, query: SearchQuery) -> Found:
        """What holds the most telling of the words, where nothing holds all: answers are worded unlike questions."""
        asked = RecallQuery(query.text, self.tenant, query.thread, limit=MOST, least=CLOSE, chars=EXCERPT)
        places = [
            Excerpt(
                passage.output or f"message:{passage.message}", passage.thread,
                passage.turn or None if passage.message is not None else None, passage.role, passage.tool,
                passage.created, passage.text,
            )
            for passage in await self.store.recall(asked)
            if query.role in (None, passage.role) and query.tool in (None, *passage.tool.split(","))
        ]  # fmt: skip
        return Found(tuple(places[: query.limit]), None, near=bool(places))

    async def _place(self, hit: Hit) -> Excerpt | None:
        """One place with what stands around it; None for the words of a search, which say nothing."""
        if is_lookup(hit.tool):
            return None
        if hit.message is None:
            cited = hit.output or ""
            text = await self.store.output(cited, tenant=self.tenant)
            return Excerpt(cited, hit.thread, None, hit.role, hit.tool, hit.created, _around(text, hit.snippet))
        stored = await self.store.message(hit.message, tenant=self.tenant)
        shown = _around(searchable_text(stored.body), hit.snippet)
        asked = [call.arguments for call in calls_of(stored.body) if is_lookup(call.name)]
        if any(argument and argument in shown for argument in asked):
            return None
        turn = await self._turn(hit.thread, hit.message)
        return Excerpt(f"message:{hit.message}", hit.thread, turn, hit.role, hit.tool, hit.created, shown)

    async def _by_pattern(self, matcher: Matcher, query: SearchQuery) -> Found:
        found: list[Excerpt] = []
        at, deadline = 0, 0.0
        async for pieces in self._pages(query.thread):
            start, at = at, at + len(pieces)
            skipped = max(0, query.offset - start)
            if skipped >= len(pieces):
                continue
            deadline = deadline or time.monotonic() + SECONDS
            fitting = [
                (place, piece)
                for place, piece in enumerate(pieces[skipped:], start + skipped)
                if query.role in (None, piece.place.role) and query.tool in (None, piece.place.tool)
            ]
            shown = await asyncio.to_thread(matcher.scan, [piece.text for _, piece in fitting], EXCERPT)
            for (place, piece), text in zip(fitting, shown, strict=False):
                if text and len(found) == query.limit:
                    return Found(tuple(found), place)
                if text:
                    found.append(replace(piece.place, text=text))
            if len(shown) < len(fitting):
                return Found(tuple(found), fitting[len(shown)][0])
            if time.monotonic() > deadline:
                return Found(tuple(found), at)
        return Found(tuple(found), None)

    async def _pages(self, within: str | None) -> AsyncIterator[list[_Piece]]:
        """Every text there is, the earliest thread and message first: a place keeps its number while more is said."""
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
                    Excerpt(kept.id, thread, None, "tool", kept.tool, kept.created, ""),
                    await self.store.output(kept.id, tenant=self.tenant),
                )
                for kept in await self.store.outputs(thread)
                if not is_lookup(kept.tool)
            ]

    # Reading

    async def read(self, wanted: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
        """A part of a message or stored output."""
        given = wanted.strip()
        start, most = max(0, offset), max(1, min(limit, LONGEST_PART))
        if _OUTPUT.fullmatch(given):
            await self._may_read_output(given)
            text = await self.store.output(given, tenant=self.tenant)
            return _passage(Excerpt(given, self.thread or "", None, "tool", "", 0.0, ""), text, start, most)
        number = _MESSAGE.fullmatch(given)
        if number is None:
            raise InputError(
                f"{given[:80]!r} is no id; use message:123 or output:0123456789abcdef as an answer gave them"
            )
        stored, thread = await self._message(int(number[1]))
        turn = await self._turn(thread, stored.id)
        role = str(stored.body.get("role", ""))
        place = Excerpt(f"message:{stored.id}", thread, turn, role, "", stored.created, "")
        return _passage(place, searchable_text(stored.body), start, most)

    async def _may_read_output(self, cited: str) -> None:
        if self._reach == "thread" and self.thread is not None:
            known = {kept.id for kept in await self.store.outputs(self.thread)}
            if cited not in known:
                raise UnknownIdError(f"this conversation has no stored output {cited}")

    async def _message(self, number: int) -> tuple[StoredMessage, str]:
        """A message and its thread; where only one thread is in reach, those of others are none of its business."""
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
        """The turn of every message in order; with `upto` nothing is read where those are known.

        Counted once: what was said before does not change, and only what came since is read.
        """
        known = self.known.of(thread).turns
        more = not upto or any(number not in known for number in upto)
        while more:
            start, turn = len(known), max(known.values(), default=0)
            page = await self.store.history(thread, start=start, limit=PAGE)
            for stored in page:
                turn += is_user_message(stored.body)
                known[stored.id] = turn
            more = len(page) == PAGE
        return known

    async def _turn(self, thread: str, message: int) -> int | None:
        return (await self.turns(thread, upto=(message,))).get(message) or None


def _passage(place: Excerpt, text: str, start: int, most: int) -> Passage:
    first = min(start, len(text))
    end = min(len(text), first + most)
    shown = redact_part(text, first, end, margin=MARGIN)
    when = place.created or None
    return Passage(
        place.id, place.thread, place.turn, place.role, place.tool, when, shown, first, end, len(text)
    )  # fmt: skip


def _around(text: str, snippet: str) -> str:
    """The text as it stands around a snippet; the snippet where it cannot be found again (a secret was in it)."""
    words = snippet.strip("…").split()
    found = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
    if found is None:
        return snippet[:EXCERPT]
    spare = max(0, EXCERPT - (found.end() - found.start())) // 2
    start, end = max(0, found.start() - spare), min(len(text), found.end() + spare)
    shown = redact_part(text, start, end, margin=MARGIN)
    return f"{'…' if start else ''}{shown[:EXCERPT]}{'…' if end < len(text) or len(shown) > EXCERPT else ''}"
