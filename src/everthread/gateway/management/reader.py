"""A request as it is read: whose history it is and how large, of which only what is new costs more than a comparison.

A body that begins alike is found by samples, hashed at marks on the way, and compared with this one: two bodies that
agree up to a place agree in every message that is complete there. Nothing here is needed to go on: what is forgotten
is read again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from sys import getsizeof
from typing import Any, Generic, TypeVar

from everthread.core.outputs import table_results
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Request
from everthread.errors import WireError
from everthread.gateway.base import decode_messages
from everthread.gateway.body import LIST_FIELD, BodyLayout, Element, Fields, SlicedBody, Spans, encode_value, slice_text
from everthread.gateway.management.identity import (
    History,
    IdentityCache,
    MessageIdentity,
    build_history,
    leading_system,
    trailing_system,
)
from everthread.gateway.management.rewrite import frame_of

K = TypeVar("K")
T = TypeVar("T")
_STEP = 1024
_MARKS = 32
_FINE, _FINE_STEP = 16, 4096
"""So many marks more at the end of a long body, so far apart."""
_SAMPLE = 512
"""Characters before a mark that are hashed."""
_BEGINNINGS_BYTES = 64 * 1024 * 1024
_RESTS_BYTES = 32 * 1024 * 1024
_FRAMES_BYTES = 32 * 1024 * 1024
_LEAST_SHARED = 4
"""A value that takes more than this part of a cache is not kept: it would drive out all others."""
_DECODED = 5
"""Bytes that a character of JSON takes once it is decoded, about."""
_MESSAGE_BYTES, _MARK_BYTES = 600, 200
"""What is kept of a message besides, and of a mark."""
_MUCH, _AT_ONCE = 32 * 1024, 0.001
"""New characters from which on others are let in between, and after how many seconds each time."""
OURS, MARK = "everthread", '"cache_control"'
WATCHED = (OURS, MARK)
"""What others look for in a whole body: here only in what is new of it."""
_LONGEST_WORD = max(map(len, WATCHED))
_LEAST_REST = 256
"""A shorter rest is read as quickly as it is hashed."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The hashes of a body's samples up to each of its marks."""

    positions: list[int]
    """How many characters stand before each."""
    digests: list[bytes]


class ByteCache(Generic[K, T]):
    """The values used last, as many as fit into so many bytes: a client decides how large each is."""

    def __init__(self, most: int) -> None:
        self._entries: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self._most = most
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> T | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def keep(self, key: K, value: T, size: int) -> list[T]:
        """Keep it where it leaves room for others; what had to go for it, itself included."""
        gone = [self.drop(key)] if key in self._entries else []
        if size > self._most // _LEAST_SHARED:
            return [*gone, value]
        self._entries[key] = value, size
        self.size += size
        while self.size > self._most:
            gone.append(self.drop(next(iter(self._entries))))
        return gone

    def drop(self, key: K) -> T:
        value, size = self._entries.pop(key)
        self.size -= size
        return value


@dataclass(slots=True)
class _Body(Generic[T]):
    """A cached body, and the marks that lead to it."""

    number: int
    value: T
    digests: set[bytes]


class BodyPrefixCache(Generic[T]):
    """A cache of bodies by how they begin. `find` also says how many characters probably agree."""

    def __init__(self, most: int = _BEGINNINGS_BYTES) -> None:
        self._bodies: ByteCache[int, _Body[T]] = ByteCache(most)
        self._by_mark: dict[bytes, _Body[T]] = {}
        self._numbers = itertools.count()

    def find(self, marks: Marks) -> tuple[T, int] | None:
        """What is known of a body whose samples are alike, and up to where they are."""
        for index in range(len(marks.digests) - 1, -1, -1):
            body = self._by_mark.get(marks.digests[index])
            if body is not None:
                return body.value, marks.positions[index]
        return None

    def keep(self, marks: Marks, value: T, size: int) -> None:
        """Keep a body; it replaces shorter ones that begin alike."""
        entry = _Body(next(self._numbers), value, set(marks.digests))
        for digest in entry.digests:
            before = self._by_mark.get(digest)
            if before is not None:
                before.digests.discard(digest)
                if not before.digests:
                    self._bodies.drop(before.number)
            self._by_mark[digest] = entry
        for body in self._bodies.keep(entry.number, entry, size + _MARK_BYTES * len(entry.digests)):
            for digest in body.digests:
                self._by_mark.pop(digest, None)


