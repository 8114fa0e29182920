"""Wrappers around a model, each with the model's own interface: retry, time limits, fallback, a cap that fits."""

from __future__ import annotations

import asyncio
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
from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta, StreamingModel
from everthread.errors import InputError, ModelError, ModelTimeoutError
from everthread.providers.catalog import (
    find_default_output_cap,
    find_known_model,
    get_output_cap,
    with_output_cap,
)
from everthread.providers.model_errors import is_out_of_service, is_transient

T = TypeVar("T")
AnswerPiece = StreamDelta | ModelReply
_RATE_LIMIT_STATUS = 429


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


EventHandler = Callable[[ModelEvent], None]


def ignore_event(event: ModelEvent) -> None:
    """Drop an event (the default)."""


async def close_model(model: object) -> None:
    """Close a model's connections, if it has any."""
    aclose = getattr(model, "aclose", None)
    if aclose is not None:
        await aclose()


@asynccontextmanager
async def closing_stream(
    pieces: AsyncIterator[T],
) -> AsyncGenerator[AsyncIterator[T], None]:
    """Yield the stream and close it at the end, so that its connection does not outlive the reader."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


class ModelWrapper:
    """A model that passes every call on to an inner model, unless a subclass overrides the method.

    A wrapper overrides `_ask`, which yields a stream, or a whole answer as one piece.
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

    async def complete(self, request: ModelRequest) -> ModelReply:
        async with closing_stream(self._ask(request, stream=False)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    return piece
        raise AssertionError("an answer is a reply or an error")

    def stream(self, request: ModelRequest) -> AsyncIterator[AnswerPiece]:
        return self._ask(request, stream=True)

    async def aclose(self) -> None:
        await close_model(self.inner)

    def _ask(self, request: ModelRequest, *, stream: bool) -> AsyncIterator[AnswerPiece]:
        return ask_model(self.inner, request, stream=stream)


async def ask_model(
    model: StreamingModel, request: ModelRequest, *, stream: bool
) -> AsyncGenerator[AnswerPiece, None]:
    """Yield the pieces of a stream, or the whole answer as one."""
    if not stream:
        yield await model.complete(request)
        return
    async with closing_stream(model.stream(request)) as pieces:
        async for piece in pieces:
            yield piece


async def ask_until_first_word(
    model: StreamingModel, request: ModelRequest, *, stream: bool
) -> AsyncGenerator[AnswerPiece, None]:
    """Like `ask_model`, but yield usage reported before the first word together with that word.

    A stream that has reported only usage has not begun, so it can still be retried unnoticed.
    """
    early_pieces: list[AnswerPiece] = []
    has_begun = False
    async with closing_stream(ask_model(model, request, stream=stream)) as pieces:
        async for piece in pieces:
            if not has_begun and isinstance(piece, StreamDelta) and piece.kind == "usage":
                early_pieces.append(piece)
                continue
            has_begun = True
            for early_piece in early_pieces:
                yield early_piece
            early_pieces.clear()
            yield piece


MAX_ATTEMPTS = 4
"""Maximum attempts, the first included."""
FIRST_WAIT_SECONDS = 0.5
MAX_WAIT_SECONDS = 30.0
"""Maximum of a wait that the provider does not set."""
MAX_RETRY_SECONDS = 300.0
"""Maximum seconds since the first attempt. If the provider asks for a longer wait, give up at once."""
MAX_RATE_LIMIT_ATTEMPTS = 12
RATE_LIMIT_WAIT_SECONDS = 4.0
"""First wait after a rate limit if the provider names no wait; rate limits last minutes."""


class RetryingModel(ModelWrapper):
    """A model that is retried after temporary failures."""

    def __init__(
        self,
        model: StreamingModel,
        *,
        events: EventHandler = ignore_event,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(model)
        self._events = events
        self._clock = clock
        self._sleep = sleep

    async def _ask(
        self, request: ModelRequest, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        start_time = self._clock()
        attempt = 1
        has_begun = False
        while True:
            try:
                async with closing_stream(
                    ask_until_first_word(self.inner, request, stream=stream)
                ) as pieces:
                    async for piece in pieces:
                        has_begun = True
                        yield piece
            except ModelError as error:
                if has_begun:
                    raise
                await self._wait_or_raise(error, attempt, start_time)
                attempt += 1
            else:
                return

    async def _wait_or_raise(self, error: ModelError, attempt: int, start_time: float) -> None:
        if not is_transient(error):
            raise error
        wait = self._compute_wait(error, attempt)
        exceeds_max_retry_time = self._clock() - start_time + wait > MAX_RETRY_SECONDS
        is_rate_limit = error.status == _RATE_LIMIT_STATUS
        max_attempts = MAX_RATE_LIMIT_ATTEMPTS if is_rate_limit else MAX_ATTEMPTS
        if attempt >= max_attempts or exceeds_max_retry_time:
            reason = f"tried {attempt} times"
            if exceeds_max_retry_time and error.retry_after:
                reason = f"it asks to wait {wait:.0f} s"
            message = f"{self.name}: no more retries, {reason}."
            self._events(ModelEvent("gave_up", self.name, message, error))
            raise error
        message = (
            f"{self.name}: retry in {wait:.1f} s, attempt {attempt + 1} of {max_attempts}. {error}"
        )
        self._events(ModelEvent("retry", self.name, message, error, wait))
        await self._sleep(wait)

    @staticmethod
    def _compute_wait(error: ModelError, attempt: int) -> float:
        """Return the next wait: at least as long as the provider asks, else exponential with jitter."""
        jitter = random.random()  # noqa: S311 - not a secret
        if error.retry_after is not None:
            return error.retry_after * (1 + jitter / 10)
        is_rate_limit = error.status == _RATE_LIMIT_STATUS
        first_wait = RATE_LIMIT_WAIT_SECONDS if is_rate_limit else FIRST_WAIT_SECONDS
        max_next_wait = min(MAX_WAIT_SECONDS, first_wait * 2.0 ** (attempt - 1))
        return max_next_wait * (1 + jitter) / 2


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits in seconds, or None for no limit. A model that reasons silently needs a long first limit."""

    first_seconds: float | None = 300.0
    between_seconds: float | None = 120.0
    total_seconds: float | None = 1_800.0

    def choose_limit(self, *, is_stream: bool, has_begun: bool) -> float | None:
        """Return the limit for the next piece of an answer; only a stream has one."""
        if not is_stream:
            return None
        return self.between_seconds if has_begun else self.first_seconds


class TimeLimitedModel(ModelWrapper):
    """Abort a model that takes too long, and close its connection."""

    def __init__(self, model: StreamingModel, limits: TimeLimits | None = None) -> None:
        super().__init__(model)
        self._limits = limits or TimeLimits()

    async def _ask(
        self, request: ModelRequest, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the pieces of the answer. Raise `ModelTimeoutError` as soon as a limit is exceeded."""
        loop = asyncio.get_running_loop()
        limits = self._limits
        total_deadline = (
            None if limits.total_seconds is None else loop.time() + limits.total_seconds
        )
        texts: list[str] = []
        usage: dict[str, Any] | None = None
        has_begun = False
        async with closing_stream(ask_model(self.inner, request, stream=stream)) as pieces:
            while True:
                limit = limits.choose_limit(is_stream=stream, has_begun=has_begun)
                deadline = total_deadline
                if limit is not None:
                    next_deadline = loop.time() + limit
                    if deadline is None or next_deadline < deadline:
                        deadline = next_deadline
                timeout = asyncio.timeout_at(deadline)
                try:
                    async with timeout:
                        piece = await anext(pieces, None)
                except TimeoutError:
                    if not timeout.expired():
                        raise
                    if deadline == total_deadline:
                        problem = f"has not finished its answer within {limits.total_seconds:g} s"
                    elif has_begun:
                        problem = f"sent nothing for {limit:g} s in the middle of its answer"
                    else:
                        problem = f"has not begun to answer within {limit:g} s"
                    partial = None
                    if has_begun or usage:
                        partial = self._make_partial_reply(texts, usage)
                    raise ModelTimeoutError(
                        f"{self.name} at {self.base_url} {problem}. Ask again.",
                        partial=partial,
                    ) from None
                if piece is None:
                    return
                if isinstance(piece, StreamDelta) and piece.kind == "usage":
                    usage = dict(piece.raw)
                elif isinstance(piece, StreamDelta):
                    has_begun = True
                    texts += [piece.text] if piece.kind == "text" else []
                yield piece

    def _make_partial_reply(self, texts: list[str], usage: dict[str, Any] | None) -> ModelReply:
        """Return the text so far as a reply, without an incomplete call, which must not be run."""
        message: Message = {"role": "assistant", "content": "".join(texts)}
        return ModelReply(message, usage=usage, model=self.name)


OUT_OF_SERVICE_SECONDS = 60.0


class FallbackModel(ModelWrapper):
    """The first of several models that is in service. `inner` is the model to ask next."""

    def __init__(
        self,
        models: Sequence[StreamingModel],
        *,
        fit_request: Callable[[ModelRequest, StreamingModel], Awaitable[ModelRequest]],
        events: EventHandler = ignore_event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not models:
            raise InputError("A fallback needs at least one model; none was given.")
        super().__init__(models[0])
        self._models = tuple(models)
        self._fit_to_model = fit_request
        self._events = events
        self._clock = clock
        self._out_of_service_until: dict[int, float] = {}

    async def _ask(
        self, request: ModelRequest, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        for index, is_last in self._list_models_to_ask():
            has_begun = False
            try:
                fitted_request = await self._fit_request(request, index)
                async with closing_stream(
                    ask_until_first_word(self._models[index], fitted_request, stream=stream)
                ) as pieces:
                    async for piece in pieces:
                        if not has_begun:
                            self._note_answer(index)
                        has_begun = True
                        yield piece
            except ModelError as error:
                self._note_failure(index, error, is_last=is_last or has_begun)
            else:
                return

    async def aclose(self) -> None:
        for model in self._models:
            await close_model(model)

    def _list_models_to_ask(self) -> Iterator[tuple[int, bool]]:
        """Yield the index of each model to ask, those in service first, and whether it is the last."""
        now = self._clock()
        in_service = [
            index
            for index in range(len(self._models))
            if self._out_of_service_until.get(index, now) <= now
        ]
        order = [
            *in_service,
            *(index for index in range(len(self._models)) if index not in in_service),
        ]
        for position, index in enumerate(order):
            yield index, position == len(order) - 1

    async def _fit_request(self, request: ModelRequest, index: int) -> ModelRequest:
        model = self._models[index]
        if request.model == model.name:
            return request
        request = replace(request, model=model.name)
        cap = get_output_cap(request)
        if cap is not None:
            catalogue_entry = find_known_model(model.name)
            max_cap = (catalogue_entry and catalogue_entry.max_output) or cap
            request = with_output_cap(
                request, min(cap, max_cap), api=model.api, base_url=model.base_url
            )
        return await self._fit_to_model(request, model)

    def _note_failure(self, index: int, error: ModelError, *, is_last: bool) -> None:
        """Report the failure, so that the next model is asked; raise it for the last model or a bad request."""
        if not is_out_of_service(error):
            raise error
        self._out_of_service_until[index] = self._clock() + max(
            OUT_OF_SERVICE_SECONDS, error.retry_after or 0.0
        )
        self.inner = self._models[next(self._list_models_to_ask())[0]]
        if is_last:
            raise error
        name = self._models[index].name
        text = f"{name} is out of service; another model is asked. {error}"
        self._events(ModelEvent("fallback", name, text, error))

    def _note_answer(self, index: int) -> None:
        if self._out_of_service_until.pop(index, None) is not None:
            name = self._models[index].name
            self._events(ModelEvent("recovered", name, f"{name} is in service again."))
        self.inner = self._models[index]


PROMPT_SIZE_FACTOR = 1.05
"""Factor on our count of a prompt, which may be a little below the provider's."""
MIN_OUTPUT_TOKENS = 256
"""If fewer tokens are left, the prompt counts as too long, and the provider may refuse it."""


class FittingModel(ModelWrapper):
    """Lower the output cap of a model if prompt and cap together would not fit."""

    def __init__(self, model: StreamingModel) -> None:
        super().__init__(model)
        self._counter = TokenCounter(model.name)

    def _ask(self, request: ModelRequest, *, stream: bool) -> AsyncIterator[AnswerPiece]:
        return ask_model(self.inner, self._fit_request(request), stream=stream)

    def _fit_request(self, request: ModelRequest) -> ModelRequest:
        cap = get_output_cap(request)
        if cap is None and self.api == "anthropic":
            cap = find_default_output_cap(request.model, self.window)
        if cap is None:
            return request
        prompt_tokens = self._counter.request(
            request.messages, system=request.system, tools=request.tools
        )
        free_tokens = self.window - round(PROMPT_SIZE_FACTOR * prompt_tokens)
        if cap <= free_tokens or free_tokens < MIN_OUTPUT_TOKENS:
            return request
        return with_output_cap(request, free_tokens, api=self.api, base_url=self.base_url)


class MeteredModel(ModelWrapper):
    """A model that checks permission before each request, and reports requests that were abandoned."""

    def __init__(
        self,
        model: StreamingModel,
        report_abandoned: Callable[[ModelRequest], None],
        check_permission: Callable[[ModelRequest], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(model)
        self._report_abandoned = report_abandoned
        self._check_permission = check_permission

    async def _ask(
        self, request: ModelRequest, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        if self._check_permission is not None:
            await self._check_permission(request)
        try:
            async with closing_stream(ask_model(self.inner, request, stream=stream)) as pieces:
                async for piece in pieces:
                    yield piece
        except asyncio.CancelledError:
            self._report_abandoned(request)
            raise
