"""Create models with their wrappers, summarisers and engines from settings."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, home_directory
from everthread.config.sections import ModelOptions, SummaryModelOptions
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, Request, StreamingModel
from everthread.errors import ConfigError, EverthreadError
from everthread.factory.compression import acompress

if TYPE_CHECKING:
    from everthread.compaction.engine import ContextEngine, Services
    from everthread.providers.catalog import EndpointReport, Window
    from everthread.providers.model_choice import ModelChoice
    from everthread.providers.resilience import ModelEvent
    from everthread.store.store import Store
    from everthread.thread.options import Route, SummarizerContext


CloseCallback = Callable[[], Coroutine[Any, Any, Any]]


def make_close_callback(model: StreamingModel) -> CloseCallback:
    """Return a callback that closes a model."""
    from everthread.providers.resilience import close_model

    return functools.partial(close_model, model)


_PROVIDERS_OF_ANY_MODEL = ("auto", "custom", "openrouter")
"""Providers that serve models of any name."""


def choose_from_section(
    section: ModelOptions | SummaryModelOptions,
    model: str | None = None,
    *,
    api: Api | None = None,
) -> ModelChoice:
    """Choose the named model, or else that of a section of the configuration, and its provider.

    The section's provider and key belong to its own model. If a name implies another provider, that one is used.
    """
    from everthread.providers.model_choice import choose_model, find_provider_by_name

    configured_model = (
        section.default if isinstance(section, ModelOptions) else section.model
    )
    if model and model != configured_model:
        implied_provider = find_provider_by_name(model)
        has_own_models = (
            section.base_url is None and section.provider not in _PROVIDERS_OF_ANY_MODEL
        )
        is_of_other_provider = (
            implied_provider is not None and implied_provider != section.provider
        )
        if is_of_other_provider and (has_own_models or implied_provider == "local"):
            return choose_model(model, environment=os.environ, api=api)
    return choose_model(
        model or configured_model,
        environment=os.environ,
        api=api,
        provider=section.provider,
        base_url=section.base_url,
        api_key_env=section.api_key_env,
    )


def check_choice(
    section: ModelOptions | SummaryModelOptions, model: str | None = None
) -> tuple[ModelChoice | None, str]:
    """Return the model chosen by `choose_from_section`, and why it cannot be used; empty if it can."""
    try:
        choice = choose_from_section(section, model)
    except ConfigError as error:
        return None, str(error)
    has_key = choice.key_env is None or os.environ.get(choice.key_env, "").strip()
    return choice, "" if has_key else f"{choice.key_env} is not set"


def make_endpoint_request(
    choice: ModelChoice,
) -> Callable[[], Coroutine[Any, Any, EndpointReport]]:
    """Return a function that asks the model's server for its window."""
    from everthread.providers.catalog import ask_endpoint

    key = os.environ.get(choice.key_env or "", "").strip() or None
    return lambda: ask_endpoint(
        choice.base_url, choice.model, api=choice.api, api_key=key
    )


async def load_window(
    choice: ModelChoice,
    setting: int | None,
    store: Store | None,
    *,
    offline: bool = False,
) -> Window:
    """Return the window to use for a model: configured, learnt, reported by its server, or from the catalogue."""
    from everthread.providers.catalog import LearntLimit, Window, resolve_window
    from everthread.providers.local import DEFAULT_WINDOW

    if choice.provider == "local":
        size = setting or DEFAULT_WINDOW
        return Window(size, "setting", f"{size:,} tokens, as the model is started here")
    stored_limit = (
        None
        if store is None
        else (await store.load_limits(choice.base_url, choice.model)).window
    )
    learnt_limit = (
        None
        if stored_limit is None
        else LearntLimit(stored_limit.limit, stored_limit.source)
    )
    ask = None if offline else make_endpoint_request(choice)
    return await resolve_window(
        choice.model, setting=setting, learnt_limit=learnt_limit, ask_server=ask
    )