_LEAST_TABLE = 400
_TABLES_BYTES = 32 * 1024 * 1024


class TableCache:
    """A cache of messages whose lists are sent as tables, with that text, by the message's own text."""

    def __init__(self, most: int = _TABLES_BYTES) -> None:
        self._texts: ByteCache[bytes, str] = ByteCache(most)
        """By the message's key; empty where its lists stay as they are."""

    @property
    def size(self) -> int:
        return self._texts.size

    def read(self, history: History, elements: Sequence[Element]) -> dict[int, str]:
        tables = {}
        for index, (piece, element) in enumerate(zip(history.pieces, elements, strict=True)):
            if not piece.results or element.end - element.start < _LEAST_TABLE:
                continue
            text = self._texts.find(piece.key)
            if text is None:
                value = table_results(element.value)
                text = "" if value is element.value else encode_value(value)
                self._texts.keep(piece.key, text, _MARK_BYTES + 4 * len(text))
            if text:
                tables[index] = text
        return tables


class TailFieldsCache:
    """A cache of the fields that follow the list of messages, by their text."""

    def __init__(self, most: int = _RESTS_BYTES) -> None:
        self._cache: ByteCache[bytes, tuple[Fields, Spans]] = ByteCache(most)

    def find(self, digest: bytes) -> tuple[Fields, Spans] | None:
        return self._cache.find(digest)

    def keep(self, digest: bytes, fields: Fields, spans: Spans, size: int) -> None:
        self._cache.keep(digest, (fields, spans), size)


class TailFields:
    """What follows the list of messages in one body: read from the cache, or to be kept there."""

    def __init__(self, rests: TailFieldsCache) -> None:
        self._rests = rests
        self._at = 0
        self._missed = False
        self.digest: bytes | None = None
        """Of its text; None where it is short."""

    def __call__(self, text: str, at: int) -> tuple[Fields, Spans] | None:
        if len(text) - at < _LEAST_REST:
            return None
        self._at = at
        self.digest = sha256(text[at:].encode()).digest()
        entry = self._rests.find(self.digest)
        self._missed = entry is None
        return (entry[0], _shift_spans(entry[1], at)) if entry else None

    def keep(self, fields: Fields, spans: Spans) -> None:
        """The fields of a body that was read to its end, where they were not known."""
        if self.digest is not None and self._missed:
            behind = {name: span for name, span in spans.items() if span[0] >= self._at}
            size = _DECODED * sum(end - start for start, end in behind.values())
            self._rests.keep(
                self.digest, {name: fields[name] for name in behind}, _shift_spans(behind, -self._at), size
            )


def _shift_spans(spans: Spans, by: int) -> Spans:
    return {name: (start + by, end + by) for name, (start, end) in spans.items()}


def marks_of(api: Api, text: str) -> Marks:
    """The hashes of a body's samples at its marks: close together near its end, where the next one grows."""
    step = _STEP
    while step * _MARKS < len(text):
        step *= 2
    aligned_end = len(text) - len(text) % _FINE_STEP
    fine = range(max(0, aligned_end - _FINE * _FINE_STEP), aligned_end + 1, _FINE_STEP) if step > _FINE_STEP else ()
    positions = sorted({*range(step, len(text) + 1, step), *fine} - {0})
    running = sha256(api.encode())
    digests = []
    for position in positions:
        running.update(text[position - _SAMPLE : position].encode())
        digests.append(running.digest())
    return Marks(positions, digests)


_MOST = 50_000


