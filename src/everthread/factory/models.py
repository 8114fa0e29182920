"""Builds models with their wrappers, summarisers and engines from settings; `compress`: one compaction by itself."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from everthread.compaction.summary import Compaction, Summarizer, TemplateName
from everthread.config import Config, home_directory
from everthread.config.sections import ModelOptions, SummaryModelOptions
from everthread.core.messages import Message
from everthread.core.tokens.budget import Budget
from everthread.core.transcript import recognize, strip_marks
from everthread.core.types import Api, Request, StreamingModel, System
from everthread.errors import ConfigError, EverthreadError, InputError, NoStoreError

if TYPE_CHECKING:
    from everthread.compaction.engine import ContextEngine, Services
    from everthread.conversation.options import Route, SummarizerContext
    from everthread.providers.catalog import EndpointReport, Window
    from everthread.providers.resilience import ModelEvent
    from everthread.providers.resolve import Choice
    from everthread.store.store import Store


T = TypeVar("T")
P = ParamSpec("P")


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run async work from a script, or from inside a running event loop (then in a thread)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def sync_form(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a function without `await` from an async one."""

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(work(*args, **kwargs))

    return run


async def acompress(
    messages: Sequence[Message],
    *,
    window: int,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    focus: str | None = None,
    summarizer: str | Summarizer = "auto",
    template: TemplateName | None = None,
    preview: bool = False,
    config: Config | None = None,
) -> Compaction:
    """Make a history smaller: head, summary, tail. `compress` is the form without `await`.

    `summarizer`: `auto`, `journal`, or a summariser of your own. `template`: `handoff` or `classic`. `preview`
    writes no summary and shows what would be kept, cut and summarised. `config`: settings other than the defaults: its
    engine compacts, its auxiliary model writes the summary where one is configured, and the summary is tagged with
    the key of its store, where there is one.
    """
    from everthread.compaction.engine import Services
    from everthread.conversation.options import Route, SummarizerContext
    from everthread.core.tokens import TokenCounter
    from everthread.factory.conversation import session_options

    _check_arguments(messages, template)
    check_window(window, least=1)
    settings, counter = config or Config(), TokenCounter(model)
    if template is not None:
        settings = _with_template(settings, template)
    budget, key, notices = Budget.for_window(window), b"", list[str]()
    if config is not None:
        budget = session_options(config).for_model(model or "").budget(window)
        key = await _load_summary_key(config)

    def report(kind: str, **details: Any) -> None:
        if kind == "notice":
            notices.append(str(details.get("text", "")))

    async with AsyncExitStack() as stack:
        if config is not None and summarizer == "auto" and not preview:
            route = Route(model or settings.model.default or "", "openai_chat", window)
            context = SummarizerContext(route, counter, lambda: None, report, lambda _request: None)
            writer = summarizer_maker(settings, stack.push_async_callback)(context)
        else:
            writer = named_summarizer(summarizer, counter)
        services = Services(writer, counter, budget, time.monotonic, summary_key=key)
        compaction = await EngineChoice.of(settings)(services).compress(
            recognize(messages, key), focus_topic=focus, system=system, tools=tools, manual=True, dry_run=preview
        )
    warnings = (*notices, *compaction.warnings)
    return replace(compaction, messages=strip_marks(compaction.messages), warnings=warnings)


def _with_template(config: Config, template: TemplateName) -> Config:
    """The configuration with this layout of summaries, also where the engine's own options name another."""
    compression = config.compression.model_copy(update={"template": template})
    compressor = config.engines.get("compressor", {}) | {"template": template}
    return config.model_copy(
        update={"compression": compression, "engines": {**config.engines, "compressor": compressor}}
    )


compress = sync_form(acompress)


def _check_arguments(messages: Any, template: Any) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(
            "compress takes a list of messages, such as [{'role': 'user', 'content': '…'}], "
            f"not a {type(messages).__name__}"
        )
    bad = next((one for one in messages if not isinstance(one, Mapping) or "role" not in one), None)
    if bad is not None:
        raise InputError(f"every message must be an object with a role, not {str(bad)[:60]!r}")
    if template not in (None, "handoff", "classic"):
        raise InputError(f"template {template!r} is unknown; use handoff or classic")


LEAST_WINDOW = 1_000


def check_window(window: Any, *, least: int = LEAST_WINDOW) -> None:
    """Refuse a window that is no number of tokens."""
    if not isinstance(window, int) or isinstance(window, bool) or window < least:
        raise InputError(f"window={window!r} is not allowed; give the model's window in tokens, at least {least:,}")


_keys: dict[str, bytes] = {}


async def _load_summary_key(config: Config) -> bytes:
    """The summary key of the configured store; empty where there is no store yet."""
    from everthread.factory.store import SUMMARY_KEY, open_store, store_url

    url = store_url(config)
    if url not in _keys:
        try:
            store = await asyncio.to_thread(open_store, url, create=False)
        except NoStoreError:
            return b""
        try:
            _keys[url] = await store.shared_secret(SUMMARY_KEY)
        finally:
            await store.close()
    return _keys[url]


