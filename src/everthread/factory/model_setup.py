"""Build models with their wrappers, summarisers and engines from settings."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everthread.compaction.summary import Summarizer
from everthread.config import Config, home_directory
from everthread.config.sections import ModelOptions, SummaryModelOptions
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, Request, StreamingModel
from everthread.errors import ConfigError, EverthreadError
from everthread.factory.compression import acompress

if TYPE_CHECKING:
    from everthread.compaction.engine import ContextEngine, Services
    from everthread.providers.catalog import EndpointReport, Window
    from everthread.providers.model_choice import Choice
    from everthread.providers.resilience import ModelEvent
    from everthread.store.store import Store
    from everthread.thread.options import Route, SummarizerContext


Closing = Callable[[], Coroutine[Any, Any, Any]]


def closing_of(model: StreamingModel) -> Closing:
    """Return a callback that closes a model."""
    from everthread.providers.resilience import close_model

    return functools.partial(close_model, model)


_ANY_MODEL = ("auto", "custom", "openrouter")
"""Providers that serve models of any name."""


def choice_of(
    section: ModelOptions | SummaryModelOptions,
    model: str | None = None,
    *,
    api: Api | None = None,
) -> Choice:
    """Return the model of a section of the configuration, or the named one, and its provider.

    The provider and the key of the section are those of its own model: a name that implies another provider wins.
    """
    from everthread.providers.model_choice import choose, provider_named_by

    configured = section.default if isinstance(section, ModelOptions) else section.model
    if model and model != configured:
        own = provider_named_by(model)
        has_own_models = section.base_url is None and section.provider not in _ANY_MODEL
        is_of_other_provider = own is not None and own != section.provider
        if is_of_other_provider and (has_own_models or own == "local"):
            return choose(model, environment=os.environ, api=api)
    return choose(
        model or configured,
        environment=os.environ,
        api=api,
        provider=section.provider,
        base_url=section.base_url,
        api_key_env=section.api_key_env,
    )


def check_choice(
    section: ModelOptions | SummaryModelOptions, model: str | None = None
) -> tuple[Choice | None, str]:
    """Return the model that `choice_of` finds, and why it cannot be used; empty if it can."""
    try:
        choice = choice_of(section, model)
    except ConfigError as error:
        return None, str(error)
    has_key = choice.key_env is None or os.environ.get(choice.key_env, "").strip()
    return choice, "" if has_key else f"{choice.key_env} is not set"


def endpoint_of(choice: Choice) -> Callable[[], Coroutine[Any, Any, EndpointReport]]:
    """Return a function that asks the model's server for its window."""
    from everthread.providers.catalog import ask_endpoint

    key = os.environ.get(choice.key_env or "", "").strip() or None
    return lambda: ask_endpoint(
        choice.base_url, choice.model, api=choice.api, api_key=key
    )


async def load_window(
    choice: Choice, setting: int | None, store: Store | None, *, offline: bool = False
) -> Window:
    """Return a model's window as it would be used: configured, learnt, as its server says, or catalogued."""
    from everthread.providers.catalog import LearntLimit, Window, resolve_window
    from everthread.providers.local import DEFAULT_WINDOW

    if choice.provider == "local":
        size = setting or DEFAULT_WINDOW
        return Window(size, "setting", f"{size:,} tokens, as the model is started here")
    stored = (
        None
        if store is None
        else (await store.limits_for(choice.base_url, choice.model)).window
    )
    learnt = None if stored is None else LearntLimit(stored.limit, stored.source)
    ask = None if offline else endpoint_of(choice)
    return await resolve_window(choice.model, setting=setting, learnt=learnt, ask=ask)


async def route_to(
    model: str | StreamingModel | None,
    config: Config,
    *,
    api: Api | None,
    own_client: bool,
    fallback: Sequence[StreamingModel],
    events: Callable[[ModelEvent], None],
    window: int | None = None,
) -> Route:
    """Resolve a model, its window, and the wrappers around it. `window`: the caller's own figure."""
    from everthread.providers.catalog import resolve_window
    from everthread.providers.model_choice import create_model
    from everthread.thread.options import Route

    if model is not None and not isinstance(model, str):
        size, source = (
            (model.window, "the model's own") if window is None else (window, "given")
        )
        return Route(model.name, model.api, size, source, model.base_url, model=model)
    settings = config.model
    choice = choice_of(settings, model, api=api)
    is_local = choice.provider == "local"
    is_configured = model is None or settings.default in (None, model)
    resolved = await resolve_window(
        choice.model,
        setting=window or (settings.context_length if is_configured else None),
        ask=None if is_local or own_client else endpoint_of(choice),
    )
    route = Route(
        choice.model,
        choice.api,
        window=resolved.tokens,
        source=str(resolved),
        base_url=choice.base_url,
        provider=choice.provider,
    )
    if own_client:
        return route
    context_length = window or settings.context_length if is_local else resolved.tokens
    first = create_model(
        choice,
        environment=os.environ,
        home=home_directory(),
        max_tokens=settings.max_tokens,
        context_length=context_length,
    )
    if is_local:
        source = "the local server's own"
        route = replace(
            route, window=first.window, source=source, base_url=first.base_url
        )
    return replace(route, model=_wrap_model(first, fallback, events))


