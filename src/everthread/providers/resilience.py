"""Wrappers around a model, each with the model's own interface: retry, time limits, fallback, a cap that fits."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request, StreamDelta, StreamingModel
from everthread.errors import InputError, ModelError, ModelTimeoutError
from everthread.providers.base import Events, ModelEvent, close_model, closing, from_first_word, ignore_event
from everthread.providers.catalog import known_model, output_cap, own_cap, with_output_cap
from everthread.providers.errors import is_out_of_service, is_passing

_RATE_LIMIT = 429


class ModelWrapper:
    """A model around another: everything not overridden is the inner model's."""

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


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """`attempts` in all, the first included; seconds else."""

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 30.0
    """Of the waits that are ours to choose."""
    patience: float = 300.0
    """From the first attempt on; a provider that asks to wait beyond is not waited for."""
    rate_limit_attempts: int = 12
    rate_limit_wait: float = 4.0
    """A rate limit lasts for minutes: the first wait where the provider names none."""


class RetryingModel(ModelWrapper):
    """The model, asked again when it fails for a while."""

    def __init__(  # noqa: PLR0913 - time and chance are injected
        self,
        model: StreamingModel,
        options: RetryOptions | None = None,
        *,
        events: Events = ignore_event,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(model)
        self._options = options or RetryOptions()
        self._events = events
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def complete(self, request: Request) -> Reply:
        begun, attempt = self._clock(), 1
        while True:
            try:
                return await self.inner.complete(request)
            except ModelError as error:
                await self._wait_or_raise(error, attempt, begun)
                attempt += 1

    async def stream(self, request: Request) -> AsyncGenerator[StreamDelta | Reply, None]:
        begun, attempt, has_begun = self._clock(), 1, False
        while True:
            try:
                async with closing(from_first_word(self.inner.stream(request))) as pieces:
                    async for piece in pieces:
                        has_begun = True
                        yield piece
            except ModelError as error:
                if has_begun:
                    raise
                await self._wait_or_raise(error, attempt, begun)
                attempt += 1
            else:
                return

    async def _wait_or_raise(self, error: ModelError, attempt: int, begun: float) -> None:
        if not is_passing(error):
            raise error
        wait = self._wait(error, attempt)
        late = self._clock() - begun + wait > self._options.patience
        attempts = self._options.rate_limit_attempts if error.status == _RATE_LIMIT else self._options.attempts
        if attempt >= attempts or late:
            why = f"it asks to wait {wait:.0f} s" if late and error.retry_after else f"tried {attempt} times"
            self._events(ModelEvent("gave_up", self.name, f"{self.name}: no more retries, {why}.", error))
            raise error
        message = f"{self.name}: retry in {wait:.1f} s, attempt {attempt + 1} of {attempts}. {error}"
        self._events(ModelEvent("retry", self.name, message, error, wait))
        await self._sleep(wait)

    def _wait(self, error: ModelError, attempt: int) -> float:
        """Never less than the provider asks for; ours is between half and the whole of what has doubled each time."""
        if error.retry_after is not None:
            return error.retry_after * (1 + self._chance() / 10)
        first = self._options.rate_limit_wait if error.status == _RATE_LIMIT else self._options.first_wait
        doubled = min(self._options.longest_wait, first * 2.0 ** (attempt - 1))
        return doubled * (1 + self._chance()) / 2


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
        progress = _StreamProgress()
        loop = asyncio.get_running_loop()
        end = None if self._limits.whole is None else loop.time() + self._limits.whole
        async with closing(self.inner.stream(request)) as pieces:
            while True:
                limit = self._limits.between if progress.begun else self._limits.first
                until = min((at for at in (end, None if limit is None else loop.time() + limit) if at), default=None)
                scope = asyncio.timeout_at(until)
                try:
                    async with scope:
                        piece = await anext(pieces, None)
                except TimeoutError:
                    if not scope.expired():
                        raise
                    raise self._timeout_error(progress, is_whole=until == end) from None
                if piece is None:
                    return
                progress.take(piece)
                yield piece

    def _timeout_error(self, progress: _StreamProgress, *, is_whole: bool) -> ModelTimeoutError:
        if is_whole:
            return self._late("has not come to the end of its answer", self._limits.whole, progress)
        if progress.begun:
            return self._late("has fallen silent in the middle of its answer", self._limits.between, progress)
        return self._late("has not begun to answer", self._limits.first)

    def _late(self, what: str, limit: float | None, progress: _StreamProgress | None = None) -> ModelTimeoutError:
        sentence = f"{self.name} at {self.base_url} {what} within {limit:g} s. Ask again."
        return ModelTimeoutError(sentence, partial=progress.reply(self.name) if progress else None)


@dataclass(slots=True)
class _StreamProgress:
    """The words and usage of a stream until a timeout. An incomplete call is dropped: it must not be run."""

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


Refit = Callable[[Request, StreamingModel], Request | Awaitable[Request]]
REST_SECONDS = 60.0


def keep_request(request: Request, _model: StreamingModel) -> Request:
    """The default: models with windows of about the same size."""
    return request


class FallbackModel(ModelWrapper):
    """The first of several models that is in service; `inner`, name and window are those of the one asked next."""

    def __init__(
        self,
        models: Sequence[StreamingModel],
        *,
        refit: Refit = keep_request,
        events: Events = ignore_event,
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
                reply = await self._models[at].complete(await self._fit_request(request, at))
            except ModelError as error:
                self._note_failure(at, error, is_last=is_last)
                continue
            self._note_answer(at)
            return reply
        raise AssertionError("the last model's failure is raised above")

    async def stream(self, request: Request) -> AsyncGenerator[StreamDelta | Reply, None]:
        for at, is_last in self._order():
            has_begun = False
            try:
                fitted = await self._fit_request(request, at)
                async with closing(from_first_word(self._models[at].stream(fitted))) as pieces:
                    async for piece in pieces:
                        if not has_begun:
                            self._note_answer(at)
                        has_begun = True
                        yield piece
            except ModelError as error:
                self._note_failure(at, error, is_last=is_last or has_begun)
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
        for position, at in enumerate(order):
            yield at, position == len(order) - 1

    async def _fit_request(self, request: Request, at: int) -> Request:
        model = self._models[at]
        if request.model == model.name:
            return request
        request = replace(request, model=model.name)
        cap = output_cap(request)
        if cap is not None:
            model_facts = known_model(model.name)
            most = (model_facts and model_facts.max_output) or cap
            request = with_output_cap(request, min(cap, most), api=model.api, base_url=model.base_url)
        fitted = self._refit(request, model)
        return await fitted if inspect.isawaitable(fitted) else fitted

    def _note_failure(self, at: int, error: ModelError, *, is_last: bool) -> None:
        """Report the failure and let the next model take over; raise it for the last one, or for a bad request."""
        if not is_out_of_service(error):
            raise error
        self._resting[at] = self._clock() + max(self._rest_seconds, error.retry_after or 0.0)
        self.inner = self._models[next(self._order())[0]]
        if is_last:
            raise error
        name = self._models[at].name
        text = f"{name} is out of service; another model is asked. {error}"
        self._events(ModelEvent("fallback", name, text, error))

    def _note_answer(self, at: int) -> None:
        if self._resting.pop(at, None) is not None:
            name = self._models[at].name
            self._events(ModelEvent("recovered", name, f"{name} is in service again."))
        self.inner = self._models[at]


SIZE_MARGIN = 1.05
"""Our count of a prompt may be a little below the provider's."""
MIN_OUTPUT_TOKENS = 256
"""With less room the prompt is too long, and the provider may say so."""


class FittingModel(ModelWrapper):
    """The model, its output cap lowered where prompt and cap together would not fit."""

    def __init__(self, model: StreamingModel, counter: TokenCounter | None = None) -> None:
        super().__init__(model)
        self._counter = counter or TokenCounter(model.name)

    async def complete(self, request: Request) -> Reply:
        return await self.inner.complete(self._fit_request(request))

    def stream(self, request: Request) -> AsyncIterator[StreamDelta | Reply]:
        return self.inner.stream(self._fit_request(request))

    def _fit_request(self, request: Request) -> Request:
        cap = output_cap(request)
        if cap is None and self.api == "anthropic":
            cap = own_cap(request.model, self.window)
        if cap is None:
            return request
        prompt = self._counter.request(request.messages, system=request.system, tools=request.tools)
        room = self.window - round(SIZE_MARGIN * prompt)
        if cap <= room or room < MIN_OUTPUT_TOKENS:
            return request
        return with_output_cap(request, room, api=self.api, base_url=self.base_url)


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
