"""Stores that count, delay, hold or fail single calls."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

from everthread.errors import StoreError
from everthread.store.access import StoreTopic
from everthread.store.rewrite_records import ThreadLink

Links = list[ThreadLink | None]


class StoreWrapper:
    """A store; a test replaces some of its methods, or of those of its topics, by a method of the same name."""

    def __init__(self, store: Any) -> None:
        self.wrapped_store = store

    def __getattr__(self, name: str) -> Any:
        found = self.look_up(self.wrapped_store, name)
        return TopicWrapper(self, found) if isinstance(found, (StoreTopic, TopicWrapper)) else found

    def look_up(self, owner: Any, name: str) -> Any:
        """Return what the store, or one of its topics, has under this name."""
        return getattr(owner, name)


class TopicWrapper:
    """A topic of a wrapped store."""

    def __init__(self, wrapper: StoreWrapper, topic: Any) -> None:
        self._wrapper = wrapper
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self._wrapper), name):
            return getattr(self._wrapper, name)
        return self._wrapper.look_up(self._topic, name)


class CountingStore(StoreWrapper):
    """Counts the transactions that extend a thread."""

    count = 0

    async def extend_thread(self, *given: Any) -> Links:
        self.count += 1
        links: Links = await self.wrapped_store.client_histories.extend_thread(*given)
        return links


class SlowStore(StoreWrapper):
    """Takes this long to extend a thread."""

    def __init__(self, store: Any, seconds: float) -> None:
        super().__init__(store)
        self._seconds = seconds

    async def extend_thread(self, *given: Any) -> Links:
        await asyncio.sleep(self._seconds)
        links: Links = await self.wrapped_store.client_histories.extend_thread(*given)
        return links


class BreakableStore(StoreWrapper):
    """Fails to extend a thread once it has an error to raise."""

    error: Exception | None = None

    async def extend_thread(self, *given: Any) -> Links:
        if self.error is not None:
            raise self.error
        links: Links = await self.wrapped_store.client_histories.extend_thread(*given)
        return links


class FailingStore(StoreWrapper):
    """A store that is slow to store messages, and fails at the given calls."""

    def __init__(self, store: Any, fails: set[int], seconds: float = 0.01) -> None:
        super().__init__(store)
        self._seconds = seconds
        self._fails = fails
        self._count = 0

    async def extend_thread(self, *given: Any) -> Links:
        self._count += 1
        is_failing = self._count in self._fails
        await asyncio.sleep(self._seconds)
        if is_failing:
            raise StoreError("the disk is full")
        links: Links = await self.wrapped_store.client_histories.extend_thread(*given)
        return links


class WatchedStore(StoreWrapper):
    """A store that notes the roles that it is given at once, and how often it searches for a history."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.written: list[list[str]] = []
        self.searches = 0

    def look_up(self, owner: Any, name: str) -> Any:
        self.searches += name in ("find_link", "find_links_by_loose_digest")
        return super().look_up(owner, name)

    async def extend_thread(self, thread: str, points: Any, *given: Any) -> Links:
        messages = chain.from_iterable(point.messages for point in points)
        self.written.append([message.body["role"] for message in messages])
        links: Links = await self.wrapped_store.client_histories.extend_thread(
            thread, points, *given
        )
        return links


class HeldStore(StoreWrapper):
    """A store of which the test holds single calls."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> asyncio.Event:
        """Hold the next call of this name until the event that is returned is set."""
        self._gates[name] = gate = asyncio.Event()
        return gate

    def look_up(self, owner: Any, name: str) -> Any:
        found = super().look_up(owner, name)
        gate = self._gates.pop(name, None)
        if gate is None:
            return found

        async def held(*given: Any, **named: Any) -> Any:
            await gate.wait()
            return await found(*given, **named)

        return held
