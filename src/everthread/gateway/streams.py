"""What is done to streams: usage asked for where a client said nothing, and the first events held."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from everthread.core.exchange import StreamDelta
from everthread.gateway.glance import glance
from everthread.gateway.usage_tap import Tap

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST = 1024 * 1024
"""An event longer than this is no event; it goes on as it is."""
_CONTENT = frozenset({"text", "reasoning", "refusal", "call", "stop"})


def asking_for_usage(body: bytes) -> bytes | None:
    """A chat request that streams, asking for the usage too; None where the client said what it wants."""
    stream = glance(body, "stream")
    if stream is None or stream.value is not True:
        return None
    options = glance(body, "stream_options")
    if options is None:
        text = body.rstrip()
        return text[:-1] + b',"stream_options":{"include_usage":true}}' if text.endswith(b"}") else None
    if not isinstance(options.value, dict) or "include_usage" in options.value or options.at < 0:
        return None
    rest = b"," if options.value else b""
    return body[: options.at + 1] + b'"include_usage":true' + rest + body[options.at + 1 :]


class WithoutUsage:
    """A chat stream without the extra chunk at its end: the client did not ask for it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The complete events; the beginning of one waits for its end."""
        data = self._rest + chunk
        kept: list[bytes] = []
        at = 0
        for match in _EVENT_END.finditer(data):
            event, at = data[at : match.end()], match.end()
            if not _is_extra(event):
                kept.append(event)
        self._rest = data[at:]
        if len(self._rest) > _LONGEST:
            kept.append(self.end())
        return b"".join(kept)

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


def _is_extra(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk: Any = json.loads(event[5:])
    except (ValueError, RecursionError):
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


class Pieces:
    """The pieces of a body as they come, of which some were looked at before they go on."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._seen: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None

    async def whole(self, most: int) -> bytes | None:
        """All of it; None where it is more than `most`."""
        while sum(map(len, self._seen)) <= most:
            piece = await anext(self._source, None)
            if piece is None:
                return b"".join(self._seen)
            self._seen.append(piece)
        return None

    async def held(self, tap: Tap, seconds: float) -> StreamDelta | None:
        """Look on until the stream says something, at most so long; the error where it begins with one."""
        ends = asyncio.get_running_loop().time() + seconds
        while True:
            self._next = asyncio.ensure_future(_after(self._source))
            left = ends - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait({self._next}, timeout=max(0.0, left))
            if not done:
                return None
            piece, self._next = await self._next, None
            if piece is None:
                return None
            self._seen.append(piece)
            said = tap.feed(piece)
            error = next((delta for delta in said if delta.kind == "error"), None)
            if error is not None or any(delta.kind in _CONTENT for delta in said):
                return error

    async def drop(self) -> None:
        """Nobody wants the rest."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})

    async def after_seen(self) -> AsyncIterator[bytes]:
        """What was not looked at yet."""
        if self._next is not None:
            piece = await self._next
            self._next = None
            if piece is None:
                return
            yield piece
        async for piece in self._source:
            yield piece

    @property
    def seen(self) -> list[bytes]:
        return self._seen


async def _after(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
