"""Open an object with `await`, with `async with`, or without an event loop with `with`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])
P = ParamSpec("P")
Result = TypeVar("Result")


class AwaitableContext(Generic[T]):
    """Opens an object when it is awaited, or entered with `with` or `async with`."""

    def __init__(self, open_object: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open_object = open_object
        self._object: T | None = None
        self._loop_thread: LoopThread | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open_object().__await__()

    async def __aenter__(self) -> T:
        self._object = await self._open_object()
        await self._object.__aenter__()
        return self._object

    async def __aexit__(self, *error: Any) -> None:
        if self._object is not None:
            await self._object.__aexit__(*error)

    def __enter__(self) -> SyncProxy:
        self._loop_thread = LoopThread()
        try:
            return SyncProxy(self._loop_thread.run(self.__aenter__()), self._loop_thread)
        except BaseException:
            self._loop_thread.stop()
            raise

    def __exit__(self, *error: Any) -> None:
        if self._loop_thread is not None:
            try:
                self._loop_thread.run(self.__aexit__(*error))
            finally:
                self._loop_thread.stop()


class LoopThread:
    """An event loop in a separate thread, for callers without an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="everthread", daemon=True
        )
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine; its future can be awaited in any loop or thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while it runs
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncProxy:
    """An object without `await`: its async methods block, and its async generators are iterators."""

    def __init__(self, target: Any, loop: LoopThread) -> None:
        self._target = target
        self._loop_thread = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.iscoroutinefunction(value):
            return lambda *args, **kwargs: self._loop_thread.run(value(*args, **kwargs))
        if inspect.isasyncgenfunction(value):
            return lambda *args, **kwargs: self._iterate(value(*args, **kwargs))
        return value

    def __repr__(self) -> str:
        return repr(self._target)

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        end_marker = object()

        async def next_item() -> Any:
            return await anext(items, end_marker)

        while (item := self._loop_thread.run(next_item())) is not end_marker:
            yield item


def opens_on_await(
    open_function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, AwaitableContext[T]]:
    """Decorate a coroutine function that opens an object, so that callers can also use `with` or `async with`."""

    @functools.wraps(open_function)
    def make_context(*args: P.args, **kwargs: P.kwargs) -> AwaitableContext[T]:
        return AwaitableContext(lambda: open_function(*args, **kwargs))

    return make_context