async def find_route(
    model: str | StreamingModel | None,
    config: Config,
    *,
    api: Api | None,
    own_client: bool,
    fallback: Sequence[StreamingModel],
    on_event: Callable[[ModelEvent], None],
    window: int | None = None,
) -> Route:
    """Return the route to a model: the model with its wrappers, and its window. `window`: the caller's own figure."""
    from everthread.providers.catalog import resolve_window
    from everthread.providers.model_choice import create_model
    from everthread.thread.options import Route

    if model is not None and not isinstance(model, str):
        size, source = (
            (model.window, "the model's own") if window is None else (window, "given")
        )
        return Route(model.name, model.api, size, source, model.base_url, model=model)
    settings = config.model
    choice = choose_from_section(settings, model, api=api)
    is_local = choice.provider == "local"
    is_configured = model is None or settings.default in (None, model)
    resolved_window = await resolve_window(
        choice.model,
        setting=window or (settings.context_length if is_configured else None),
        ask_server=None if is_local or own_client else make_endpoint_request(choice),
    )
    route = Route(
        choice.model,
        choice.api,
        window=resolved_window.tokens,
        source=str(resolved_window),
        base_url=choice.base_url,
        provider=choice.provider,
    )
    if own_client:
        return route
    context_length = (
        window or settings.context_length if is_local else resolved_window.tokens
    )
    chosen_model = create_model(
        choice,
        environment=os.environ,
        home=home_directory(),
        max_tokens=settings.max_tokens,
        context_length=context_length,
    )
    if is_local:
        source = "the local server's own"
        route = replace(
            route,
            window=chosen_model.window,
            source=source,
            base_url=chosen_model.base_url,
        )
    return replace(route, model=_wrap_model(chosen_model, fallback, on_event))


def _wrap_model(
    model: StreamingModel,
    fallback: Sequence[StreamingModel],
    on_event: Callable[[ModelEvent], None],
) -> StreamingModel:
    """Wrap a model with time limits, a fitting output cap, retries and the fallback models."""
    from everthread.providers.resilience import (
        FallbackModel,
        FittingModel,
        RetryingModel,
        TimeLimitedModel,
    )

    retrying_model = RetryingModel(
        FittingModel(TimeLimitedModel(model)), events=on_event
    )
    if not fallback:
        return retrying_model
    return FallbackModel(
        [retrying_model, *fallback], fit_request=fit_request, events=on_event
    )


async def fit_request(request: Request, model: StreamingModel) -> Request:
    """Make a request small enough for another model, for this call only, without storing anything."""
    from everthread.core.tokens import TokenCounter

    size = TokenCounter(model.name).request(
        request.messages, system=request.system, tools=request.tools
    )
    if size < Budget.for_window(model.window).threshold:
        return request
    compaction = await acompress(
        request.messages,
        window=model.window,
        system=request.system,
        tools=request.tools,
        model=model.name,
        force=True,
    )
    return replace(request, messages=compaction.messages)


_MAX_AUXILIARY_MODELS = 100
"""Maximum auxiliary models, whose names clients may choose; beyond this number the journal writes summaries."""


def make_summarizer_factory(
    config: Config,
    on_open: Callable[[CloseCallback], object],
    *,
    fallback_summarizer: Summarizer | None = None,
    seconds: float | None = None,
) -> Callable[[SummarizerContext], Summarizer]:
    """Return a function that makes summarisers, which use the auxiliary model, else the main one, else the journal.

    `fallback_summarizer`: replaces the journal. `on_open`: called with the callbacks that close auxiliary models.
    `seconds`: limits a call to an auxiliary model.

    All summarisers share the auxiliary models. If a route failed, all of them skip it until the same time.
    """
    auxiliary_models: dict[str, StreamingModel | None] = {}
    skipped_until: dict[str, float] = {}
    windows: dict[str, int] = {}

    def make_summarizer(context: SummarizerContext) -> Summarizer:
        name = config.auxiliary.compression.model or context.route.name
        if (
            name not in auxiliary_models
            and len(auxiliary_models) < _MAX_AUXILIARY_MODELS
        ):
            model = _choose_auxiliary(name, context, config)
            if model is not None:
                on_open(make_close_callback(model))
            if model is not None and seconds is not None:
                from everthread.providers.resilience import TimeLimitedModel, TimeLimits

                model = TimeLimitedModel(model, TimeLimits(seconds, seconds, seconds))
            auxiliary_models[name] = model
        shared = _SharedRoutes(fallback_summarizer, skipped_until, windows)
        return _make_chain(context, config, auxiliary_models.get(name), shared)

    return make_summarizer


def _choose_auxiliary(
    name: str, context: SummarizerContext, config: Config
) -> StreamingModel | None:
    """Return the configured model for summaries; None if there is none, or (with a notice) if it cannot be used."""
    from everthread.providers.model_choice import create_model

    options = config.auxiliary.compression
    main_section = config.model
    if (
        options.model is None
        and options.provider in ("auto", "main")
        and options.base_url is None
    ):
        return None
    section = main_section if options.provider == "main" else options
    try:
        return create_model(
            choose_from_section(section, name),
            environment=os.environ,
            home=home_directory(),
            context_length=options.context_length,
        )
    except EverthreadError as error:
        context.events(
            "notice",
            text=f"auxiliary.compression: {name} cannot be used, others write the summaries: {error}",
        )
        return None


