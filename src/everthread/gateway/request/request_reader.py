"""Read the history and the size of a request, decoding only its new messages."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Request
from everthread.gateway.identify import count_leading_system, count_trailing_system
from everthread.gateway.request.body_reading import run_in_thread_if_large
from everthread.gateway.request.json_slices import (
    LIST_FIELD,
    BodyLayout,
    Element,
    SlicedBody,
    slice_body,
)
from everthread.gateway.request.known_bodies import (
    BodyMatch,
    BodyOrigin,
    ByteCache,
    KnownBodies,
    KnownBody,
)
from everthread.thread.caller.message_caches import IdentityCache, SizeCache
from everthread.thread.caller.provider_compactions import COMPACTION_MARK
from everthread.thread.matching.history import History, build_history
from everthread.thread.wire_messages import decode_value
from everthread.wire.codecs import CODECS

MAX_FRAMES_BYTES = 32 * 1024 * 1024
DECODED_BYTES = 5
"""Approximate memory, in bytes, of one byte of JSON once decoded."""
OUR_NAME = "everthread"
CACHE_MARK = '"cache_control"'
BREAKPOINT_MARK = '"prompt_cache_breakpoint"'
WATCHED_WORDS = (OUR_NAME, CACHE_MARK, BREAKPOINT_MARK, COMPACTION_MARK)
"""Words that other modules need to find in a body. Only the new part of a body is searched for them."""
_MAX_WORD_BYTES = max(map(len, WATCHED_WORDS))
MIN_PROCESS_BYTES = 256 * 1024
"""Minimum size of an unknown body that is read in another process. Reading it takes tens of milliseconds."""
CallInProcess = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that was read: its thread's history, its frame and its tokens."""

    sliced: SlicedBody
    system_count: int
    """Number of messages at the start that are the system prompt."""
    history: History
    frame: Request
    """Model, system prompt and tools."""
    sizes: list[int]
    """Tokens of each message of the history."""
    frame_tokens: int
    reminder_tokens: int = 0
    reminder_count: int = 0
    """Number of system reminders at the end, which are no part of the conversation's identity."""
    watched_words: frozenset[str] = frozenset()
    """The words of `WATCHED_WORDS` that the request may contain."""

    @property
    def fixed_tokens(self) -> int:
        """Tokens of system prompt, tools and reminders at the end."""
        return self.frame_tokens + self.reminder_tokens


@dataclass(frozen=True, slots=True)
class BodyOutline:
    """A body whose fields and messages are located, but not decoded yet."""

    origin: BodyOrigin
    sliced: SlicedBody
    system_count: int
    """Number of messages at the start that are the system prompt."""
    reminder_count: int
    """Number of system reminders at the end."""
    match: BodyMatch | None
    """The known body that partly equals this one; None if there is none."""
    shared_count: int = 0
    """Number of messages of the history that equal those of the known body, apart from their cache marks."""
    watched_words: frozenset[str] = frozenset()
    """The words of `WATCHED_WORDS` that the body may contain."""

    @property
    def elements(self) -> Sequence[Element]:
        """The messages, without the system prompt and the reminders."""
        elements = self.sliced.elements
        return elements[self.system_count : len(elements) - self.reminder_count]

    @property
    def known_bytes(self) -> int:
        """Number of bytes that were read with an earlier body."""
        return 0 if self.match is None else self.match.size

    @property
    def new_bytes(self) -> int:
        """Number of bytes that were not read before."""
        return len(self.sliced.body) - self.known_bytes

    @property
    def added_bytes(self) -> int:
        """Number of bytes after the known messages; messages that differ only in cache marks are known."""
        if (
            self.match is None
            or not self.match.parts.tail_bytes
            or not self.shared_count
        ):
            return self.new_bytes
        end = len(self.sliced.body) - self.match.parts.tail_bytes
        return end - self.sliced.layout.ends[self.system_count + self.shared_count - 1]