class SizeCache:
    def __init__(self, most: int = _MOST) -> None:
        self._tokens: OrderedDict[tuple[str, Any], int] = OrderedDict()
        self._most = most

    def pieces(self, api: Api, model: str, pieces: Sequence[MessageIdentity], elements: Sequence[Element]) -> list[int]:
        """Tokens of each message."""
        counts = [self._tokens.get((model, piece.key)) for piece in pieces]
        return [
            self.values(api, model, piece.key, [element.value]) if size is None else size
            for piece, element, size in zip(pieces, elements, counts, strict=True)
        ]

    def values(self, api: Api, model: str, key: Any, values: Sequence[Any]) -> int:
        """Tokens of messages, cached under the digest of a key: the key may be a long text."""
        if not isinstance(key, bytes) or len(key) > 64:
            key = sha256(repr(key).encode("utf-8", "surrogatepass")).digest()
        return self._count_once((model, key), lambda: TokenCounter(model).messages(decode_messages(api, values, model)))

    def _count_once(self, key: tuple[str, Any], count: Callable[[], int]) -> int:
        tokens = self._tokens.get(key)
        if tokens is not None:
            self._tokens.move_to_end(key)
            return tokens
        tokens = self._tokens[key] = count()
        if len(self._tokens) > self._most:
            self._tokens.popitem(last=False)
        return tokens


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that was read: its thread's history, its frame and its tokens."""

    sliced: SlicedBody
    first: int
    """How many messages at the start are the system prompt."""
    history: History
    frame: Request
    sizes: list[int]
    """Tokens of each message behind them."""
    fixed: int
    """Tokens of system prompt, tools and reminders at the end."""
    trailing: int = 0
    """How many messages at the end are such reminders: no part of the conversation's identity."""
    holds: frozenset[str] = frozenset()
    """Which of `WATCHED` may stand in it."""


@dataclass(frozen=True, slots=True)
class _BodyRecord:
    """A body that was read, for the cache."""

    layout: BodyLayout
    first: int
    history: History
    model: str
    sizes: array[int]
    text: str
    """Up to the end of the last message."""
    holds: frozenset[str]

    def alike(self, text: str, at: int) -> int:
        """How many characters another text has in common with it, where `at` are expected."""
        if text.startswith(self.text):
            return len(self.text) + self.text.endswith("}")  # an object is complete where it ends, whatever follows
        at = min(at, len(self.text))
        while text[:at] != self.text[:at]:
            at //= 2
        return at


@dataclass(frozen=True, slots=True)
class BodyOutline:
    """A body whose fields and messages are located, but not yet read."""

    marks: Marks
    record: _BodyRecord | None
    layout: BodyLayout | None
    """The layout of the part that agrees with the record; None where that holds no message."""
    rest: TailFields
    sliced: SlicedBody
    holds: frozenset[str]
    """Which of `WATCHED` may stand in it."""

    @property
    def known(self) -> int:
        """How many of its characters were read with an earlier body."""
        return self.layout.ends[-1] if self.layout else 0


