"""Open a conversation as configured, with or without `await`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, load_config
from everthread.core.types import Api, StreamingModel, System
from everthread.factory.compression import check_window, find_summarizer
from everthread.factory.engine_choice import EngineChoice
from everthread.factory.model_setup import (
    CloseCallback,
    find_route,
    make_close_callback,
)
from everthread.factory.stores import SUMMARY_KEY, open_store, store_url
from everthread.factory.summarizer_factory import SummarizerFactory
from everthread.store.records import NewSession
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.conversation.conversation import Conversation
    from everthread.providers.resilience import ModelEvent
    from everthread.thread.events import Listener
    from everthread.thread.options import (
        CompactionHooks,
        Route,
        SessionOptions,
        Setup,
        SummarizerContext,
    )


T = TypeVar("T", bound=AbstractAsyncContextManager[Any])
P = ParamSpec("P")
Result = TypeVar("Result")


class Opener(Generic[T]):
    """Open an object when this is awaited, or entered by `with` or `async with`."""

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
    """A conversation or an agent without `await`: its async methods block, and its async generators are iterators."""

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


def returns_opener(
    open_function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Opener[T]]:
    """Decorate a coroutine function that opens an object, so that it returns an `Opener`."""

    @functools.wraps(open_function)
    def make_opener(*args: P.args, **kwargs: P.kwargs) -> Opener[T]:
        return Opener(lambda: open_function(*args, **kwargs))

    return make_opener


@asynccontextmanager
async def ensure_store(
    store: Store | str | Path | None, settings: Config
) -> AsyncIterator[tuple[Store, list[CloseCallback]]]:
    """Yield the given or configured store, and a list of callbacks, which closes the store if it was opened here.

    The `with` block adds callbacks for everything it opens. If the block fails, all callbacks are called.
    """
    close_callbacks: list[CloseCallback] = []
    if store is None or isinstance(store, str | Path):
        url = store_url(settings) if store is None else store
        store = await asyncio.to_thread(open_store, url)
        close_callbacks.append(store.close)
    try:
        yield store, close_callbacks
    except BaseException:
        for close in close_callbacks:
            await close()
        raise


@returns_opener
async def open_conversation(
    model: str | StreamingModel | None = None,
    *,
    config: Config | None = None,
    window: int | None = None,
    store: Store | str | Path | None = None,
    resume: str | None = None,
    system: System | Callable[[], System] = None,
    tools: Sequence[dict[str, Any]] = (),
    summarizer: str | Summarizer = "auto",
    listener: Listener | None = None,
    hooks: CompactionHooks | None = None,
    session: NewSession | None = None,
    own_client: bool = False,
    api: Api | None = None,
    fallback: Sequence[StreamingModel] = (),
    model_events: Callable[[ModelEvent], None] | None = None,
    on_route: Callable[[Route], None] | None = None,
) -> Conversation:
    """Open a conversation with a model: a new one, or one resumed by any id of its thread.

    `async with open_conversation(…) as talk`, `talk = await open_conversation(…)`, or in a script without an event loop
    `with open_conversation(…) as talk`. `model`: a name, or a model of your own; None for the configured one. `window`:
    its window in tokens, instead of the known one. `own_client`: you send the request of `prepare` yourself and pass
    the answer to `record`; no key is needed. `fallback`: models to use if the first one is out of service.
    `model_events`: called with retries, instead of the conversation. `on_route`: called with the route before the
    system prompt is written. Everything that is opened here is closed with the conversation.
    """
    from everthread.conversation.conversation import Conversation

    settings = config or load_config()
    _check_settings(settings, window)
    relay = ModelEventRelay()
    async with ensure_store(store, settings) as (opened_store, close_callbacks):
        route = await find_route(
            model,
            settings,
            api=api,
            own_client=own_client,
            fallback=fallback,
            on_event=model_events or relay.pass_on,
            window=window,
        )
        if route.model is not model and route.model is not None:
            close_callbacks.insert(0, make_close_callback(route.model))
        if on_route is not None:
            on_route(route)
        setup = await _make_setup(opened_store, route, settings, summarizer, close_callbacks)
        setup = replace(
            setup,
            system=system,
            listener=listener or setup.listener,
            hooks=hooks or setup.hooks,
        )
        relay.conversation = await Conversation.open(setup, resume=resume, new=session, tools=tools)
    return relay.conversation


def _check_settings(config: Config, window: int | None) -> None:
    """Raise an error for an invalid window or engine before an empty thread is stored."""
    if window is not None:
        check_window(window)
    EngineChoice.from_config(config).check()


class ModelEventRelay:
    """Pass the events of a model to its conversation once that is open."""

    conversation: Conversation | None = None

    def pass_on(self, event: ModelEvent) -> None:
        if self.conversation is not None:
            self.conversation.on_model_event(event)


async def _make_setup(
    store: Store,
    route: Route,
    config: Config,
    summarizer: str | Summarizer,
    close_callbacks: list[CloseCallback],
) -> Setup:
    """Return the setup of a conversation as configured."""
    from everthread.thread.options import Setup

    return Setup(
        store,
        route,
        engine=EngineChoice.from_config(config),
        summarizer=make_summarizers(summarizer, config, close_callbacks.append),
        options=make_session_options(config),
        close_callbacks=close_callbacks,
        summary_key=await store.shared_secret(SUMMARY_KEY),
    )


def make_summarizers(
    summarizer: str | Summarizer,
    config: Config,
    on_open: Callable[[CloseCallback], object],
) -> Callable[[SummarizerContext], Summarizer]:
    """Return a function that makes summarisers: the configured ones for `auto`, or else the named or given one."""
    from everthread.compaction.summarizers.chain import DeferredJournal

    if summarizer == "auto":
        return SummarizerFactory(config, on_open, fallback_summarizer=DeferredJournal())
    return lambda context: find_summarizer(summarizer, context.counter)


def make_session_options(config: Config) -> SessionOptions:
    """Return the options of a conversation, and apply the configured prices."""
    from everthread.factory.configured_prices import apply_prices
    from everthread.thread.options import RecallOptions, SessionOptions

    apply_prices(config)

    compression = config.compression.model_dump(exclude={"template", "models"})
    options_by_model = {
        name: model_options.model_dump(exclude_none=True)
        for name, model_options in config.compression.models.items()
    }
    tool_output = config.tool_output.model_dump()
    ttl = config.prompt_caching.cache_ttl
    max_tokens = config.model.max_tokens
    recall = RecallOptions(**config.recall.model_dump())
    return SessionOptions(
        **compression,
        **tool_output,
        cache_ttl=ttl,
        max_tokens=max_tokens,
        recall=recall,
        models=options_by_model,
    )