def named_summarizer(summarizer: str | Summarizer, counter: Any) -> Summarizer:
    """The summariser of a name, or your own; where that fails, the journal writes."""
    from everthread.compaction.journal import JournalWriter
    from everthread.compaction.summarizers.chain import SummarizerChain
    from everthread.context.worker import SafeSummarizer

    if isinstance(summarizer, JournalWriter | SummarizerChain):
        return summarizer
    if not isinstance(summarizer, str):
        return SummarizerChain([SafeSummarizer(summarizer)], floor=JournalWriter(counter), clock=time.time)
    if summarizer in ("auto", "journal", "extractive"):
        return JournalWriter(counter)
    raise InputError(f"summarizer={summarizer!r} is unknown; use auto, journal, or a summariser of your own")


Closing = Callable[[], Coroutine[Any, Any, Any]]


def closing_of(model: StreamingModel) -> Closing:
    """A callback that closes a model."""
    from everthread.providers.resilience import close_model

    return functools.partial(close_model, model)


def choice_of(
    section: ModelOptions | SummaryModelOptions, model: str | None = None, *, api: Api | None = None
) -> Choice:
    """The model of a section of the configuration, or the named one, and its provider."""
    from everthread.providers.resolve import choose

    configured = section.default if isinstance(section, ModelOptions) else section.model
    return choose(
        model or configured, environment=os.environ, api=api, provider=section.provider, base_url=section.base_url,
        api_key_env=section.api_key_env,
    )  # fmt: skip


def check_choice(section: ModelOptions | SummaryModelOptions, model: str | None = None) -> tuple[Choice | None, str]:
    """The model as `choice_of` finds it, and why it cannot be used: empty where it can."""
    try:
        choice = choice_of(section, model)
    except ConfigError as error:
        return None, str(error)
    has_key = choice.key_env is None or os.environ.get(choice.key_env, "").strip()
    return choice, "" if has_key else f"{choice.key_env} is not set"


def endpoint_of(choice: Choice) -> Callable[[], Coroutine[Any, Any, EndpointReport]]:
    """A function that asks the model's server for its window."""
    from everthread.providers.catalog import ask_endpoint

    key = os.environ.get(choice.key_env or "", "").strip() or None
    return lambda: ask_endpoint(choice.base_url, choice.model, api=choice.api, api_key=key)


async def load_window(choice: Choice, setting: int | None, store: Store | None, *, offline: bool = False) -> Window:
    """A model's window as it would be used: configured, learnt, as its server says, or catalogued."""
    from everthread.providers.catalog import LearntLimit, Window, resolve_window
    from everthread.providers.local import DEFAULT_WINDOW

    if choice.provider == "local":
        size = setting or DEFAULT_WINDOW
        return Window(size, "setting", f"{size:,} tokens, as the model is started here")
    stored = None if store is None else (await store.limits_for(choice.base_url, choice.model)).window
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
    """Resolve a model, its window, and the wrappers around it. `window`: what the caller says it is."""
    from everthread.conversation.options import Route
    from everthread.providers.catalog import resolve_window
    from everthread.providers.resilience import FallbackModel, FittingModel, RetryingModel, TimeLimitedModel
    from everthread.providers.resolve import create_model

    if model is not None and not isinstance(model, str):
        size, source = (model.window, "the model's own") if window is None else (window, "given")
        return Route(model.name, model.api, size, source, model.base_url, model=model)
    settings = config.model
    choice = choice_of(settings, model, api=api)
    skips_endpoint = choice.provider == "local" or own_client
    is_configured = model is None or settings.default in (None, model)
    setting = window or (settings.context_length if is_configured else None)  # that of the configured model
    resolved = await resolve_window(choice.model, setting=setting, ask=None if skips_endpoint else endpoint_of(choice))
    route = Route(choice.model, choice.api, resolved.tokens, str(resolved), choice.base_url, choice.provider)
    if own_client:
        return route
    first = create_model(
        choice, environment=os.environ, home=home_directory(), max_tokens=settings.max_tokens,
        context_length=window or settings.context_length if choice.provider == "local" else resolved.tokens,
    )  # fmt: skip
    if choice.provider == "local":
        route = replace(route, window=first.window, source="the local server's own", base_url=first.base_url)
    steady: StreamingModel = RetryingModel(FittingModel(TimeLimitedModel(first)), events=events)
    if fallback:
        steady = FallbackModel([steady, *fallback], refit=refit, events=events)
    return replace(route, model=steady)


async def refit(request: Request, model: StreamingModel) -> Request:
    """Make a request small enough for another model, for this call only; nothing is stored."""
    from everthread.core.tokens import TokenCounter

    size = TokenCounter(model.name).request(request.messages, system=request.system, tools=request.tools)
    if size < Budget.for_window(model.window).threshold:
        return request
    compaction = await acompress(
        request.messages, window=model.window, system=request.system, tools=request.tools, model=model.name
    )
    return replace(request, messages=compaction.messages)


