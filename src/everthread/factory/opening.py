"""What `open_conversation` and `open_agent` give: awaited, entered with `async with`, or, in a script, with `with`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Closeable(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


T = TypeVar("T", bound=Closeable)
Result = TypeVar("Result")


class Opening(Generic[T]):
    """Something that is about to be opened; nothing happens before it is awaited or entered."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._begin = begin
        self._opened: T | None = None
        self._loop: LoopThread | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._begin()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)

    def __enter__(self) -> SyncForm:
        self._loop = LoopThread()
        try:
            return SyncForm(self._loop.run(self.__aenter__()), self._loop)
        except BaseException:
            self._loop.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            try:
                self._loop.run(self.__aexit__(kind, error, trace))
            finally:
                self._loop.stop()


class LoopThread:
    """An event loop in a thread of its own, for callers that have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everthread", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while it runs
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncForm:
    """A conversation or an agent without `await`: what is async there returns its result here, streams iterate."""

    def __init__(self, of: Any, loop: LoopThread) -> None:
        self._of, self._thread = of, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        if inspect.iscoroutinefunction(value):
            return lambda *given, **named: self._thread.run(value(*given, **named))
        if inspect.isasyncgenfunction(value):
            return lambda *given, **named: self._iterate(value(*given, **named))
        return value

    def __repr__(self) -> str:
        return repr(self._of)

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        done = object()

        async def following() -> Any:
            return await anext(items, done)

        while (item := self._thread.run(following())) is not done:
            yield item
