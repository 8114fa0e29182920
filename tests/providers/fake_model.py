"""A scripted model, its errors, and a recorder of the events of its wrappers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta, StreamingModel
from everthread.errors import ModelError
from everthread.providers.resilience import ModelEvent
from tests.providers.http_models import collect_pieces

BUSY = ModelError("busy", status=529)
TOO_LONG = ModelError(
    "too long",
    status=400,
    body={"error": {"code": "context_length_exceeded", "message": "too long"}},
)
REQUEST = ModelRequest("first", [{"role": "user", "content": "Hi"}], params={"max_tokens": 500})

Step = StreamDelta | ModelReply | Exception | float
"""A float is a pause in seconds."""


def text_delta(text: str) -> StreamDelta:
    return StreamDelta("text", text=text)


def usage_delta(tokens: int) -> StreamDelta:
    return StreamDelta("usage", raw={"input_tokens": tokens})


def make_reply(text: str = "ok") -> ModelReply:
    return ModelReply({"role": "assistant", "content": text}, stop="stop")


@dataclass
class StepwiseModel:
    """Each call takes the next list of steps; a whole answer is the list's reply or error."""

    script: Sequence[Sequence[Step]]
    name: str = "first"
    window: int = 1_000
    api: Api = "openai_chat"
    base_url: str = "http://first/v1"
    requests: list[ModelRequest] = field(default_factory=list)
    closed: int = 0
    """How many streams were closed, and the model itself."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        for step in self._next(request):
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, Exception):
                raise step
            elif isinstance(step, ModelReply):
                return step
        raise AssertionError("the script has no reply")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamDelta | ModelReply]:
        try:
            for step in self._next(request):
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1

    def _next(self, request: ModelRequest) -> Sequence[Step]:
        self.requests.append(request)
        return self.script[len(self.requests) - 1]


class ModelEventRecorder:
    """Records events and waits; time passes only during `sleep`."""

    def __init__(self) -> None:
        self.events: list[ModelEvent] = []
        self.waits: list[float] = []
        self.now = 0.0

    def __call__(self, event: ModelEvent) -> None:
        self.events.append(event)

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


async def call_model(
    model: StreamingModel, *, stream: bool, request: ModelRequest = REQUEST
) -> ModelReply:
    """Return the model's reply, as a whole or at the end of a stream."""
    if not stream:
        return await model.complete(request)
    _, [whole] = await collect_pieces(model, request)
    return whole