@dataclass(frozen=True, slots=True)
class _SharedRoutes:
    """State that all summarisers of a process share."""

    fallback_summarizer: Summarizer | None
    """The summariser to use if no model can write; None for the journal."""
    skipped_until: dict[str, float]
    """By name of a route that failed, the time when it is tried again."""
    window_by_model: dict[str, int]
    """By name of the model, the window that it has stated."""


def _make_chain(
    context: SummarizerContext,
    config: Config,
    auxiliary: StreamingModel | None,
    shared: _SharedRoutes,
) -> Summarizer:
    """Return a summariser that tries the models in order, and the journal last.

    If the prefix is cached by marks, first ask the main model with that prefix. A local model writes summaries only if
    it is configured for them, because a small model writes worse ones than the journal.
    """
    from everthread.compaction.journal.journal_writer import JournalWriter

    fallback_summarizer = shared.fallback_summarizer or JournalWriter(context.counter)
    main_model = context.route.model if context.route.provider != "local" else None
    if auxiliary is None and main_model is None:
        return fallback_summarizer
    from everthread.compaction.summarizers.chain import SummarizerChain

    return SummarizerChain(
        _list_model_summarizers(
            context, config, auxiliary, main_model, shared.window_by_model
        ),
        fallback=fallback_summarizer,
        clock=time.time,
        events=context.events,
        paused_until=shared.skipped_until,
    )


def _list_model_summarizers(
    context: SummarizerContext,
    config: Config,
    auxiliary: StreamingModel | None,
    main_model: StreamingModel | None,
    windows: dict[str, int],
) -> list[Summarizer]:
    """List the summarisers that ask a model, in the order in which they are tried."""
    from everthread.compaction.summarizers.chain import CallPrice
    from everthread.compaction.summarizers.model import (
        LlmSummarizer,
        WarmPrefixSummarizer,
    )
    from everthread.core.tokens import TokenCounter
    from everthread.providers.resilience import FittingModel, MeteredModel

    compression = config.compression
    writers: list[Summarizer] = []

    def make_price(model: MeteredModel) -> CallPrice | None:
        if not compression.economics:
            return None
        return CallPrice(model.name, ttl=config.prompt_caching.cache_ttl)

    def add_writer(model: MeteredModel, counter: TokenCounter) -> None:
        writer = LlmSummarizer(
            model,
            counter,
            context_length=config.auxiliary.compression.context_length,
            template=compression.template,
            price=make_price(model),
            windows=windows,
        )
        writers.append(writer)

    def meter(model: StreamingModel) -> MeteredModel:
        return MeteredModel(model, context.report_abandoned, context.check_permission)

    if auxiliary is not None:
        add_writer(meter(FittingModel(auxiliary)), TokenCounter(auxiliary.name))
    if main_model is not None:
        metered_main_model = meter(main_model)
        if context.route.caches_by_marks:
            warm_summarizer = WarmPrefixSummarizer(
                metered_main_model,
                context.counter,
                context.last_request,
                template=compression.template,
                price=make_price(metered_main_model),
                is_warm=context.is_warm,
            )
            writers.append(warm_summarizer)
        add_writer(metered_main_model, context.counter)
    return writers


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The configured engine and its options. Calling it creates an engine."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def from_config(cls, config: Config) -> EngineChoice:
        from everthread.compaction.registry import ALIASES

        name = config.context.engine
        options = dict(
            config.engines.get(name) or config.engines.get(ALIASES.get(name, name), {})
        )
        if name == "compressor":
            options.setdefault("template", config.compression.template)
        return cls(name, options)

    @property
    def is_built_in(self) -> bool:
        """Whether the engine is built in, so that it can run in worker processes."""
        from everthread.compaction.registry import find_engine

        return find_engine(self.name, home=home_directory()).source == "built-in"

    def check(self) -> None:
        """Create an engine, so that an invalid one is reported at the start and not at each request."""
        from everthread.compaction.engine import Services
        from everthread.compaction.journal.journal_writer import JournalWriter
        from everthread.core.tokens import TokenCounter
        from everthread.core.tokens.budget import Budget

        counter = TokenCounter(None)
        self(
            Services(
                JournalWriter(counter),
                counter,
                Budget.for_window(128_000),
                time.monotonic,
            )
        )

    def __call__(self, services: Services) -> ContextEngine:
        from everthread.compaction.registry import create_engine

        return create_engine(self.name, services, self.options, home=home_directory())