_MOST_AUXILIARIES = 100
"""Most models of clients that write their own summaries; for further ones the journal writes."""


def summarizer_maker(
    config: Config,
    on_open: Callable[[Closing], object],
    *,
    floor: Summarizer | None = None,
    seconds: float | None = None,
) -> Callable[[SummarizerContext], Summarizer]:
    """A function that makes summarisers: the auxiliary model, else the main one, else the journal, which always works.

    Its summarisers share the auxiliary models, which `on_open` gets the callbacks to close of, and how long a route
    rests after a failure. `floor` stands for the journal; `seconds` bounds a call to an auxiliary model.
    """
    auxiliaries: dict[str, StreamingModel | None] = {}
    rest_until: dict[str, float] = {}

    def make(context: SummarizerContext) -> Summarizer:
        name = config.auxiliary.compression.model or context.route.name
        if name not in auxiliaries and len(auxiliaries) < _MOST_AUXILIARIES:
            model = _choose_auxiliary(name, context, config)
            if model is not None:
                on_open(closing_of(model))
            if model is not None and seconds is not None:
                from everthread.providers.resilience import TimeLimitedModel, TimeLimits

                model = TimeLimitedModel(model, TimeLimits(seconds, seconds, seconds))
            auxiliaries[name] = model
        return _make_chain(context, config, auxiliaries.get(name), floor, rest_until)

    return make


def _choose_auxiliary(name: str, context: SummarizerContext, config: Config) -> StreamingModel | None:
    """The configured model for summaries; None where none is configured or, with a notice, where it cannot be used."""
    from everthread.providers.resolve import create_model

    options, main = config.auxiliary.compression, config.model
    if options.model is None and options.provider in ("auto", "main") and options.base_url is None:
        return None
    via = main if options.provider == "main" else options
    try:
        return create_model(
            choice_of(via, name), environment=os.environ, home=home_directory(), context_length=options.context_length
        )
    except EverthreadError as error:
        context.events(
            "notice", text=f"auxiliary.compression: {name} cannot be used, others write the summaries: {error}"
        )
        return None


def _make_chain(
    context: SummarizerContext,
    config: Config,
    auxiliary: StreamingModel | None,
    floor: Summarizer | None,
    rest_until: dict[str, float],
) -> Summarizer:
    """On a route whose prefix is cached by marks the main model is first asked on that prefix.

    A local model writes summaries only where it is configured for it: a small one does worse than the journal.
    """
    from everthread.compaction.journal import JournalWriter

    main_model = context.route.model if context.route.provider != "local" else None
    last = floor or JournalWriter(context.counter)
    if auxiliary is None and main_model is None:
        return last
    from everthread.compaction.summarizers.chain import Price, SummarizerChain
    from everthread.compaction.summarizers.model import LlmSummarizer, WarmPrefixSummarizer
    from everthread.core.tokens import TokenCounter
    from everthread.providers.resilience import FittingModel, MeteredModel

    template, length = config.compression.template, config.auxiliary.compression.context_length
    routes: list[Summarizer] = []

    def price(model: MeteredModel) -> Price | None:
        return Price(model.name, ttl=config.prompt_caching.cache_ttl) if config.compression.economics else None

    def add_writer(model: MeteredModel, counter: TokenCounter) -> None:
        routes.append(LlmSummarizer(model, counter, context_length=length, template=template, price=price(model)))

    if auxiliary is not None:
        add_writer(MeteredModel(FittingModel(auxiliary), context.lost), TokenCounter(auxiliary.name))
    if main_model is not None:
        main = MeteredModel(main_model, context.lost)
        if context.route.caches_by_marks:
            warm = WarmPrefixSummarizer(
                main, context.counter, context.live, template=template, price=price(main), warm=context.warm
            )
            routes.append(warm)
        add_writer(main, context.counter)
    return SummarizerChain(routes, floor=last, clock=time.time, events=context.events, rest_until=rest_until)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The configured engine with its options; calling it makes an engine."""

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
        """Whether another process finds the same engine: not one that was registered in this process only."""
        from everthread.compaction.registry import find_engine

        return find_engine(self.name, home=home_directory()).source != "registered"

    def check(self) -> None:
        """Make one engine, so that a bad engine is an error at start and not at each request."""
        from everthread.compaction.engine import Services
        from everthread.compaction.journal import JournalWriter
        from everthread.core.tokens import TokenCounter
        from everthread.core.tokens.budget import Budget

        counter = TokenCounter(None)
        self(Services(JournalWriter(counter), counter, Budget.for_window(128_000), time.monotonic))

    def __call__(self, services: Services) -> ContextEngine:
        from everthread.compaction.registry import create_engine

        return create_engine(self.name, services, self.options, home=home_directory())