class RequestReader:
    def __init__(self, sizes: SizeCache) -> None:
        self._pieces = IdentityCache()
        self._sizes = sizes
        self._beginnings: BodyPrefixCache[_BodyRecord] = BodyPrefixCache()
        self._rests = TailFieldsCache()
        self._frames: ByteCache[bytes, tuple[Request, int]] = ByteCache(_FRAMES_BYTES)

    def read(self, api: Api, body: bytes) -> ParsedRequest:
        """Take a request apart. `WireError` where it is none."""
        return self._finish(api, self.begin(api, body))

    async def read_in_steps(self, api: Api, outline: BodyOutline) -> ParsedRequest:
        """Read a body that was located; where much is new, in steps, so that other requests go on."""
        count = len(outline.layout.ends) if outline.layout else 0
        if len(outline.sliced.text) - outline.known > _MUCH:
            elements, first = outline.sliced.elements, leading_system(outline.sliced.elements)
            model = self._frame(api, outline.sliced, first, outline.rest.digest)[0].model
            until = time.monotonic() + _AT_ONCE
            for element in elements[max(first, count) :]:
                self._sizes.pieces(api, model, [self._pieces.read(api, element)], [element])
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + _AT_ONCE
        return self._finish(api, outline)

    def begin(self, api: Api, body: bytes) -> BodyOutline:
        """Locate the fields and messages of a body, and find the cached body that begins alike."""
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"the request is no UTF-8: {error.reason} at byte {error.start}") from None
        marks = marks_of(api, text)
        record, alike = self._beginnings.find(marks) or (None, 0)
        layout = record.layout.until(LIST_FIELD[api], record.alike(text, alike)) if record else None
        rest = TailFields(self._rests)
        sliced = slice_text(text, api, layout, rest)
        if layout is None or record is None or not layout.ends:
            return BodyOutline(marks, record, None, rest, sliced, frozenset(word for word in WATCHED if word in text))
        new = max(0, layout.ends[-1] - _LONGEST_WORD)
        words = (word for word in WATCHED if word in record.holds or text.find(word, new) >= 0)
        return BodyOutline(marks, record, layout, rest, sliced, frozenset(words))

    def _finish(self, api: Api, outline: BodyOutline) -> ParsedRequest:
        marks, record, rest, sliced = outline.marks, outline.record, outline.rest, outline.sliced
        text = sliced.text
        rest.keep(sliced.fields, sliced.spans)
        count = len(outline.layout.ends) if outline.layout else 0
        if record is not None and record.first >= count:  # nothing of the conversation itself
            record = None
        first = record.first if record else leading_system(sliced.elements)
        trailing = trailing_system(sliced.elements, first)
        elements = sliced.elements[first : len(sliced.elements) - trailing]
        past = self._history(api, elements, record, count - first)
        frame, fixed = self._frame(api, sliced, first, rest.digest)
        sizes: list[int] = []
        if record is not None and record.model == frame.model:
            sizes = record.sizes[: min(count - first, len(elements))].tolist()
        done = len(sizes)
        sizes += self._sizes.pieces(api, frame.model, past.pieces[done:], elements[done:])
        start, end = sliced.spans[LIST_FIELD[api]]
        said = text[: sliced.layout.ends[-1]] if sliced.layout.ends else ""
        new_record = _BodyRecord(sliced.layout, first, past, frame.model, array("Q", sizes), said, outline.holds)
        size = _DECODED * (len(text) - end + start) + _MESSAGE_BYTES * len(sliced.elements) + getsizeof(said)
        self._beginnings.keep(marks, new_record, size)
        reminders = [self._pieces.read(api, element) for element in sliced.elements[first + len(elements) :]]
        fixed += sum(self._sizes.pieces(api, frame.model, reminders, sliced.elements[first + len(elements) :]))
        return ParsedRequest(sliced, first, past, frame, sizes, fixed, trailing, outline.holds)

    def _history(self, api: Api, elements: Sequence[Element], record: _BodyRecord | None, count: int) -> History:
        """The history of a conversation whose first `count` messages are those of the record."""
        before = record.history.until(min(count, len(elements))) if record else build_history(())
        return before.extend([self._pieces.read(api, element) for element in elements[len(before) :]])

    def _frame(self, api: Api, sliced: SlicedBody, first: int, rest: bytes | None) -> tuple[Request, int]:
        """Model, system prompt and tools, and their tokens."""
        start, end = sliced.spans[LIST_FIELD[api]]
        lead = sliced.elements[:first]
        before, behind = sliced.text[:start].encode(), rest or sliced.text[end:].encode()
        key = _digest(api.encode(), before, behind, *(element.text.encode() for element in lead))
        entry = self._frames.find(key)
        if entry is not None:
            return entry
        frame = frame_of(api, sliced, lead)
        counter = TokenCounter(frame.model)
        entry = frame, counter.request(frame.messages, system=frame.system, tools=frame.tools)
        self._frames.keep(key, entry, _DECODED * (start + len(sliced.text) - end + sum(len(one.text) for one in lead)))
        return entry


def _digest(*parts: bytes) -> bytes:
    """A digest of several parts; their lengths are hashed too, so that no two lists of parts collide."""
    running = sha256()
    for part in parts:
        running.update(len(part).to_bytes(8, "little") + part)
    return running.digest()
