"""An answer in time: until its first piece, between two pieces, and in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from everthread.core.types import Reply, Request, StreamDelta, StreamingModel
from everthread.errors import ModelTimeoutError
from everthread.providers.streams import closing
from everthread.providers.wrapper import ModelWrapper


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds; None means no limit. A model that reasons in silence needs a long first one."""

    first: float | None = 300.0
    between: float | None = 120.0
    whole: float | None = 1_800.0


class TimeLimitedModel(ModelWrapper):
    """The model, left when it takes too long. Leaving closes the connection."""

    def __init__(self, model: StreamingModel, limits: TimeLimits | None = None) -> None:
        super().__init__(model)
        self._limits = limits or TimeLimits()

    async def complete(self, request: Request) -> Reply:
        scope = asyncio.timeout(self._limits.whole)
        try:
            async with scope:
                return await self.inner.complete(request)
        except TimeoutError:
            if not scope.expired():
                raise
            raise self._late("has not answered", self._limits.whole) from None

    async def stream(self, request: Request) -> AsyncGenerator[StreamDelta | Reply, None]:
        heard = _Heard()
        loop = asyncio.get_running_loop()
        end = None if self._limits.whole is None else loop.time() + self._limits.whole
        async with closing(self.inner.stream(request)) as pieces:
            while True:
                limit = self._limits.between if heard.begun else self._limits.first
                until = min((at for at in (end, None if limit is None else loop.time() + limit) if at), default=None)
                scope = asyncio.timeout_at(until)
                try:
                    async with scope:
                        piece = await anext(pieces, None)
                except TimeoutError:
                    if not scope.expired():
                        raise
                    raise self._left(heard, is_whole=until == end) from None
                if piece is None:
                    return
                heard.take(piece)
                yield piece

    def _left(self, heard: _Heard, *, is_whole: bool) -> ModelTimeoutError:
        if is_whole:
            return self._late("has not come to the end of its answer", self._limits.whole, heard)
        if heard.begun:
            return self._late("has fallen silent in the middle of its answer", self._limits.between, heard)
        return self._late("has not begun to answer", self._limits.first)

    def _late(self, what: str, limit: float | None, heard: _Heard | None = None) -> ModelTimeoutError:
        sentence = f"{self.name} at {self.base_url} {what} within {limit:g} s. Ask again."
        return ModelTimeoutError(sentence, partial=heard.reply(self.name) if heard else None)


@dataclass(slots=True)
class _Heard:
    """What was said until it was left: words and usage. Half a call is not worth keeping: it must not be run."""

    begun: bool = False
    words: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None

    def take(self, piece: StreamDelta | Reply) -> None:
        if isinstance(piece, Reply):
            return
        if piece.kind == "usage":
            self.usage = dict(piece.raw)
        else:
            self.begun = True
        if piece.kind == "text":
            self.words.append(piece.text)

    def reply(self, model: str) -> Reply | None:
        if not self.begun and self.usage is None:
            return None
        return Reply({"role": "assistant", "content": "".join(self.words)}, usage=self.usage, model=model)
