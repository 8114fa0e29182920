"""Open a conversation as configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, load_config
from everthread.core.types import Api, StreamingModel, System
from everthread.factory.awaitable_context import opens_on_await
from everthread.factory.compression import check_window, find_summarizer
from everthread.factory.engine_choice import EngineChoice
from everthread.factory.event_relay import EventRelay
from everthread.factory.model_setup import ModelSpec, open_route
from everthread.factory.stores import SUMMARY_KEY, open_store, store_url
from everthread.factory.summarizer_factory import SummarizerFactory
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.thread.options import RecallOptions, SessionOptions

if TYPE_CHECKING:
    from everthread.conversation.conversation import Conversation
    from everthread.conversation.setup import Setup
    from everthread.providers.resilience import ModelEvent
    from everthread.thread.events import Listener
    from everthread.thread.route import Route
    from everthread.thread.thread_setup import SummarizerContext


@asynccontextmanager
async def ensure_store(
    store: Store | str | Path | None, settings: Config
) -> AsyncIterator[tuple[Store, AsyncExitStack]]:
    """Yield the given or configured store, and the resources to close with the opened object.

    They include the store if it was opened here. If the `with` block fails, they are closed at once.
    """
    resources = AsyncExitStack()
    if store is None or isinstance(store, str | Path):
        url = store_url(settings) if store is None else store
        store = await asyncio.to_thread(open_store, url)
        resources.push_async_callback(store.close)
    try:
        yield store, resources
    except BaseException:
        await resources.aclose()
        raise


@opens_on_await
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
    session: NewSession | None = None,
    own_client: bool = False,
    api: Api | None = None,
    fallback: Sequence[StreamingModel] = (),
) -> Conversation:
    """Open a conversation with a model: a new one, or one resumed by any id of its thread.

    `async with open_conversation(…) as talk`, `talk = await open_conversation(…)`, or in a script without an event loop
    `with open_conversation(…) as talk`. `model`: a name, or a model of your own, or None for the configured one.
    `window`:
    its window in tokens, instead of the known one. `own_client`: you send the request of `prepare` yourself and pass
    the answer to `record`; no key is needed. `fallback`: models to use if the first one is out of service. Everything
    that is opened here is closed with the conversation.
    """
    from everthread.conversation.conversation import Conversation

    settings = config or load_config()
    check_settings(settings, window)
    model_spec = ModelSpec(
        model, window=window, api=api, fallback=fallback, has_own_client=own_client
    )
    model_events: EventRelay[ModelEvent] = EventRelay()
    async with ensure_store(store, settings) as (opened_store, resources):
        route = await open_route(model_spec, settings, on_event=model_events, resources=resources)
        setup = await make_setup(
            opened_store,
            route,
            config=settings,
            summarizer=summarizer,
            resources=resources,
        )
        setup = replace(
            setup,
            system=system,
            listener=listener or setup.listener,
            resources=resources,
        )
        conversation = await Conversation.open(setup, resume=resume, new=session, tools=tools)
    model_events.listener = conversation.on_model_event
    return conversation


def check_settings(config: Config, window: int | None) -> None:
    """Raise an error for an invalid window or engine before an empty thread is stored."""
    if window is not None:
        check_window(window)
    EngineChoice.from_config(config).check()


async def make_setup(
    store: Store,
    route: Route,
    *,
    config: Config,
    summarizer: str | Summarizer,
    resources: AsyncExitStack,
) -> Setup:
    """Return the setup of a conversation as configured. `resources`: closes the models that write summaries."""
    from everthread.conversation.setup import Setup

    return Setup(
        store=store,
        route=route,
        make_engine=EngineChoice.from_config(config),
        make_summarizer=make_summarizers(summarizer, config, resources),
        options=make_session_options(config),
        summary_key=await store.keys.load_shared_secret(SUMMARY_KEY),
    )


def make_summarizers(
    summarizer: str | Summarizer,
    config: Config,
    resources: AsyncExitStack,
) -> Callable[[SummarizerContext], Summarizer]:
    """Return a function that makes summarisers: the configured ones for `auto`, or else the named or given one."""
    if summarizer == "auto":
        return SummarizerFactory(config, resources)
    return lambda context: find_summarizer(summarizer, context.counter)


def make_session_options(config: Config) -> SessionOptions:
    """Return the options of a conversation, and apply the configured prices."""
    from everthread.factory.configured_prices import apply_prices

    apply_prices(config)

    compression = config.compression.model_dump(exclude={"template", "models", "idle"})
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
        compact_when_idle=config.compression.idle,
        **tool_output,
        cache_ttl=ttl,
        max_tokens=max_tokens,
        recall=recall,
        models=options_by_model,
    )
