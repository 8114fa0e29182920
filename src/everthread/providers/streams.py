"""What every wrapper of a stream needs: closing what it wraps, and not counting the bill as a beginning."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from everthread.core.types import Reply, StreamDelta

T = TypeVar("T")


@asynccontextmanager
async def closing(pieces: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T], None]:
    """The stream, closed at the end whatever happens: its connection must not outlive the reader's interest."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


async def from_first_word(
    pieces: AsyncIterator[StreamDelta | Reply],
) -> AsyncGenerator[StreamDelta | Reply, None]:
    """The same pieces, but usage reported before the first word comes with that word.

    A stream that told only what the prompt cost has not begun: it can fail and be asked for again unnoticed.
    """
    held: list[StreamDelta] = []
    begun = False
    async with closing(pieces):
        async for piece in pieces:
            if not begun and isinstance(piece, StreamDelta) and piece.kind == "usage":
                held.append(piece)
                continue
            begun = True
            for earlier in held:
                yield earlier
            held.clear()
            yield piece