class RequestReader:
    """Read requests, reusing results of earlier ones."""

    def __init__(
        self, sizes: SizeCache, call_in_process: CallInProcess | None = None
    ) -> None:
        """`call_in_process`: calls `read_body` in another process; returns None if it cannot."""
        self._call_in_process = call_in_process
        self._identities = IdentityCache()
        self._sizes = sizes
        self._bodies = KnownBodies()
        self._frames: ByteCache[bytes, tuple[Request, int]] = ByteCache(
            MAX_FRAMES_BYTES
        )

    def find_known(self, origin: BodyOrigin, body: bytes) -> BodyMatch | None:
        """Find an earlier body that partly equals this one."""
        return self._bodies.find(origin, body)

    def locate(
        self, origin: BodyOrigin, body: bytes, match: BodyMatch | None
    ) -> BodyOutline:
        """Locate the fields and messages of a body. Raise `WireError` if it is not a request."""
        sliced = slice_body(body, origin.api, match.parts if match else None)
        if match is None or match.known.system_count >= match.parts.count:
            system_count = count_leading_system(sliced.elements)
            reminder_count = count_trailing_system(sliced.elements, system_count)
            watched_words = frozenset(
                word for word in WATCHED_WORDS if word.encode() in body
            )
            return BodyOutline(
                origin,
                sliced,
                system_count,
                reminder_count,
                None,
                watched_words=watched_words,
            )
        system_count = match.known.system_count
        reminder_count = count_trailing_system(sliced.elements, system_count)
        elements = sliced.elements[system_count : len(sliced.elements) - reminder_count]
        return BodyOutline(
            origin,
            sliced,
            system_count,
            reminder_count,
            match,
            shared_count=_count_shared(match, elements),
            watched_words=match.known.watched_words | _find_words(body, match),
        )

    async def read(self, outline: BodyOutline) -> ParsedRequest:
        """Read a located body: on the event loop, in a thread, or in another process, depending on its new bytes."""
        body = outline.sliced.body
        is_long = outline.match is None and len(body) >= MIN_PROCESS_BYTES
        if is_long and self._call_in_process is not None:
            parsed_request: ParsedRequest | None = await self._call_in_process(
                read_body, outline.origin, body
            )
            if parsed_request is not None:
                return replace(parsed_request, sliced=outline.sliced)
        return await run_in_thread_if_large(
            outline.new_bytes, lambda: self.read_now(outline)
        )

    def read_now(self, outline: BodyOutline) -> ParsedRequest:
        api = outline.origin.api
        sliced = outline.sliced
        elements = outline.elements
        frame, frame_tokens = self._read_frame(outline)
        history = self.read_history(outline, len(elements))
        reminders = sliced.elements[len(sliced.elements) - outline.reminder_count :]
        return ParsedRequest(
            sliced,
            outline.system_count,
            history=history,
            frame=frame,
            sizes=self._count_sizes(outline, history, frame.model),
            frame_tokens=frame_tokens,
            reminder_tokens=self._count_reminders(api, frame.model, reminders),
            reminder_count=outline.reminder_count,
            watched_words=outline.watched_words,
        )

    def read_history(self, outline: BodyOutline, length: int) -> History:
        """Return the history of the first messages."""
        known_history = build_history(())
        if outline.match is not None:
            known_history = outline.match.known.history.first_messages(
                min(outline.shared_count, length)
            )
        new_elements = outline.elements[len(known_history) : length]
        api = outline.origin.api
        return known_history.extend(
            [self._identities.read_identity(api, element) for element in new_elements]
        )

    def remember(self, thread: str, outline: BodyOutline, read: ParsedRequest) -> None:
        """Keep the body as the last one of its thread."""
        known_body = KnownBody(
            thread,
            read.sliced.body,
            layout=read.sliced.layout,
            system_count=read.system_count,
            history=read.history,
            sizes=read.sizes,
            frame=read.frame,
            frame_tokens=read.frame_tokens,
            watched_words=read.watched_words,
        )
        self._bodies.keep(outline.origin, known_body)

    def remember_history(
        self, thread: str, outline: BodyOutline, history: History
    ) -> None:
        """Keep the body as the last one of its thread if it continues a known body with the same settings.

        Its new messages are not counted yet.
        """
        if outline.match is None:
            return
        known_body = outline.match.known
        self._bodies.keep(
            outline.origin,
            KnownBody(
                thread,
                outline.sliced.body,
                layout=outline.sliced.layout,
                system_count=outline.system_count,
                history=history,
                sizes=known_body.sizes[: outline.shared_count],
                frame=known_body.frame,
                frame_tokens=known_body.frame_tokens,
                watched_words=outline.watched_words,
            ),
        )

    def _count_sizes(
        self, outline: BodyOutline, history: History, model: str
    ) -> list[int]:
        """Return the tokens of each message."""
        known_sizes: list[int] = []
        match = outline.match
        if match is not None and match.known.frame.model == model:
            known_sizes = match.known.sizes[: outline.shared_count]
        count = len(known_sizes)
        return known_sizes + self._sizes.count_messages(
            outline.origin.api,
            model,
            identities=history.identities[count:],
            messages=outline.elements[count:],
        )

    def _read_frame(self, outline: BodyOutline) -> tuple[Request, int]:
        """Return model, system prompt and tools, and their tokens."""
        match = outline.match
        if match is not None and match.parts.tail_bytes:
            return match.known.frame, match.known.frame_tokens
        api = outline.origin.api
        sliced = outline.sliced
        start, end = sliced.spans[LIST_FIELD[api]]
        system_elements = sliced.elements[: outline.system_count]
        parts = [
            sliced.body[:start],
            sliced.body[end:],
            *(element.raw for element in system_elements),
        ]
        key = _digest(api.encode(), *parts)
        entry = self._frames.find(key)
        if entry is None:
            frame = _decode_frame(api, sliced, system_elements)
            counter = TokenCounter(frame.model)
            tokens = counter.request(
                frame.messages, system=frame.system, tools=frame.tools
            )
            entry = (frame, tokens)
            self._frames.keep(key, entry, DECODED_BYTES * sum(map(len, parts)))
        return entry

    def _count_reminders(
        self, api: Api, model: str, reminders: Sequence[Element]
    ) -> int:
        identities = [
            self._identities.read_identity(api, reminder) for reminder in reminders
        ]
        return sum(self._sizes.count_messages(api, model, identities, reminders))


