"""What has left view, made into vectors while the conversation goes on. Secrets are taken out before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everthread.conversation.events import Notice
from everthread.core.redaction import redact
from everthread.core.vectors import Vector
from everthread.errors import EverthreadError

if TYPE_CHECKING:
    from everthread.conversation.state import ConversationState

BATCH = 64
MOST = 2_000
"""Pieces after one compaction, the newest; what is left waits for the next."""


class Embedding:
    """At most one run at a time. That a server fails is told once, until it works again: full text goes on alone."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def start(self) -> None:
        """Begin, where there is somebody to do it and nobody is at it."""
        if self._live.setup.embedder is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def question(self, text: str) -> Vector | None:
        """A message as a vector; None where there is no one to make it."""
        embedder = self._live.setup.embedder
        if embedder is None or not text.strip():
            return None
        try:
            (packed,) = await embedder.embed([redact(text)])
        except EverthreadError as error:
            self._tell(error)
            return None
        self._failing = False
        return Vector(embedder.name, packed)

    async def _run(self) -> None:
        live, embedder = self._live, self._live.setup.embedder
        if embedder is None:
            return
        try:
            for _ in range(0, MOST, BATCH):
                pieces = await live.setup.store.without_vectors(
                    live.session.thread, embedder.name, seen=live.in_view, limit=BATCH
                )
                if not pieces:
                    break
                made = await embedder.embed([redact(text) for _, text in pieces])
                keys = [key for key, _ in pieces]
                await live.setup.store.put_vectors(embedder.name, list(zip(keys, made, strict=True)))
        except EverthreadError as error:
            self._tell(error)
        else:
            self._failing = False

    def _tell(self, error: EverthreadError) -> None:
        if not self._failing:
            self._failing = True
            self._live.emit(Notice(self._live.session.id, f"Recall goes on with full text alone: {error}"))
