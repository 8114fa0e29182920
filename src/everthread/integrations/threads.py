"""All conversations of one framework: finds the stored thread of a model call, prepares the call and records it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from everthread.agent.tools.conversation_tools import RECALL_SCHEMA, recall_text
from everthread.compaction.summary import Summarizer
from everthread.config import Config, load_config
from everthread.core.messages import Message
from everthread.core.redaction import redact
from everthread.errors import EverthreadError
from everthread.factory import open_conversation, open_store, store_url
from everthread.factory.conversations import LoopThread
from everthread.integrations.thread import FrameworkThread, ModelCall, PreparedCall
from everthread.providers.catalog import resolve_window
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    Event,
    Listener,
    Notice,
    Recovery,
)
from everthread.thread.identity import (
    choose_thread,
    identify_by_calls,
    name_by_opening,
)
from everthread.thread.lookup import StoreLookup
from everthread.thread.options import Route

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
RECALL = RECALL_SCHEMA["function"]
"""The tool `recall` for the agent: its name, description and parameters."""
MAX_OPEN = 64
"""Threads in memory, the last used ones."""
MAX_PER_KEY = 16
"""Threads under one key of a framework: a conversation, its branches and its subagents."""
MAX_EVENTS = 100
"""Most events that wait for the next call."""


def _conversation_name(call: ModelCall, messages: Sequence[Message]) -> str:
    """The name under which a conversation is found; empty if it has none yet."""
    name = call.key or name_by_opening(messages)
    return f"{call.owner} {name}" if call.owner and name else name


class OpenCalls(OrderedDict[K, V]):
    """Calls in progress. Beyond the limit, the oldest that never ended are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.popitem(last=False)


class ThreadOptions(TypedDict, total=False):
    """Options that every integration takes."""

    store: Store | str | Path | None
    """Where conversations are stored; None: as configured."""
    config: Config | None
    window: int | None
    """The model's window in tokens, when you know better."""
    summarizer: str | Summarizer
    """`auto`, `journal`, or one of your own."""
    listener: Listener | None
    """Gets every event of every conversation."""


