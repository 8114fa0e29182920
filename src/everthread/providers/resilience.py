"""Wrappers around a model, each with the model's own interface: retry, time limits, fallback, a cap that fits."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request, StreamDelta, StreamingModel
from everthread.errors import InputError, ModelError, ModelTimeoutError
from everthread.providers.catalog import (
    known_model,
    output_cap,
    own_cap,
    with_output_cap,
)
from everthread.providers.model_errors import is_out_of_service, is_transient

T = TypeVar("T")
Piece = StreamDelta | Reply
_RATE_LIMIT = 429


@dataclass(frozen=True, slots=True)
class ModelEvent:
    """A retry, a fallback or a recovery. `text` is a sentence for a person."""

    kind: Literal["retry", "gave_up", "fallback", "recovered"]
    model: str
    text: str
    error: ModelError | None = None
    """The failure. Its `partial` holds the usage that was spent."""
    seconds: float = 0.0
    """Seconds until the next attempt."""


Events = Callable[[ModelEvent], None]


def ignore_event(event: ModelEvent) -> None:
    """Drop an event (the default)."""


async def close_model(model: object) -> None:
    """Close a model's connections, if it has any."""
    aclose = getattr(model, "aclose", None)
    if aclose is not None:
        await aclose()


@asynccontextmanager
async def closing(pieces: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T], None]:
    """Yield the stream and close it at the end, so that its connection does not outlive the reader."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


class ModelWrapper:
    """A model around another: everything not overridden is the inner model's.

    A wrapper overrides `_pieces`, which is both a stream and a whole answer: the latter is one piece.
    """

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
        async with closing(self._pieces(request, stream=False)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Reply):
                    return piece
        raise AssertionError("an answer is a reply or an error")

    def stream(self, request: Request) -> AsyncIterator[Piece]:
        return self._pieces(request, stream=True)

    async def aclose(self) -> None:
        await close_model(self.inner)

    def _pieces(self, request: Request, *, stream: bool) -> AsyncIterator[Piece]:
        return ask_model(self.inner, request, stream=stream)


async def ask_model(
    model: StreamingModel, request: Request, *, stream: bool
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a stream, or the whole answer as one."""
    if not stream:
        yield await model.complete(request)
        return
    async with closing(model.stream(request)) as pieces:
        async for piece in pieces:
            yield piece


async def ask_from_first_word(
    model: StreamingModel, request: Request, *, stream: bool
) -> AsyncGenerator[Piece, None]:
    """Like `ask_model`, but deliver usage reported before the first word together with that word.

    A stream that has reported only the usage of the prompt has not begun: it can fail and be retried unnoticed.
    """
    early: list[Piece] = []
    has_begun = False
    async with closing(ask_model(model, request, stream=stream)) as pieces:
        async for piece in pieces:
            if (
                not has_begun
                and isinstance(piece, StreamDelta)
                and piece.kind == "usage"
            ):
                early.append(piece)
                continue
            has_begun = True
            for earlier in early:
                yield earlier
            early.clear()
            yield piece


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Limits of retries: `attempts` includes the first; the others are in seconds."""

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 30.0
    """Limit for waits that the provider does not set."""
    patience: float = 300.0
    """Total time from the first attempt; do not wait for a provider that asks for more."""
    rate_limit_attempts: int = 12
    rate_limit_wait: float = 4.0
    """First wait after a rate limit if the provider names none: such limits last minutes."""


class RetryingModel(ModelWrapper):
    """Retry a model after passing failures."""

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

    async def _pieces(
        self, request: Request, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        begun = self._clock()
        attempt = 1
        has_begun = False
        while True:
            try:
                async with closing(
                    ask_from_first_word(self.inner, request, stream=stream)
                ) as pieces:
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

    async def _wait_or_raise(
        self, error: ModelError, attempt: int, begun: float
    ) -> None:
        if not is_transient(error):
            raise error
        wait = self._wait(error, attempt)
        late = self._clock() - begun + wait > self._options.patience
        attempts = (
            self._options.rate_limit_attempts
            if error.status == _RATE_LIMIT
            else self._options.attempts
        )
        if attempt >= attempts or late:
            why = (
                f"it asks to wait {wait:.0f} s"
                if late and error.retry_after
                else f"tried {attempt} times"
            )
            self._events(
                ModelEvent(
                    "gave_up", self.name, f"{self.name}: no more retries, {why}.", error
                )
            )
            raise error
        message = f"{self.name}: retry in {wait:.1f} s, attempt {attempt + 1} of {attempts}. {error}"
        self._events(ModelEvent("retry", self.name, message, error, wait))
        await self._sleep(wait)

    def _wait(self, error: ModelError, attempt: int) -> float:
        """Return the next wait: at least as long as the provider asks, else exponential with jitter."""
        if error.retry_after is not None:
            return error.retry_after * (1 + self._chance() / 10)
        first = (
            self._options.rate_limit_wait
            if error.status == _RATE_LIMIT
            else self._options.first_wait
        )
        doubled = min(self._options.longest_wait, first * 2.0 ** (attempt - 1))
        return doubled * (1 + self._chance()) / 2


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds; None means no limit. A model that reasons silently needs a long first limit."""

    first: float | None = 300.0
    between: float | None = 120.0
    whole: float | None = 1_800.0