def read_body(origin: BodyOrigin, body: bytes) -> ParsedRequest:
    """Read a body; return the result without the body. Called in another process."""
    reader = RequestReader(SizeCache())
    parsed_request = reader.read_now(reader.locate(origin, body, None))
    layout = BodyLayout({}, {}, array("Q"), array("Q"))
    return replace(parsed_request, sliced=SlicedBody(b"", layout, ()))


def _find_words(body: bytes, match: BodyMatch) -> frozenset[str]:
    """Return the words of `WATCHED_WORDS` that the new part of a body may contain."""
    start = max(0, match.parts.layout.ends[match.parts.count - 1] - _MAX_WORD_BYTES)
    end = len(body) - max(0, match.parts.tail_bytes - _MAX_WORD_BYTES)
    return frozenset(
        word for word in WATCHED_WORDS if body.find(word.encode(), start, end) >= 0
    )


def _count_shared(match: BodyMatch, elements: Sequence[Element]) -> int:
    """Count the messages at the start that equal those of the known body, apart from their cache marks."""
    known_body = match.known
    max_count = min(len(elements), len(known_body.history))
    count = min(match.parts.count - known_body.system_count, max_count)
    while count < max_count:
        start = known_body.layout.starts[known_body.system_count + count]
        end = known_body.layout.ends[known_body.system_count + count]
        if not _is_same_apart_from_marks(known_body.body[start:end], elements[count]):
            break
        count += 1
    return count


def _is_same_apart_from_marks(known_bytes: bytes, element: Element) -> bool:
    if known_bytes == element.raw:
        return True
    if not any(b'"cache_control"' in raw for raw in (known_bytes, element.raw)):
        return False
    return bool(_drop_marks(decode_value(known_bytes)) == _drop_marks(element.value))


def _drop_marks(value: Any) -> Any:
    """Return a message without the cache marks on its blocks. Marks inside of a tool's arguments are content."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, str):
        return {**value, "content": [{"type": "text", "text": content}]}
    if not isinstance(content, list):
        return value
    blocks = [
        {name: part for name, part in block.items() if name != "cache_control"}
        if isinstance(block, dict)
        else block
        for block in content
    ]
    return {**value, "content": blocks}


def _digest(*parts: bytes) -> bytes:
    """Return a digest of several parts and their lengths, so that different lists of parts have different digests."""
    running = sha256()
    for part in parts:
        running.update(len(part).to_bytes(8, "little") + part)
    return running.digest()


def _decode_frame(api: Api, sliced: SlicedBody, leading: Sequence[Element]) -> Request:
    """Return the request without its messages: model, system prompt and tools."""
    messages = [element.value for element in leading]
    body = {**sliced.fields, LIST_FIELD[api]: messages}
    return CODECS[api].decode_request(body)
