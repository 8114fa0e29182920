"""Read a request's body once and within limits. A large body is read in a thread, off the event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from everthread.errors import WireError
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.request.encoding import decode_body
from everthread.gateway.request.gemini_path import add_path_fields
from everthread.gateway.request.json_slices import has_too_many_values
from everthread.gateway.request.outer_fields import OuterFields
from everthread.gateway.request.request_head import check_model_name

if TYPE_CHECKING:
    from everthread.gateway.request.body_cache import BodyMatch, BodyOrigin
    from everthread.gateway.request.request_reader import LocatedBody, RequestReader

T = TypeVar("T")
_LOG = logging.getLogger("everthread.gateway")

MAX_LOOP_BYTES = 64 * 1024
"""Maximum size of a text that is read on the event loop; for less, a thread would cost more than reading."""
MAX_MEDIUM_BYTES = 4 * 1024 * 1024
"""Maximum size of texts for the shared threads; larger ones have a separate thread, so that others need not wait."""
MAX_UNCOUNTED_BYTES = 1024 * 1024
"""Maximum new bytes of a body that is slices without counting its values first."""
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
        _find_threads(is_large=size > MAX_MEDIUM_BYTES), work
    )


@functools.cache
def _find_threads(*, is_large: bool) -> ThreadPoolExecutor:
    if is_large:
        return ThreadPoolExecutor(1, "everthread-large-body")
    return ThreadPoolExecutor(MEDIUM_THREADS, "everthread-body")


@dataclass(frozen=True, slots=True)
class BodyLocator:
    """Locate the messages of a body from one origin. If that fails, the body's fields are read in another way."""

    reader: RequestReader
    origin: BodyOrigin
    metrics: Metrics

    def find_match(self, body: bytes) -> BodyMatch | None:
        """Find an earlier body that partly equals this one; return None if there is none or the search fails."""
        try:
            return self.reader.bodies.find(self.origin, body)
        except Exception as error:  # noqa: BLE001  counted and logged; the body is read as a new one
            self._report_failure(error)
            return None

    def locate(self, body: bytes, match: BodyMatch | None) -> LocatedBody | None:
        """Locate the fields and messages of a body; return None if that fails."""
        try:
            return self.reader.locate(self.origin, body, match)
        except WireError:
            return None  # the other way of reading shows the reason
        except Exception as error:  # noqa: BLE001  counted and logged; the fields are read in another way
            self._report_failure(error)
            return None

    def _report_failure(self, error: Exception) -> None:
        self.metrics.count("failed_open", step="locate")
        _LOG.error("the messages of a body could not be located: %s", type(error).__name__)


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body that was read."""

    raw: bytes
    """The bytes that the client sent, possibly compressed."""
    plain: bytes
    """The decoded body, or no bytes if it cannot be decoded."""
    outer: OuterFields
    located_body: LocatedBody | None = None
    """The positions of its messages, or None if they were not or cannot be located."""
    excess_reason: str = ""
    """Why reading the body would cost too much, or an empty string if it would not."""

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
    """Decode a body and locate its fields and, with a locator, its messages. Raise `RequestRefused` over a limit.

    The number of new bytes decides whether to use a thread, because most of a known conversation was read before.
    `path`: the path of the request; for Gemini it names the model, which becomes a field of the body.
    """
    if encoding in ("", "identity"):
        body = add_path_fields(path, raw)
        match = None if locator is None else locator.find_match(body)
        return await run_in_thread_if_large(
            _count_new_bytes(body, match), lambda: _read_decoded(raw, body, locator, match)
        )

    def decode_and_read() -> RequestBody:
        decoded_body = decode_body(raw, encoding, max_bytes)
        if decoded_body is None:
            excess = "its body cannot be decoded here"
            return RequestBody(raw, b"", OuterFields(b""), excess_reason=excess)
        body = add_path_fields(path, decoded_body)
        match = None if locator is None else locator.find_match(body)
        return _read_decoded(raw, body, locator, match)

    return await run_in_thread_if_large(max(len(raw), MAX_LOOP_BYTES + 1), decode_and_read)


def _read_decoded(
    raw: bytes, body: bytes, locator: BodyLocator | None, match: BodyMatch | None
) -> RequestBody:
    """Locate the fields and messages of a decoded body."""
    located_body = None
    if locator is not None and body:
        is_long = _count_new_bytes(body, match) > MAX_UNCOUNTED_BYTES
        if not is_long or not has_too_many_values(body):
            located_body = locator.locate(body, match)
    if located_body is None:
        outer = OuterFields(body)
    else:
        outer = OuterFields(body, located_body.slices, located_body.cached_bytes)
    check_model_name(outer.model)
    return RequestBody(raw, body, outer, located_body, _find_excess(raw, body, outer))


def _count_new_bytes(body: bytes, match: BodyMatch | None) -> int:
    """Count the bytes that were not read with an earlier body."""
    return len(body) if match is None else len(body) - match.size


def _find_excess(raw: bytes, body: bytes, outer: OuterFields) -> str:
    """Return why reading a request would cost too much, or an empty string if it would not."""
    if len(body) > MAX_EXPANSION_FACTOR * len(raw) + ALLOWED_EXPANSION_BYTES:
        return f"its body is more than {MAX_EXPANSION_FACTOR} times as large once decoded"
    if outer.new_size < MIN_EXCESS_BYTES:
        return ""
    # `replace` takes a tenth of the time of `count`.
    objects = len(body) - len(body.replace(b"{", b""))
    if objects > MAX_MESSAGES and body.count(b'"role"') > MAX_MESSAGES:
        return f"it has more than {MAX_MESSAGES:,} messages"
    if objects > MAX_OBJECTS:
        return f"it has more than {MAX_OBJECTS:,} objects"
    return "it has too many values" if outer.is_excessive else ""