class FrameworkThreads:
    """The conversations of one framework, in one store, each under the framework's name for it.

    They run in an event loop of their own, so that a framework may call from any loop or thread, with or without
    `await`. A program may end without `close`.
    """

    def __init__(
        self, client: str, logger: logging.Logger, **options: Unpack[ThreadOptions]
    ) -> None:
        self._client = client
        self._logger = logger
        self._options = options
        self._scope = f"integration:{client}"
        store = options.get("store")
        self._store = None if isinstance(store, str | Path) else store
        self._open: OrderedDict[str, list[FrameworkThread]] = OrderedDict()
        self._lock = asyncio.Lock()
        self._starting = threading.Lock()
        self._loop: LoopThread | None = None

    # From a framework

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the own loop, for a caller without `await`."""
        return self._ensure_loop().run(work)

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the own loop, for a caller in another loop."""
        return await asyncio.wrap_future(self._ensure_loop().submit(work))

    async def prepare(self, call: ModelCall) -> PreparedCall | None:
        """Prepare a call; None if that failed: the framework then sends its own messages, and the log says why."""
        if not call.messages:
            return None
        try:
            async with self._lock:
                thread = await self._find(call)
            return await thread.prepare(call)
        except Exception:  # logged; the framework's own call continues
            self._logger.exception(
                "Everthread could not prepare a model call; it is sent as it was"
            )
            return None

    async def recover(
        self, turn: PreparedCall | None, error: BaseException
    ) -> PreparedCall:
        """Prepare a smaller call after a refusal; raises if none is possible."""
        if turn is None:
            raise error
        return await turn.thread.recover(turn, error)

    async def record(
        self,
        turn: PreparedCall | None,
        message: Message,
        usage: Mapping[str, Any] | None = None,
        stop: str | None = None,
    ) -> None:
        """Store an answer and its usage. A failure is logged: the framework already has the answer."""
        if turn is None:
            return
        call = turn.call
        try:
            await turn.thread.record(turn, message, usage, stop)
            if not _conversation_name(call, call.messages):
                async with self._lock:
                    await self._remember(
                        _conversation_name(call, [*call.messages, message]),
                        [turn.thread],
                    )
        except Exception:  # as above
            self._logger.exception(
                "Everthread could not record an answer; it is stored with the next call"
            )

    async def recall(self, key: str, arguments: Mapping[str, Any]) -> str:
        """The answer of the tool `recall` in the last used thread of this name; an error is part of it."""
        async with self._lock:
            threads = await self._load_threads(key)
        if not threads:
            return "Nothing was said in this conversation yet."
        conversation = threads[-1].conversation
        lookup = StoreLookup(
            conversation.store,
            conversation.session.tenant,
            conversation.id,
            family=True,
        )
        try:
            return await recall_text(lookup, arguments)
        except (EverthreadError, ValueError) as error:
            return redact(f"That could not be looked up: {error}")

    async def forget(self, key: str) -> None:
        """Begin a new conversation under this name. The old one stays in the store."""
        async with self._lock:
            for thread in self._open.pop(key, []):
                await thread.conversation.close()
            await (await self.opened_store()).put_state(self._scope, key, [])

    def close(self) -> None:
        """Close the store. A further call opens it again."""
        with self._starting:
            loop = self._loop
            self._loop = None
        if loop is not None:
            loop.run(self._close())
            loop.stop()

    # Inside

    def _ensure_loop(self) -> LoopThread:
        with self._starting:
            if self._loop is None:
                self._loop = LoopThread()
                self._lock = asyncio.Lock()  # the last one belonged to the last loop
                _close_at_exit(self)
            return self._loop

    async def _close(self) -> None:
        for threads in self._open.values():
            for thread in threads:
                await thread.conversation.close()
        self._open.clear()
        if self._store is not None and self._store is not self._options.get("store"):
            await self._store.close()
            self._store = None

    async def _find(self, call: ModelCall) -> FrameworkThread:
        """Return the thread that the history continues; a branch if it differs; else a new thread."""
        key = _conversation_name(call, call.messages)
        given = [identify_by_calls(message) for message in call.messages]
        threads = await self._load_threads(key) if key else []
        choice = choose_thread(given, [thread.identities for thread in threads])
        route = await self._make_route(call)
        if choice is not None and choice.relation == "continues":
            best = threads[choice.index]
        elif choice is not None and call.key and choice.shared:
            best = await threads[choice.index].branch(choice.shared)
        else:
            session = NewSession(
                client=self._client,
                client_session=call.key,
                platform=self._client,
                model=call.model,
            )
            best = await self._open_thread(
                call.model,
                route.window,
                session=session,
                system=call.system,
                tools=call.tools,
            )
        current = best.conversation.route
        if (current.name, current.window, current.base_url) != (
            route.name,
            route.window,
            route.base_url,
        ):
            await best.conversation.use_model(route)
        if key:
            await self._remember(
                key, [*(thread for thread in threads if thread is not best), best]
            )
        return best

    async def _load_threads(self, key: str) -> list[FrameworkThread]:
        """The threads under a key, the last used at the end."""
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        store = await self.opened_store()
        names = await store.get_state(self._scope, key)
        threads = [await self._resume(name) for name in names or ()]
        if threads:
            await self._cache_threads(key, threads)
        return threads

    async def _remember(self, key: str, threads: list[FrameworkThread]) -> None:
        before = [thread.conversation.id for thread in self._open.get(key, [])]
        newest = threads[-MAX_PER_KEY:]
        await self._cache_threads(key, newest)
        names = [thread.conversation.id for thread in newest]
        if names != before:
            await (await self.opened_store()).put_state(self._scope, key, names)

    async def _cache_threads(self, key: str, threads: list[FrameworkThread]) -> None:
        self._open[key] = threads
        self._open.move_to_end(key)
        while len(self._open) > MAX_OPEN:
            _, old = self._open.popitem(last=False)
            for thread in old:
                await thread.conversation.close()

    @cached_property
    def _config(self) -> Config:
        return self._options.get("config") or load_config()

    async def opened_store(self) -> Store:
        """The store, opened at first use."""
        if self._store is None:
            store = self._options.get("store")
            self._store = await asyncio.to_thread(
                open_store,
                store if isinstance(store, str | Path) else store_url(self._config),
            )
        return self._store

    async def _resume(self, name: str) -> FrameworkThread:
        session = await (await self.opened_store()).session(name)
        window = await resolve_window(
            session.model, setting=self._options.get("window")
        )
        return await self._open_thread(session.model, window.tokens, resume=name)

    async def _open_thread(
        self, model: str, window: int, **arguments: Any
    ) -> FrameworkThread:
        opened: list[FrameworkThread] = []

        def on_event(event: Event) -> None:
            self._log_event(event)
            for thread in opened:
                thread.events.append(event)
                del thread.events[:-MAX_EVENTS]

        conversation = await open_conversation(
            model,
            config=self._config,
            window=window,
            store=await self.opened_store(),
            own_client=True,
            api="openai_chat",
            summarizer=self._options.get("summarizer", "auto"),
            listener=on_event,
            **arguments,
        )
        opened.append(await FrameworkThread.open(conversation))
        return opened[0]

    async def _make_route(self, call: ModelCall) -> Route:
        own = self._config.model
        configured = own.context_length if own.default in (None, call.model) else None
        window = await resolve_window(
            call.model, setting=self._options.get("window") or configured or call.window
        )
        return Route(
            call.model, "openai_chat", window.tokens, str(window), call.base_url
        )

    def _log_event(self, event: Event) -> None:
        """Log the events that matter to a reader of the framework's log; pass all to the listener."""
        if isinstance(event, CompactionDone):
            self._logger.info(
                "Everthread compacted the conversation (%s): %d -> %d messages, %d -> %d tokens, written by %s",
                event.reason,
                event.messages_before,
                event.messages_after,
                event.tokens_before,
                event.tokens_after,
                event.author,
                extra={"everthread": event.as_dict()},
            )
        elif isinstance(event, Recovery):
            self._logger.warning(
                "Everthread: the provider refused the request (%s); %s",
                event.problem,
                event.action,
            )
        elif isinstance(event, CompactionFailed):
            self._logger.warning(
                "Everthread could not compact the conversation: %s", event.error
            )
        elif isinstance(event, Notice) and not event.passing:
            self._logger.info("Everthread: %s", event.text)
        listener = self._options.get("listener")
        if listener is not None:
            listener(event)


_RUNNING: weakref.WeakSet[FrameworkThreads] = weakref.WeakSet()


def _close_at_exit(threads: FrameworkThreads) -> None:
    """Close open threads before the interpreter shuts its thread pools down; `atexit` alone would be too late."""
    if not _RUNNING:
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_all)
    _RUNNING.add(threads)


def _close_all() -> None:
    for threads in list(_RUNNING):
        threads.close()
