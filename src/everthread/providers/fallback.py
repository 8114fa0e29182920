"""Another model, when the first is out of service.

The request is made to fit the other: its name, its field for the output cap, and, through a function given by whoever
knows the conversation, its window. After a failure the first model rests before it is asked again.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from everthread.core.types import Reply, Request, StreamDelta, StreamingModel
from everthread.errors import InputError, ModelError
from everthread.providers.catalog import known_model
from everthread.providers.failures import is_out_of_service
from everthread.providers.output_cap import output_cap, with_output_cap
from everthread.providers.streams import closing, from_first_word
from everthread.providers.wrapper import Events, ModelEvent, ModelWrapper, close_model, nobody_listens

Refit = Callable[[Request, StreamingModel], Request | Awaitable[Request]]
REST_SECONDS = 60.0


def as_it_is(request: Request, _model: StreamingModel) -> Request:
    """For models whose windows are alike."""
    return request


class FallbackModel(ModelWrapper):
    """The first of several models that is in service; `inner`, name and window are those of the one asked next."""

    def __init__(
        self,
        models: Sequence[StreamingModel],
        *,
        refit: Refit = as_it_is,
        events: Events = nobody_listens,
        clock: Callable[[], float] = time.monotonic,
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        if not models:
            raise InputError("A fallback needs at least one model; none was given.")
        super().__init__(models[0])
        self._models = tuple(models)
        self._refit = refit
        self._events = events
        self._clock = clock
        self._rest_seconds = rest_seconds
        self._resting: dict[int, float] = {}

    async def complete(self, request: Request) -> Reply:
        for at, is_last in self._order():
            try:
                reply = await self._models[at].complete(await self._fitted(request, at))
            except ModelError as error:
                self._failed(at, error, is_last=is_last)
                continue
            self._answered(at)
            return reply
        raise AssertionError("the last model's failure is raised above")

    async def stream(self, request: Request) -> AsyncGenerator[StreamDelta | Reply, None]:
        for at, is_last in self._order():
            given = False
            try:
                fitted = await self._fitted(request, at)
                async with closing(from_first_word(self._models[at].stream(fitted))) as pieces:
                    async for piece in pieces:
                        if not given:
                            self._answered(at)
                        given = True
                        yield piece
            except ModelError as error:
                self._failed(at, error, is_last=is_last or given)
            else:
                return

    async def aclose(self) -> None:
        for model in self._models:
            await close_model(model)

    def _order(self) -> Iterator[tuple[int, bool]]:
        """Those in service in their order, then those at rest: better a tired model than none."""
        now = self._clock()
        rested = [at for at in range(len(self._models)) if self._resting.get(at, now) <= now]
        order = [*rested, *(at for at in range(len(self._models)) if at not in rested)]
        for place, at in enumerate(order):
            yield at, place == len(order) - 1

    async def _fitted(self, request: Request, at: int) -> Request:
        model = self._models[at]
        if request.model == model.name:
            return request
        request = replace(request, model=model.name)
        cap = output_cap(request)
        if cap is not None:
            known = known_model(model.name)
            most = (known and known.max_output) or cap
            request = with_output_cap(request, min(cap, most), api=model.api, base_url=model.base_url)
        fitted = self._refit(request, model)
        return await fitted if inspect.isawaitable(fitted) else fitted

    def _failed(self, at: int, error: ModelError, *, is_last: bool) -> None:
        """Told, and the next one takes over; raised where there is none, or where the request is to blame."""
        if not is_out_of_service(error):
            raise error
        self._resting[at] = self._clock() + max(self._rest_seconds, error.retry_after or 0.0)
        self.inner = self._models[next(self._order())[0]]
        if is_last:
            raise error
        name = self._models[at].name
        said = f"{name} is out of service; another model is asked. {error}"
        self._events(ModelEvent("fallback", name, said, error))

    def _answered(self, at: int) -> None:
        if self._resting.pop(at, None) is not None:
            name = self._models[at].name
            self._events(ModelEvent("recovered", name, f"{name} is in service again."))
        self.inner = self._models[at]
