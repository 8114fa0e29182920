"""A model whose unfinished calls are told: they were paid for, though nobody heard the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everthread.core.types import Reply, Request, StreamingModel
from everthread.providers.wrapper import ModelWrapper


class MeteredModel(ModelWrapper):
    """Tells `lost` of every request that was given up while it was under way."""

    def __init__(self, model: StreamingModel, lost: Callable[[Request], None]) -> None:
        super().__init__(model)
        self._lost = lost

    async def complete(self, request: Request) -> Reply:
        try:
            return await self.inner.complete(request)
        except asyncio.CancelledError:
            self._lost(request)
            raise