def _wrap_model(
    model: StreamingModel,
    fallback: Sequence[StreamingModel],
    events: Callable[[ModelEvent], None],
) -> StreamingModel:
    """Add time limits, a fitting output cap, retries and the fallback models."""
    from everthread.providers.resilience import (
        FallbackModel,
        FittingModel,
        RetryingModel,
        TimeLimitedModel,
    )

    steady = RetryingModel(FittingModel(TimeLimitedModel(model)), events=events)
    if not fallback:
        return steady
    return FallbackModel([steady, *fallback], refit=refit, events=events)


async def refit(request: Request, model: StreamingModel) -> Request:
    """Make a request small enough for another model, for this call only; nothing is stored."""
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


_MAX_AUXILIARIES = 100
"""Most models of clients that write their own summaries; for further ones the journal writes."""


def summarizer_maker(
    config: Config,
    on_open: Callable[[Closing], object],
    *,
    floor: Summarizer | None = None,
    seconds: float | None = None,
) -> Callable[[SummarizerContext], Summarizer]:
    """Return a function that makes summarisers: the auxiliary model, else the main one, else the journal.

    The journal always works; `floor` replaces it. The summarisers share the auxiliary models and the time for which a
    route rests after a failure. `on_open` gets the callbacks that close these models; `seconds` bounds a call to one.
    """
    auxiliaries: dict[str, StreamingModel | None] = {}
    rest_until: dict[str, float] = {}
    windows: dict[str, int] = {}

    def make(context: SummarizerContext) -> Summarizer:
        name = config.auxiliary.compression.model or context.route.name
        if name not in auxiliaries and len(auxiliaries) < _MAX_AUXILIARIES:
            model = _choose_auxiliary(name, context, config)
            if model is not None:
                on_open(closing_of(model))
            if model is not None and seconds is not None:
                from everthread.providers.resilience import TimeLimitedModel, TimeLimits

                model = TimeLimitedModel(model, TimeLimits(seconds, seconds, seconds))
            auxiliaries[name] = model
        shared = _SharedRoutes(floor, rest_until, windows)
        return _make_chain(context, config, auxiliaries.get(name), shared)

    return make


def _choose_auxiliary(
    name: str, context: SummarizerContext, config: Config
) -> StreamingModel | None:
    """Return the configured model for summaries; None if there is none or, with a notice, if it cannot be used."""
    from everthread.providers.model_choice import create_model

    options = config.auxiliary.compression
    main = config.model
    if (
        options.model is None
        and options.provider in ("auto", "main")
        and options.base_url is None
    ):
        return None
    via = main if options.provider == "main" else options
    try:
        return create_model(
            choice_of(via, name),
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

    floor: Summarizer | None
    """Writes if no model can; None: the journal."""
    rest_until: dict[str, float]
    windows: dict[str, int]
    """Windows that models stated, by name."""


def _make_chain(
    context: SummarizerContext,
    config: Config,
    auxiliary: StreamingModel | None,
    shared: _SharedRoutes,
) -> Summarizer:
    """Return a summariser that tries the models in order and ends with the journal.

    On a route whose prefix is cached by marks, the main model is first asked on that prefix. A local model writes
    summaries only if it is configured for that: a small one does worse than the journal.
    """
    from everthread.compaction.journal.journal_writer import JournalWriter

    last = shared.floor or JournalWriter(context.counter)
    main_model = context.route.model if context.route.provider != "local" else None
    if auxiliary is None and main_model is None:
        return last
    from everthread.compaction.summarizers.chain import SummarizerChain

    return SummarizerChain(
        _list_writers(context, config, auxiliary, main_model, shared.windows),
        floor=last,
        clock=time.time,
        events=context.events,
        rest_until=shared.rest_until,
    )


def _list_writers(
    context: SummarizerContext,
    config: Config,
    auxiliary: StreamingModel | None,
    main_model: StreamingModel | None,
    windows: dict[str, int],
) -> list[Summarizer]:
    """List the summarisers that ask a model, in the order in which they are tried."""
    from everthread.compaction.summarizers.chain import Price
    from everthread.compaction.summarizers.model import (
        LlmSummarizer,
        WarmPrefixSummarizer,
    )
    from everthread.core.tokens import TokenCounter
    from everthread.providers.resilience import FittingModel, MeteredModel

    compression = config.compression
    writers: list[Summarizer] = []

    def price(model: MeteredModel) -> Price | None:
        if not compression.economics:
            return None
        return Price(model.name, ttl=config.prompt_caching.cache_ttl)

    def add_writer(model: MeteredModel, counter: TokenCounter) -> None:
        writer = LlmSummarizer(
            model,
            counter,
            context_length=config.auxiliary.compression.context_length,
            template=compression.template,
            price=price(model),
            windows=windows,
        )
        writers.append(writer)

    def meter(model: StreamingModel) -> MeteredModel:
        return MeteredModel(model, context.lost, context.permit)

    if auxiliary is not None:
        add_writer(meter(FittingModel(auxiliary)), TokenCounter(auxiliary.name))
    if main_model is not None:
        main = meter(main_model)
        if context.route.caches_by_marks:
            warm = WarmPrefixSummarizer(
                main,
                context.counter,
                context.live,
                template=compression.template,
                price=price(main),
                warm=context.warm,
            )
            writers.append(warm)
        add_writer(main, context.counter)
    return writers


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The configured engine with its options; calling it makes an engine."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> EngineChoice:
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
        """Whether it plans and finishes, so that it can run in worker processes."""
        from everthread.compaction.registry import find_engine

        return find_engine(self.name, home=home_directory()).source == "built-in"

    def check(self) -> None:
        """Make one engine, so that a bad engine is an error at start and not at each request."""
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
