"""Open a conversation as configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, load_config
from everthread.core.types import Api, StreamingModel, System
from everthread.factory.awaitable_context import opens_on_await
from everthread.factory.compression import check_window, find_summarizer
from everthread.factory.engine_choice import EngineChoice
from everthread.factory.model_setup import CloseCallback, ModelSpec, open_route
from everthread.factory.stores import SUMMARY_KEY, open_store, store_url
from everthread.factory.summarizer_factory import SummarizerFactory
from everthread.store.records import NewSession
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.conversation.conversation import Conversation
    from everthread.providers.resilience import ModelEvent
    from everthread.thread.events import Listener
    from everthread.thread.options import (
        Route,
        SessionOptions,
        Setup,
        SummarizerContext,
    )


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
    `with open_conversation(…) as talk`. `model`: a name, or a model of your own; None for the configured one. `window`:
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
    conversation: Conversation | None = None

    def pass_on(event: ModelEvent) -> None:
        if conversation is not None:
            conversation.on_model_event(event)

    async with ensure_store(store, settings) as (opened_store, close_callbacks):
        route = await open_route(
            model_spec, settings, on_event=pass_on, close_callbacks=close_callbacks
        )
        setup = await make_setup(
            opened_store,
            route,
            config=settings,
            summarizer=summarizer,
            close_callbacks=close_callbacks,
        )
        setup = replace(
            setup,
            system=system,
            listener=listener or setup.listener,
            close_callbacks=close_callbacks,
        )
        conversation = await Conversation.open(setup, resume=resume, new=session, tools=tools)
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
    close_callbacks: list[CloseCallback],
) -> Setup:
    """Return the setup of a conversation as configured. A callback is added for each model that writes summaries."""
    from everthread.thread.options import Setup

    return Setup(
        store,
        route,
        make_engine=EngineChoice.from_config(config),
        make_summarizer=make_summarizers(summarizer, config, close_callbacks.append),
        options=make_session_options(config),
        summary_key=await store.keys.load_shared_secret(SUMMARY_KEY),
    )


def make_summarizers(
    summarizer: str | Summarizer,
    config: Config,
    on_open: Callable[[CloseCallback], object],
) -> Callable[[SummarizerContext], Summarizer]:
    """Return a function that makes summarisers: the configured ones for `auto`, or else the named or given one."""
    if summarizer == "auto":
        return SummarizerFactory(config, on_open)
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
