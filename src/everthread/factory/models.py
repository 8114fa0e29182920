"""From settings to a model with its wrappers, to whoever writes summaries, and to the context engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everthread.compaction.summary import Summarizer
from everthread.config import Config, home_directory
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, Request, StreamingModel
from everthread.errors import EverthreadError
from everthread.factory.compaction import acompress

if TYPE_CHECKING:
    from everthread.compaction.engine import ContextEngine, Services
    from everthread.conversation.options import Route, SummarizerContext
    from everthread.providers.base import ModelEvent


Closing = Callable[[], Coroutine[Any, Any, Any]]


def closing_of(model: StreamingModel) -> Closing:
    """What closes a model."""
    from everthread.providers.base import close_model

    return lambda: close_model(model)


async def route_to(
    model: str | StreamingModel | None,
    config: Config,
    *,
    api: Api | None,
    own_client: bool,
    fallback: Sequence[StreamingModel],
    events: Callable[[ModelEvent], None],
) -> Route:
    """Which model is talked to, its window, and the wrappers around it."""
    from everthread.conversation.options import Route
    from everthread.providers.catalog import ask_endpoint, resolve_window
    from everthread.providers.resilience import FallbackModel, FittingModel, RetryingModel, TimeLimitedModel
    from everthread.providers.resolve import choose, choose_model

    if model is not None and not isinstance(model, str):
        return Route(model.name, model.api, model.window, "the model's own", model.base_url, model=model)
    settings = config.model
    asked = model or settings.default
    how: dict[str, Any] = {
        "provider": settings.provider,
        "base_url": settings.base_url,
        "api_key_env": settings.api_key_env,
    }
    choice = choose(asked, environment=os.environ, api=api, **how)
    key = os.environ.get(choice.key_env or "", "") or None

    async def ask() -> Any:
        return await ask_endpoint(choice.base_url, choice.model, api=choice.api, api_key=key)

    known = choice.provider == "local" or own_client
    own = model is None or settings.default in (None, model)
    setting = settings.context_length if own else None  # it is the configured model's
    window = await resolve_window(choice.model, setting=setting, ask=None if known else ask)
    route = Route(choice.model, choice.api, window.tokens, str(window), choice.base_url, choice.provider)
    if own_client:
        return route
    first = choose_model(
        asked, environment=os.environ, home=home_directory(), api=api, max_tokens=settings.max_tokens,
        context_length=settings.context_length if choice.provider == "local" else window.tokens, **how,
    )  # fmt: skip
    if choice.provider == "local":
        route = replace(route, window=first.window, source="the local server's own", base_url=first.base_url)
    steady: StreamingModel = RetryingModel(FittingModel(TimeLimitedModel(first)), events=events)
    if fallback:
        steady = FallbackModel([steady, *fallback], refit=refit, events=events)
    return replace(route, model=steady)


async def refit(request: Request, model: StreamingModel) -> Request:
    """A request made for one model, small enough for another: for this call only, nothing is stored."""
    from everthread.core.tokens import TokenCounter

    size = TokenCounter(model.name).request(request.messages, system=request.system, tools=request.tools)
    if size < Budget.for_window(model.window).threshold:
        return request
    made = await acompress(
        request.messages, window=model.window, system=request.system, tools=request.tools, model=model.name
    )
    return replace(request, messages=made.messages)


def summarizer_for(
    desk: SummarizerContext,
    config: Config,
    auxiliary: StreamingModel | None = None,
    *,
    floor: Summarizer | None = None,
    rest_until: dict[str, float] | None = None,
) -> Summarizer:
    """Who writes summaries: the auxiliary model, else the main one, else the extract, which always can.

    On a route whose prefix is cached by marks the main model is asked on that prefix first. A local model writes none
    unless it is named for it: a small one does worse than the extract.
    """
    from everthread.compaction.journal import JournalWriter
    from everthread.compaction.summarizers.chain import Price, SummarizerChain
    from everthread.compaction.summarizers.model import LlmSummarizer
    from everthread.compaction.summarizers.warm import WarmPrefixSummarizer
    from everthread.core.tokens import TokenCounter
    from everthread.providers.resilience import FittingModel, MeteredModel

    template, options = config.compression.template, config.auxiliary.compression
    routes: list[Summarizer] = []

    def price(model: str) -> Price | None:
        return Price(model, ttl=config.prompt_caching.cache_ttl) if config.compression.economics else None

    if auxiliary is not None:
        counter, metered = TokenCounter(auxiliary.name), MeteredModel(FittingModel(auxiliary), desk.lost)
        routes.append(
            LlmSummarizer(
                metered, counter, context_length=options.context_length, template=template, price=price(auxiliary.name)
            )
        )
    if desk.route.model is not None and desk.route.provider != "local":
        main = MeteredModel(desk.route.model, desk.lost)
        if desk.route.caches_by_marks:
            routes.append(
                WarmPrefixSummarizer(
                    main, desk.counter, desk.live, template=template, price=price(main.name), warm=desk.warm
                )
            )
        routes.append(
            LlmSummarizer(
                main, desk.counter, context_length=options.context_length, template=template, price=price(main.name)
            )
        )
    last = floor or JournalWriter(desk.counter)
    if not routes:
        return last
    return SummarizerChain(routes, floor=last, clock=time.time, events=desk.events, rest_until=rest_until)


def auxiliary_model(desk: SummarizerContext, config: Config) -> StreamingModel | None:
    """The model the configuration names for summaries; None where it names none, or it cannot be made: that is told."""
    from everthread.providers.resolve import choose_model

    options, main = config.auxiliary.compression, config.model
    if options.model is None and options.provider in ("auto", "main") and options.base_url is None:
        return None
    via = main if options.provider == "main" else options
    name = options.model or desk.route.name
    try:
        return choose_model(
            name, environment=os.environ, home=home_directory(), provider=via.provider, base_url=via.base_url,
            api_key_env=via.api_key_env, context_length=options.context_length,
        )  # fmt: skip
    except EverthreadError as error:
        desk.events("notice", text=f"auxiliary.compression: {name} cannot be used, others write the summaries: {error}")
        return None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The configured engine with its options; called, it makes one."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> EngineChoice:
        from everthread.compaction.registry import ALIASES

        name = config.context.engine
        options = dict(config.engines.get(name) or config.engines.get(ALIASES.get(name, name), {}))
        if name == "compressor":
            options.setdefault("template", config.compression.template)
        return cls(name, options)

    @property
    def is_portable(self) -> bool:
        """Whether another process finds the same engine: not where it was registered in this one only."""
        from everthread.compaction.registry import find_engine

        return find_engine(self.name, home=home_directory()).source != "registered"

    def check(self) -> None:
        """Make one, so that an engine that cannot be found or made is an error at start, and not at each request."""
        from everthread.compaction.engine import Services
        from everthread.compaction.journal import JournalWriter
        from everthread.core.tokens import TokenCounter
        from everthread.core.tokens.budget import Budget

        counter = TokenCounter(None)
        self(Services(JournalWriter(counter), counter, Budget.for_window(128_000), time.monotonic))

    def __call__(self, services: Services) -> ContextEngine:
        from everthread.compaction.registry import create_engine

        return create_engine(self.name, services, self.options, home=home_directory())
