"""The last body of each thread, so that a request costs only the bytes that are new in it.

Candidates have the same tenant, protocol, session header and beginning of the list of messages. The candidate with most
messages in common with a new body is found by comparison. A thread can continue without this cache; its body is then
read again.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from threading import RLock

from everthread.core.types import Api, ModelRequest
from everthread.gateway.identify import find_scope
from everthread.gateway.request.byte_cache import ByteCache
from everthread.gateway.request.json_slices import LIST_FIELD, BodySlices, SharedParts
from everthread.thread.matching.history import History

MAX_BODIES_BYTES = 64 * 1024 * 1024
MESSAGE_BYTES = 600
"""Approximate memory for a message, in addition to its bytes."""
MAX_CANDIDATES = 16
KEY_BYTES = 512
"""Number of bytes at the start of the list of messages that are part of a candidate's key."""
_LIST_START = {
    name: re.compile(rb'"%b"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*' % name.encode())
    for name in LIST_FIELD.values()
}


@dataclass(frozen=True, slots=True)
class BodyOrigin:
    """The sender of a body. Only bodies of the same sender are compared."""

    api: Api
    tenant: str = ""
    scope: str = ""
    """The session that the client's headers name."""

    @classmethod
    def of(cls, api: Api, tenant: str, headers: Mapping[str, str]) -> BodyOrigin:
        return cls(api, tenant, find_scope(headers))


@dataclass(frozen=True, slots=True)
class CachedBody:
    """The last body of a thread, and the values read from it."""

    thread: str
    slices: BodySlices
    system_count: int
    """Number of messages at the start that are the system prompt."""
    history: History
    sizes: list[int]
    """Tokens of the messages of the history, as far as they were counted."""
    settings: ModelRequest
    """Model, system prompt and tools."""
    settings_tokens: int
    watched_words: frozenset[str]

    @property
    def size(self) -> int:
        return len(self.slices.body) + MESSAGE_BYTES * len(self.slices.ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyMatch(SharedParts):
    """The parts in which a new body equals a cached one."""

    cached_body: CachedBody

    @property
    def size(self) -> int:
        """Number of bytes of the new body that are known from the cached one."""
        return self.earlier.ends[self.message_count - 1] + self.tail_bytes


class BodyCache:
    """The last bodies of threads, found by their beginning."""

    def __init__(self) -> None:
        self._bodies: ByteCache[str, CachedBody] = ByteCache(MAX_BODIES_BYTES)
        self._threads: dict[Hashable, dict[str, None]] = {}
        """Threads by the key of their bodies, the most recently used thread last."""
        self._keys: dict[str, Hashable] = {}
        """By thread, the key of its body."""
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._bodies)

    def find(self, origin: BodyOrigin, body: bytes) -> BodyMatch | None:
        """Return the cached body with most messages in common with this one, or None if there is no such body."""
        with self._lock:
            threads = list(self._threads.get(_make_candidate_key(origin, body), ()))
        best_match: BodyMatch | None = None
        for thread in threads[: -MAX_CANDIDATES - 1 : -1]:
            cached_body = self._bodies.find(thread)
            if cached_body is None:
                continue
            match = _find_shared_parts(cached_body, origin.api, body)
            if match and (best_match is None or match.message_count > best_match.message_count):
                best_match = match
            if match and match.message_count == len(cached_body.slices.ends):
                break  # nothing can have more in common than the whole
        return best_match

    def keep(self, origin: BodyOrigin, body: CachedBody) -> None:
        """Keep the last body of a thread instead of the previous one."""
        with self._lock:
            self._forget_key(body.thread)
            key = _make_candidate_key(origin, body.slices.body)
            if key is None:
                return
            self._threads.setdefault(key, {})[body.thread] = None
            self._keys[body.thread] = key
            for thread in self._bodies.keep(body.thread, body, body.size):
                self._forget_key(thread)

    def _forget_key(self, thread: str) -> None:
        key = self._keys.pop(thread, None)
        if key is None:
            return
        threads = self._threads[key]
        del threads[thread]
        if not threads:
            del self._threads[key]


def _make_candidate_key(origin: BodyOrigin, body: bytes) -> Hashable | None:
    """Return a key that is equal for bodies with the same beginning, or None if there is no list of messages.

    If an inner list of the same name comes first, the key is only less specific.
    """
    start = _LIST_START[LIST_FIELD[origin.api]].search(body)
    if start is None:
        return None
    return origin, body[start.end() : start.end() + KEY_BYTES]


def _find_shared_parts(cached_body: CachedBody, api: Api, body: bytes) -> BodyMatch | None:
    """Return the parts in which a body equals a cached one, or None if even the first messages differ."""
    earlier = cached_body.slices
    count = earlier.count_complete(count_shared_bytes(earlier.body, body))
    if count == 0:
        return None
    tail = memoryview(earlier.body)[earlier.spans[LIST_FIELD[api]][1] :]
    has_tail = len(body) - len(tail) > earlier.ends[count - 1] and body.endswith(tail)
    return BodyMatch(
        earlier=earlier,
        message_count=count,
        tail_bytes=len(tail) if has_tail else 0,
        cached_body=cached_body,
    )


def count_shared_bytes(body: bytes, other_body: bytes) -> int:
    """Count the bytes at the start that are equal in two bodies."""
    view = memoryview(other_body)
    shared = 0
    end = min(len(body), len(other_body))
    if body.startswith(view[:end]):
        return end
    while end - shared > 1:
        middle = (shared + end) // 2
        if body.startswith(view[shared:middle], shared):
            shared = middle
        else:
            end = middle
    return shared
