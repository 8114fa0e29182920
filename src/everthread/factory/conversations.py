"""From a configuration to a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from everthread.compaction.summary import Summarizer
from everthread.config import Config, load_config
from everthread.config.conversations import ModelOptions
from everthread.core.types import Api, StreamingModel, System
from everthread.factory.compaction import named_summarizer
from everthread.factory.engines import EngineChoice
from everthread.factory.models import Closing, auxiliary_model, closing_of, route_to, summarizer_for
from everthread.factory.opening import Opening
from everthread.factory.stores import open_store, store_url
from everthread.store.models import NewSession
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.conversation.conversation import Conversation
    from everthread.conversation.events import Listener
    from everthread.conversation.options import Hooks, Route, SessionOptions, Setup, SummarizerContext
    from everthread.providers.base import ModelEvent


def open_conversation(
    model: str | StreamingModel | None = None,
    *,
    config: Config | None = None,
    window: int | None = None,
    **how: Unpack[ConversationOptions],
) -> Opening[Conversation]:
    """A conversation with a model: new, or resumed by any id of its thread.

    `async with open_conversation(…) as talk`, `talk = await open_conversation(…)`, or in a script without an event loop
    `with open_conversation(…) as talk`. `model`: a name, or a model of your own; None: as configured. `window`: its
    window in tokens, when you know better. `own_client`: you send what `prepare` gives and hand the answer to
    `record`; no key is needed here. `fallback`: models that step in when the first is out of service. `model_events`
    hears of retries instead of the conversation, for who goes on in others with the same model. `found` is told which
    model it is before the system prompt is written. What is opened here is closed with the conversation.
    """
    settings = config or load_config()
    if window is not None:
        own = ModelOptions.model_validate({**settings.model.model_dump(), "context_length": window})
        settings = settings.model_copy(update={"model": own})
    return Opening(lambda: _open(model, settings, **how))


class ConversationOptions(TypedDict, total=False):
    """What `open_conversation` may be told besides the model and its window."""

    store: Store | str | Path | None
    resume: str | None
    system: System | Callable[[], System]
    tools: Sequence[dict[str, Any]]
    summarizer: str | Summarizer
    listener: Listener | None
    hooks: Hooks | None
    session: NewSession | None
    own_client: bool
    api: Api | None
    fallback: Sequence[StreamingModel]
    model_events: Callable[[ModelEvent], None] | None
    found: Callable[[Route], None] | None


async def _open(
    model: str | StreamingModel | None,
    settings: Config,
    *,
    store: Store | str | Path | None = None,
    resume: str | None = None,
    system: System | Callable[[], System] = None,
    tools: Sequence[dict[str, Any]] = (),
    summarizer: str | Summarizer = "auto",
    listener: Listener | None = None,
    hooks: Hooks | None = None,
    session: NewSession | None = None,
    own_client: bool = False,
    api: Api | None = None,
    fallback: Sequence[StreamingModel] = (),
    model_events: Callable[[ModelEvent], None] | None = None,
    found: Callable[[Route], None] | None = None,
) -> Conversation:
    from everthread.conversation.conversation import Conversation

    opened: list[Closing] = []
    if store is None or isinstance(store, str | Path):
        store = await asyncio.to_thread(open_store, store if store is not None else store_url(settings))
        opened.append(store.close)
    told: list[Conversation] = []

    def model_event(event: ModelEvent) -> None:
        for conversation in told:
            conversation.on_model_event(event)

    try:
        route = await route_to(
            model, settings, api=api, own_client=own_client, fallback=fallback, events=model_events or model_event
        )
        if route.model is not model and route.model is not None:
            opened.insert(0, closing_of(route.model))
        if found is not None:
            found(route)
        setup = _setup(store, route, settings, opened, system=system, summarizer=summarizer)
        setup = replace(
            setup,
            listener=listener or setup.listener,
            hooks=hooks or setup.hooks,
            closing=opened,
        )
        conversation = await Conversation.open(setup, resume=resume, new=session, tools=tools)
    except BaseException:
        for close in opened:
            await close()
        raise
    told.append(conversation)
    return conversation


def session_options(config: Config) -> SessionOptions:
    """What the configuration says of a conversation."""
    from everthread.conversation.options import RecallOptions, SessionOptions

    compression = config.compression.model_dump(exclude={"template", "models"})
    own = {name: one.model_dump(exclude_none=True) for name, one in config.compression.models.items()}
    output = config.tool_output.model_dump()
    ttl, cap = config.prompt_caching.cache_ttl, config.model.max_tokens
    recall = RecallOptions(**config.recall.model_dump())
    return SessionOptions(**compression, **output, cache_ttl=ttl, max_tokens=cap, recall=recall, models=own)


def _setup(
    store: Store,
    route: Route,
    config: Config,
    opened: list[Closing],
    *,
    system: System | Callable[[], System],
    summarizer: str | Summarizer,
) -> Setup:
    from everthread.conversation.options import Setup

    def writer(desk: SummarizerContext) -> Summarizer:
        if summarizer != "auto":
            return named_summarizer(summarizer, desk.counter)
        auxiliary = auxiliary_model(desk, config)
        if auxiliary is not None:
            opened.append(closing_of(auxiliary))
        return summarizer_for(desk, config, auxiliary)

    options = session_options(config)
    return Setup(store, route, EngineChoice.of(config), writer, options, system)
