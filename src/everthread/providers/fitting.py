"""An answer's cap that leaves room for its prompt: no provider is asked for more than its window holds."""

from __future__ import annotations

from collections.abc import AsyncIterator

from everthread.core.tokens import TokenCounter
from everthread.core.types import Reply, Request, StreamDelta, StreamingModel
from everthread.providers.output_cap import output_cap, own_cap, with_output_cap
from everthread.providers.wrapper import ModelWrapper

SAFE = 1.05
"""Our count of a prompt may be a little below the provider's."""
LEAST = 256
"""With less room the prompt is too long, and the provider may say so."""


class FittingModel(ModelWrapper):
    """The model, its output cap lowered where prompt and cap together would not fit."""

    def __init__(self, model: StreamingModel, counter: TokenCounter | None = None) -> None:
        super().__init__(model)
        self._counter = counter or TokenCounter(model.name)

    async def complete(self, request: Request) -> Reply:
        return await self.inner.complete(self._fitted(request))

    def stream(self, request: Request) -> AsyncIterator[StreamDelta | Reply]:
        return self.inner.stream(self._fitted(request))

    def _fitted(self, request: Request) -> Request:
        cap = output_cap(request)
        if cap is None and self.api == "anthropic":
            cap = own_cap(request.model, self.window)
        if cap is None:
            return request
        prompt = self._counter.request(request.messages, system=request.system, tools=request.tools)
        room = self.window - round(SAFE * prompt)
        if cap <= room or room < LEAST:
            return request
        return with_output_cap(request, room, api=self.api, base_url=self.base_url)
