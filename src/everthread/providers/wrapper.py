"""A model around another one: the same interface, told by events what it does besides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from everthread.core.types import Api, Reply, Request, StreamDelta, StreamingModel
from everthread.errors import ModelError


@dataclass(frozen=True, slots=True)
class ModelEvent:
    """Something that happened on the way to an answer, for whoever watches. `text` is a sentence."""

    kind: Literal["retry", "gave_up", "fallback", "recovered"]
    model: str
    text: str
    error: ModelError | None = None
    """What failed. Its `partial` holds usage that was spent all the same."""
    seconds: float = 0.0
    """How long will be waited."""


Events = Callable[[ModelEvent], None]


def nobody_listens(event: ModelEvent) -> None:
    """For those who do not want to know."""


@runtime_checkable
class Closable(Protocol):
    async def aclose(self) -> None: ...


async def close_model(model: object) -> None:
    """Close a model's connections, if it has any."""
    if isinstance(model, Closable):
        await model.aclose()


class ModelWrapper:
    """Says of itself what the model inside says."""

    def __init__(self, model: StreamingModel) -> None:
        self.inner = model

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> int:
        return self.inner.window

    @property
    def api(self) -> Api:
        return self.inner.api

    @property
    def base_url(self) -> str:
        return self.inner.base_url

    async def complete(self, request: Request) -> Reply:
        return await self.inner.complete(request)

    def stream(self, request: Request) -> AsyncIterator[StreamDelta | Reply]:
        return self.inner.stream(request)

    async def aclose(self) -> None:
        await close_model(self.inner)