class TimeLimitedModel(ModelWrapper):
    """Abort a model that takes too long, and close its connection."""

    def __init__(self, model: StreamingModel, limits: TimeLimits | None = None) -> None:
        super().__init__(model)
        self._limits = limits or TimeLimits()

    async def _pieces(
        self, request: Request, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        loop = asyncio.get_running_loop()
        limits = self._limits
        end = None if limits.whole is None else loop.time() + limits.whole
        words: list[str] = []
        usage: dict[str, Any] | None = None
        has_begun = False
        async with closing(ask_model(self.inner, request, stream=stream)) as pieces:
            while True:
                limit = (
                    None
                    if not stream
                    else limits.between
                    if has_begun
                    else limits.first
                )
                until = min(
                    (
                        at
                        for at in (end, None if limit is None else loop.time() + limit)
                        if at
                    ),
                    default=None,
                )
                scope = asyncio.timeout_at(until)
                try:
                    async with scope:
                        piece = await anext(pieces, None)
                except TimeoutError:
                    if not scope.expired():
                        raise
                    what = (
                        "has fallen silent in the middle of its answer"
                        if has_begun
                        else "has not begun to answer"
                    )
                    if until == end:
                        what = "has not come to the end of its answer"
                        limit = limits.whole
                    # An incomplete call is dropped: it must not be run.
                    message: Message = {"role": "assistant", "content": "".join(words)}
                    partial = (
                        Reply(message, usage=usage, model=self.name)
                        if has_begun or usage
                        else None
                    )
                    raise ModelTimeoutError(
                        f"{self.name} at {self.base_url} {what} within {limit:g} s. Ask again.",
                        partial=partial,
                    ) from None
                if piece is None:
                    return
                if isinstance(piece, StreamDelta) and piece.kind == "usage":
                    usage = dict(piece.raw)
                elif isinstance(piece, StreamDelta):
                    has_begun = True
                    words += [piece.text] if piece.kind == "text" else []
                yield piece


Refit = Callable[[Request, StreamingModel], Request | Awaitable[Request]]
REST_SECONDS = 60.0


def keep_request(request: Request, _model: StreamingModel) -> Request:
    """Return the request unchanged: for models with windows of about the same size."""
    return request


class FallbackModel(ModelWrapper):
    """Ask the first of several models that is in service. `inner`, name and window are those of the next one to ask."""

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

    async def _pieces(
        self, request: Request, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        for at, is_last in self._order():
            has_begun = False
            try:
                fitted = await self._fit_request(request, at)
                async with closing(
                    ask_from_first_word(self._models[at], fitted, stream=stream)
                ) as pieces:
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
        """Yield the models in service in their order, then those at rest."""
        now = self._clock()
        rested = [
            at for at in range(len(self._models)) if self._resting.get(at, now) <= now
        ]
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
            request = with_output_cap(
                request, min(cap, most), api=model.api, base_url=model.base_url
            )
        fitted = self._refit(request, model)
        return await fitted if inspect.isawaitable(fitted) else fitted

    def _note_failure(self, at: int, error: ModelError, *, is_last: bool) -> None:
        """Report the failure and let the next model take over; raise it for the last one, or for a bad request."""
        if not is_out_of_service(error):
            raise error
        self._resting[at] = self._clock() + max(
            self._rest_seconds, error.retry_after or 0.0
        )
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
    """Lower the output cap of a model if prompt and cap together would not fit."""

    def __init__(
        self, model: StreamingModel, counter: TokenCounter | None = None
    ) -> None:
        super().__init__(model)
        self._counter = counter or TokenCounter(model.name)

    def _pieces(self, request: Request, *, stream: bool) -> AsyncIterator[Piece]:
        return ask_model(self.inner, self._fit_request(request), stream=stream)

    def _fit_request(self, request: Request) -> Request:
        cap = output_cap(request)
        if cap is None and self.api == "anthropic":
            cap = own_cap(request.model, self.window)
        if cap is None:
            return request
        prompt = self._counter.request(
            request.messages, system=request.system, tools=request.tools
        )
        room = self.window - round(SIZE_MARGIN * prompt)
        if cap <= room or room < MIN_OUTPUT_TOKENS:
            return request
        return with_output_cap(request, room, api=self.api, base_url=self.base_url)


class MeteredModel(ModelWrapper):
    """Ask `permit` before each request, and report requests that were abandoned to `lost`."""

    def __init__(
        self,
        model: StreamingModel,
        lost: Callable[[Request], None],
        permit: Callable[[Request], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(model)
        self._lost = lost
        self._permit = permit

    async def complete(self, request: Request) -> Reply:
        if self._permit is not None:
            await self._permit(request)
        try:
            return await self.inner.complete(request)
        except asyncio.CancelledError:
            self._lost(request)
            raise
