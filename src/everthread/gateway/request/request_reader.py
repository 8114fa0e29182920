"""Read the history and the size of a request, decoding only its new messages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from everthread.core.caching.cache_lifetimes import CACHE_OPTIONS_FIELD
from everthread.core.messages import SYSTEM_ROLES, kind_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelRequest
from everthread.gateway.compaction_items import COMPACTION_TRIGGER
from everthread.gateway.request.body_cache import (
    BodyCache,
    BodyMatch,
    BodyOrigin,
    CachedBody,
)
from everthread.gateway.request.body_reading import run_in_thread_if_large
from everthread.gateway.request.byte_cache import ByteCache
from everthread.gateway.request.json_slices import (
    LIST_FIELD,
    BodySlices,
    MessageSlice,
    slice_body,
)
from everthread.thread.caller.message_caches import IdentityCache, SizeCache
from everthread.thread.caller.provider_compactions import COMPACTION_MARK
from everthread.thread.matching.history import History, build_history
from everthread.thread.wire_messages import decode_value
from everthread.wire.codecs import CODECS

MAX_SETTINGS_BYTES = 32 * 1024 * 1024
DECODED_BYTES = 5
"""Approximate memory, in bytes, of one byte of JSON once decoded."""
OUR_NAME = "everthread"
CLAUDE_CACHE_FIELD = '"cache_control"'
OPENAI_BREAKPOINT_FIELD = '"prompt_cache_breakpoint"'
WATCHED_WORDS = (OUR_NAME, CLAUDE_CACHE_FIELD, OPENAI_BREAKPOINT_FIELD, COMPACTION_MARK)
"""Words that other modules need to find in a body. Only the new part of a body is searched for them."""
_MAX_WORD_BYTES = max(map(len, WATCHED_WORDS))
MIN_PROCESS_BYTES = 256 * 1024
"""Minimum size of an unknown body that is read in another process. Reading it takes tens of milliseconds."""
CallInProcess = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class LocatedBody:
    """A body whose fields are decoded and whose messages are only located."""

    origin: BodyOrigin
    slices: BodySlices
    system_count: int = 0
    """Number of messages at the start that are the system prompt."""
    reminder_count: int = 0
    """Number of system reminders at the end, which do not belong to the conversation's identity."""
    match: BodyMatch | None = None
    """The cached body that partly equals this one, or None if there is none."""
    shared_count: int = 0
    """Number of messages of the history that equal those of the cached body, apart from their cache marks."""
    watched_words: frozenset[str] = frozenset()
    """The words of `WATCHED_WORDS` that the body may contain."""

    @property
    def history_messages(self) -> Sequence[MessageSlice]:
        """The messages, without the system prompt and the reminders."""
        messages = self.slices.messages
        return messages[self.system_count : len(messages) - self.reminder_count]

    @property
    def has_cache_marks(self) -> bool:
        """Whether the client may have set cache marks."""
        return CLAUDE_CACHE_FIELD in self.watched_words

    @property
    def has_breakpoints(self) -> bool:
        """Whether the client may have set cache breakpoints or options for them."""
        return (
            OPENAI_BREAKPOINT_FIELD in self.watched_words
            or CACHE_OPTIONS_FIELD in self.slices.fields
        )

    @property
    def cached_bytes(self) -> int:
        """Number of bytes that were read with an earlier body."""
        return 0 if self.match is None else self.match.size

    @property
    def new_bytes(self) -> int:
        """Number of bytes that were not read before."""
        return len(self.slices.body) - self.cached_bytes

    @property
    def added_bytes(self) -> int:
        """Number of bytes after the known messages; messages that differ only in cache marks are known."""
        if self.match is None or not self.match.tail_bytes or not self.shared_count:
            return self.new_bytes
        end = len(self.slices.body) - self.match.tail_bytes
        return end - self.slices.ends[self.system_count + self.shared_count - 1]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The history of a request, its settings and their tokens."""

    history: History
    settings: ModelRequest
    """Model, system prompt and tools."""
    sizes: list[int]
    """Tokens of each message of the history."""
    settings_tokens: int
    reminder_tokens: int

    @property
    def fixed_tokens(self) -> int:
        """Tokens of system prompt, tools and reminders at the end."""
        return self.settings_tokens + self.reminder_tokens


class RequestReader:
    """Reads requests, reusing results of earlier ones."""

    def __init__(self, sizes: SizeCache, call_in_process: CallInProcess | None = None) -> None:
        """`call_in_process`: calls `read_body` in another process; returns None if it cannot."""
        self._call_in_process = call_in_process
        self._identities = IdentityCache()
        self._sizes = sizes
        self.bodies = BodyCache()
        self._settings: ByteCache[bytes, tuple[ModelRequest, int]] = ByteCache(MAX_SETTINGS_BYTES)

    def locate(self, origin: BodyOrigin, body: bytes, match: BodyMatch | None) -> LocatedBody:
        """Locate the fields and messages of a body. Raise `WireError` if it is not a request."""
        slices = slice_body(body, origin.api, match)
        if match is None or match.cached_body.system_count >= match.message_count:
            system_count = count_leading_system(slices.messages)
            return LocatedBody(
                origin,
                slices,
                system_count=system_count,
                reminder_count=count_trailing_system(slices.messages, system_count),
                watched_words=_find_watched_words(body, 0, len(body)),
            )
        system_count = match.cached_body.system_count
        reminder_count = count_trailing_system(slices.messages, system_count)
        messages = slices.messages[system_count : len(slices.messages) - reminder_count]
        return LocatedBody(
            origin,
            slices,
            system_count=system_count,
            reminder_count=reminder_count,
            match=match,
            shared_count=_count_shared_messages(match, messages),
            watched_words=match.cached_body.watched_words | _find_new_words(body, match),
        )

    async def read(self, located_body: LocatedBody) -> ParsedRequest:
        """Read a located body: on the event loop, in a thread, or in another process, depending on its new bytes."""
        body = located_body.slices.body
        is_long = located_body.match is None and len(body) >= MIN_PROCESS_BYTES
        if is_long and self._call_in_process is not None:
            parsed_request: ParsedRequest | None = await self._call_in_process(
                read_body, located_body.origin, body
            )
            if parsed_request is not None:
                return parsed_request
        return await run_in_thread_if_large(
            located_body.new_bytes, lambda: self.read_now(located_body)
        )

    def read_now(self, located_body: LocatedBody) -> ParsedRequest:
        api = located_body.origin.api
        slices = located_body.slices
        messages = located_body.history_messages
        settings, settings_tokens = self._read_settings(located_body)
        history = self.read_history(located_body, len(messages))
        reminders = slices.messages[len(slices.messages) - located_body.reminder_count :]
        return ParsedRequest(
            history,
            settings,
            sizes=self._count_sizes(located_body, history, settings.model),
            settings_tokens=settings_tokens,
            reminder_tokens=self._count_reminders(api, settings.model, reminders),
        )

    def read_history(self, located_body: LocatedBody, length: int) -> History:
        """Return the history of the first messages."""
        known_history = build_history(())
        if located_body.match is not None:
            known_history = located_body.match.cached_body.history.first_messages(
                min(located_body.shared_count, length)
            )
        new_messages = located_body.history_messages[len(known_history) : length]
        api = located_body.origin.api
        return known_history.extend(
            [self._identities.read_identity(api, message) for message in new_messages]
        )

    def remember(
        self, thread: str, located_body: LocatedBody, parsed_request: ParsedRequest
    ) -> None:
        """Cache the body as the last one of its thread."""
        cached_body = CachedBody(
            thread,
            located_body.slices.forget_decoded(),
            system_count=located_body.system_count,
            history=parsed_request.history,
            sizes=parsed_request.sizes,
            settings=parsed_request.settings,
            settings_tokens=parsed_request.settings_tokens,
            watched_words=located_body.watched_words,
        )
        self.bodies.keep(located_body.origin, cached_body)

    def remember_history(self, thread: str, located_body: LocatedBody, history: History) -> None:
        """Cache the body as the last one of its thread if it continues a cached body with the same settings.

        Its new messages are not counted yet.
        """
        if located_body.match is None:
            return
        cached_body = located_body.match.cached_body
        new_body = replace(
            cached_body,
            thread=thread,
            slices=located_body.slices.forget_decoded(),
            system_count=located_body.system_count,
            history=history,
            sizes=cached_body.sizes[: located_body.shared_count],
            watched_words=located_body.watched_words,
        )
        self.bodies.keep(located_body.origin, new_body)

    def _count_sizes(self, located_body: LocatedBody, history: History, model: str) -> list[int]:
        """Return the tokens of each message."""
        known_sizes: list[int] = []
        match = located_body.match
        if match is not None and match.cached_body.settings.model == model:
            known_sizes = match.cached_body.sizes[: located_body.shared_count]
        count = len(known_sizes)
        return known_sizes + self._sizes.count_messages(
            located_body.origin.api,
            model,
            identities=history.identities[count:],
            messages=located_body.history_messages[count:],
        )

    def _read_settings(self, located_body: LocatedBody) -> tuple[ModelRequest, int]:
        """Return model, system prompt and tools, and their tokens."""
        match = located_body.match
        if match is not None and match.tail_bytes:
            return match.cached_body.settings, match.cached_body.settings_tokens
        api = located_body.origin.api
        slices = located_body.slices
        start, end = slices.spans[LIST_FIELD[api]]
        system_messages = slices.messages[: located_body.system_count]
        parts = [
            slices.body[:start],
            slices.body[end:],
            *(message.raw for message in system_messages),
        ]
        key = _compute_digest(api.encode(), *parts)
        entry = self._settings.find(key)
        if entry is None:
            settings = _decode_settings(api, slices, system_messages)
            counter = TokenCounter(settings.model)
            tokens = counter.request(
                settings.messages, system=settings.system, tools=settings.tools
            )
            entry = (settings, tokens)
            self._settings.keep(key, entry, DECODED_BYTES * sum(map(len, parts)))
        return entry

    def _count_reminders(self, api: Api, model: str, reminders: Sequence[MessageSlice]) -> int:
        identities = [self._identities.read_identity(api, reminder) for reminder in reminders]
        return sum(self._sizes.count_messages(api, model, identities, reminders))


def read_body(origin: BodyOrigin, body: bytes) -> ParsedRequest:
    """Read a body. Called in another process."""
    reader = RequestReader(SizeCache())
    return reader.read_now(reader.locate(origin, body, None))


def count_leading_system(messages: Sequence[MessageSlice]) -> int:
    """Count the messages of the system prompt at the start."""
    for count in range(len(messages)):
        value = messages[count].value
        if not isinstance(value, dict) or value.get("role") not in SYSTEM_ROLES:
            return count
    return len(messages)


def count_trailing_system(messages: Sequence[MessageSlice], system_count: int) -> int:
    """Count the system reminders at the end, which clients renew with each request."""
    count = 0
    while len(messages) - count > system_count + 1:
        value = messages[len(messages) - 1 - count].value
        if not isinstance(value, dict) or not (
            value.get("role") in SYSTEM_ROLES or kind_of(value) == COMPACTION_TRIGGER
        ):
            break
        count += 1
    return count


def _find_new_words(body: bytes, match: BodyMatch) -> frozenset[str]:
    """Return the words of `WATCHED_WORDS` that the new part of a body may contain."""
    start = max(0, match.earlier.ends[match.message_count - 1] - _MAX_WORD_BYTES)
    end = len(body) - max(0, match.tail_bytes - _MAX_WORD_BYTES)
    return _find_watched_words(body, start, end)


def _find_watched_words(body: bytes, start: int, end: int) -> frozenset[str]:
    return frozenset(word for word in WATCHED_WORDS if body.find(word.encode(), start, end) >= 0)


def _count_shared_messages(match: BodyMatch, messages: Sequence[MessageSlice]) -> int:
    """Count the messages at the start that equal those of the cached body, apart from their cache marks."""
    cached_body = match.cached_body
    max_count = min(len(messages), len(cached_body.history))
    count = min(match.message_count - cached_body.system_count, max_count)
    while count < max_count:
        start = cached_body.slices.starts[cached_body.system_count + count]
        end = cached_body.slices.ends[cached_body.system_count + count]
        if not _is_same_apart_from_marks(cached_body.slices.body[start:end], messages[count]):
            break
        count += 1
    return count


def _is_same_apart_from_marks(cached_bytes: bytes, message: MessageSlice) -> bool:
    if cached_bytes == message.raw:
        return True
    if not any(b'"cache_control"' in raw for raw in (cached_bytes, message.raw)):
        return False
    return bool(_drop_marks(decode_value(cached_bytes)) == _drop_marks(message.value))


def _drop_marks(value: Any) -> Any:
    """Return a message without the cache marks on its blocks. Marks inside of a tool's arguments are content."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, str):
        return {**value, "content": [{"type": "text", "text": content}]}
    if not isinstance(content, list):
        return value
    return {**value, "content": list(map(_drop_mark, content))}


def _drop_mark(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    return {name: part for name, part in block.items() if name != "cache_control"}


def _compute_digest(*parts: bytes) -> bytes:
    """Return a digest of several parts and their lengths, so that different lists of parts have different digests."""
    running = sha256()
    for part in parts:
        running.update(len(part).to_bytes(8, "little") + part)
    return running.digest()


def _decode_settings(api: Api, slices: BodySlices, leading: Sequence[MessageSlice]) -> ModelRequest:
    """Return the request without its messages: model, system prompt and tools."""
    messages = [message.value for message in leading]
    body = {**slices.fields, LIST_FIELD[api]: messages}
    return CODECS[api].decode_request(body)
