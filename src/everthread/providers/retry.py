"""Once more, after a failure that passes.

The waits grow and are jittered, so that many clients do not come back together; where the provider says how long to
wait, that is how long. Nothing is asked again once a word was given out: the reader would hear it twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from everthread.core.types import Reply, Request, StreamDelta, StreamingModel
from everthread.errors import ModelError
from everthread.providers.failures import is_passing
from everthread.providers.streams import closing, from_first_word
from everthread.providers.wrapper import Events, ModelEvent, ModelWrapper, nobody_listens

_RATE_LIMIT = 429


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
        events: Events = nobody_listens,
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
        begun, attempt, given = self._clock(), 1, False
        while True:
            try:
                async with closing(from_first_word(self.inner.stream(request))) as pieces:
                    async for piece in pieces:
                        given = True
                        yield piece
            except ModelError as error:
                if given:
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
            self._events(ModelEvent("gave_up", self.name, f"{self.name}: given up, {why}. {error}", error))
            raise error
        said = f"{self.name}: asking again in {wait:.1f} s, attempt {attempt + 1} of {attempts}. {error}"
        self._events(ModelEvent("retry", self.name, said, error, wait))
        await self._sleep(wait)

    def _wait(self, error: ModelError, attempt: int) -> float:
        """Never less than the provider asks for; ours is between half and the whole of what has doubled each time."""
        if error.retry_after is not None:
            return error.retry_after * (1 + self._chance() / 10)
        first = self._options.rate_limit_wait if error.status == _RATE_LIMIT else self._options.first_wait
        whole = min(self._options.longest_wait, first * 2.0 ** (attempt - 1))
        return whole * (1 + self._chance()) / 2
