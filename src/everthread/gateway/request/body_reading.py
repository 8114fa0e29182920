"""Read a request's body once and within limits. A large body is read in a thread, off the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from everthread.gateway.request.encoding import decode_body
from everthread.gateway.request.gemini_path import add_path_fields
from everthread.gateway.request.json_slices import has_too_many_values
from everthread.gateway.request.outer_fields import OuterFields
from everthread.gateway.request.request_head import check_model_name

if TYPE_CHECKING:
    from everthread.gateway.contracts import BodyReader
    from everthread.gateway.request.body_cache import BodyMatch, BodyOrigin
    from everthread.gateway.request.request_reader import LocatedBody

T = TypeVar("T")

MAX_LOOP_BYTES = 64 * 1024
"""Maximum size of a text that is read on the event loop; for less, a thread would cost more than reading."""
MAX_MEDIUM_BYTES = 4 * 1024 * 1024
"""Maximum size of texts for the shared threads; larger ones have a separate thread, so that others need not wait."""
MAX_UNCOUNTED_BYTES = 1024 * 1024
"""Maximum new bytes of a body that is sliced without counting its values first."""
MEDIUM_THREADS = 3
MAX_EXPANSION_FACTOR = 50
ALLOWED_EXPANSION_BYTES = 4 * 1024 * 1024
MAX_MESSAGES = 10_000
MAX_OBJECTS = 400_000
"""Requests beyond these limits are forwarded unmanaged, because reading them would delay others."""
MIN_EXCESS_BYTES = 2 * MAX_MESSAGES * len(b'"role"')
"""Minimum size of a body that can have `MAX_MESSAGES` messages."""


async def run_in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Run work that reads `size` bytes of a client's text, in a thread if it is large."""
    if size <= MAX_LOOP_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(
        _threads(is_large=size > MAX_MEDIUM_BYTES), work
    )


@functools.cache
def _threads(*, is_large: bool) -> ThreadPoolExecutor:
    if is_large:
        return ThreadPoolExecutor(1, "everthread-large-body")
    return ThreadPoolExecutor(MEDIUM_THREADS, "everthread-body")


@dataclass(frozen=True, slots=True)
class BodyLocator:
    """The reader that locates the messages of a body, and the body's origin."""

    reader: BodyReader
    origin: BodyOrigin


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body that was read."""

    raw: bytes
    """The bytes that the client sent, possibly compressed."""
    plain: bytes | None
    """The decoded body; None if it cannot be decoded."""
    outer: OuterFields
    located_body: LocatedBody | None = None
    """The positions of its messages; None if they were not or cannot be located."""
    excess: str = ""
    """Why reading the body would cost too much; empty if it would not."""

    @property
    def model(self) -> str | None:
        return self.outer.model


async def read_request(
    raw: bytes,
    encoding: str,
    max_bytes: int,
    *,
    locator: BodyLocator | None = None,
    path: str = "",
) -> RequestBody:
    """Decode a body and locate its fields and, with a locator, its messages. Raise `Refused` if it exceeds a limit.

    The number of new bytes decides whether to use a thread, because most of a known conversation was read before.
    `path`: the path of the request; for Gemini it names the model, which becomes a field of the body.
    """
    reading = _BodyReading(raw, locator)
    if encoding in ("", "identity"):
        reading.find_match(add_path_fields(path, raw))
        return await run_in_thread_if_large(reading.new_bytes, reading.read)
    size = max(len(raw), MAX_LOOP_BYTES + 1)
    return await run_in_thread_if_large(
        size, lambda: reading.decode_and_read(encoding, max_bytes, path)
    )


class _BodyReading:
    """The steps of reading one body."""

    def __init__(self, raw: bytes, locator: BodyLocator | None) -> None:
        self._raw = raw
        self._locator = locator
        self._plain = b""
        self._match: BodyMatch | None = None

    @property
    def new_bytes(self) -> int:
        cached_bytes = 0 if self._match is None else self._match.size
        return len(self._plain) - cached_bytes

    def find_match(self, plain: bytes) -> None:
        """Find an earlier body that partly equals a decoded body."""
        self._plain = plain
        if self._locator is not None:
            locator = self._locator
            self._match = locator.reader.find_match(locator.origin, plain)

    def decode_and_read(self, encoding: str, max_bytes: int, path: str) -> RequestBody:
        decoded_body = decode_body(self._raw, encoding, max_bytes)
        if decoded_body is None:
            excess = "its body cannot be decoded here"
            return RequestBody(self._raw, None, OuterFields(b""), excess=excess)
        self.find_match(add_path_fields(path, decoded_body))
        return self.read()

    def read(self) -> RequestBody:
        """Locate the fields and messages of a decoded body."""
        located_body = self._locate()
        sliced = None if located_body is None else located_body.sliced_body
        cached_bytes = 0 if located_body is None else located_body.cached_bytes
        outer = OuterFields(self._plain, sliced, cached_bytes)
        check_model_name(outer.model)
        excess = _find_excess(self._raw, self._plain, outer)
        return RequestBody(self._raw, self._plain, outer, located_body, excess)

    def _locate(self) -> LocatedBody | None:
        locator = self._locator
        if locator is None or not self._plain:
            return None
        if self.new_bytes > MAX_UNCOUNTED_BYTES and has_too_many_values(self._plain):
            return None
        return locator.reader.locate(locator.origin, self._plain, self._match)


def _find_excess(raw: bytes, body: bytes, outer: OuterFields) -> str:
    """Return why reading a request would cost too much; empty if it would not."""
    if len(body) > MAX_EXPANSION_FACTOR * len(raw) + ALLOWED_EXPANSION_BYTES:
        return f"its body is more than {MAX_EXPANSION_FACTOR} times as large as it came"
    if outer.new_size < MIN_EXCESS_BYTES:
        return ""
    # `replace` takes a tenth of the time of `count`.
    objects = len(body) - len(body.replace(b"{", b""))
    if objects > MAX_MESSAGES and body.count(b'"role"') > MAX_MESSAGES:
        return f"it has more than {MAX_MESSAGES:,} messages"
    if objects > MAX_OBJECTS:
        return f"it has more than {MAX_OBJECTS:,} objects"
    return "it has too many values" if outer.is_excessive else ""
