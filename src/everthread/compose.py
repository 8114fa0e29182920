"""Where concrete classes are named: from a configuration or a URL to the parts that do the work."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from everthread.config import Config, home_directory, load_config
from everthread.core.budget import Budget
from everthread.core.exchange import Api, Request, StreamingModel, System
from everthread.core.messages import Message
from everthread.core.summary import Compaction, Summarizer, TemplateName
from everthread.errors import ConfigError, InputError
from everthread.stores.base import NewSession, Store

if TYPE_CHECKING:
    from everthread.agent.base import Approver, Tool
    from everthread.agent.loop import Agent
    from everthread.models.wrapper import ModelEvent
    from everthread.session.conversation import Conversation
    from everthread.session.events import Listener
    from everthread.session.setup import Desk, Hooks, Route, SessionOptions, Setup
from everthread.stores.database import Database

T = TypeVar("T")
Closing = Callable[[], Coroutine[Any, Any, Any]]
STORE_FILE = "everthread.db"


def store_url(config: Config) -> str:
    """Where this configuration keeps conversations."""
    return config.store.url or "sqlite:///" + str(home_directory() / STORE_FILE).replace("%", "%25")


def open_store(url: str | Path, *, create: bool = True) -> Store:
    """The store at a URL (`sqlite:///path`, `postgresql://…`) or in a SQLite file, its schema brought up to date.

    `create=False`: a place where nothing is kept is an error (`NoStoreError`), and nothing is made there.
    """
    from everthread.stores.sql_store import SqlStore

    database = _database(url)
    database.prepare(create=create)
    return SqlStore(database)


def migrate_store(url: str | Path) -> tuple[str, int, int]:
    """Bring a store's schema up to date: where it is, the schema's number before and after."""
    from everthread.stores import schema

    database = _database(url)
    before = database.prepare()
    database.close()
    return database.location, before, schema.latest(database.dialect.name)


def _database(url: str | Path) -> Database:
    text = str(url)
    scheme = urlsplit(text).scheme
    if scheme in ("postgresql", "postgres"):
        try:
            from everthread.stores.postgres import PostgresDatabase
        except ImportError as error:
            raise ConfigError(
                f"a store on PostgreSQL needs a driver that is not here ({error}): pip install everthread[postgres]"
            ) from error
        return PostgresDatabase(text)
    if scheme == "sqlite" or isinstance(url, Path) or "://" not in text:
        from everthread.stores.sqlite import SqliteDatabase

        path = unquote(text.removeprefix("sqlite://").removeprefix("/")) if scheme == "sqlite" else text
        return SqliteDatabase(Path(path).expanduser())
    raise ConfigError(f"store url {text!r} is none of sqlite:///path, postgresql://user@host/database or a file")


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of async work, from a script or from inside a running event loop (then in a thread of its own)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def compress(
    messages: Sequence[Message],
    *,
    window: int,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    focus: str | None = None,
    summarizer: str | Summarizer = "auto",
    template: TemplateName = "handoff",
    preview: bool = False,
) -> Compaction:
    """Make a history smaller: head, summary, tail. Works in scripts and inside a running event loop.

    `summarizer`: `auto`, `extractive`, or a summariser of your own. `preview` writes no summary: it tells what would be
    kept, cut and summarised.
    """
    return run_sync(
        acompress(
            messages, window=window, system=system, tools=tools, model=model, focus=focus, summarizer=summarizer,
            template=template, preview=preview,
        )
    )  # fmt: skip


async def acompress(
    messages: Sequence[Message],
    *,
    window: int,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    focus: str | None = None,
    summarizer: str | Summarizer = "auto",
    template: TemplateName = "handoff",
    preview: bool = False,
) -> Compaction:
    """The async form of `compress`."""
    from everthread.core.tokens import TokenCounter
    from everthread.engines.base import Services
    from everthread.engines.compressor import ContextCompressor

    counter = TokenCounter(model)
    writer = _summarizer(summarizer, counter)
    services = Services(writer, counter, Budget.for_window(window), time.monotonic)
    engine = ContextCompressor(services, template=template)
    return await engine.compress(messages, focus_topic=focus, system=system, tools=tools, manual=True, dry_run=preview)


def _summarizer(asked: str | Summarizer, counter: Any) -> Summarizer:
    from everthread.summarizers.extractive import ExtractiveSummarizer

    if not isinstance(asked, str):
        return asked
    if asked in ("auto", "extractive"):
        return ExtractiveSummarizer(counter)
    raise InputError(f"summarizer={asked!r} is unknown; use auto, extractive, or a summariser of your own")


# Conversations


async def open_conversation(
    model: str | StreamingModel | None = None,
    *,
    config: Config | None = None,
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
    project: Path | None = None,
    model_events: Callable[[ModelEvent], None] | None = None,
) -> Conversation:
    """A conversation with a model: new, or resumed by any id of its thread.

    `model`: a name, or a model of your own; None: as configured. `own_client`: you send what `prepare` gives and hand
    the answer to `record`; no key is needed here. `fallback`: models that step in when the first is out of service.
    `model_events` hears of retries instead of the conversation, for who goes on in others with the same model.
    What is opened here is closed with the conversation.
    """
    from everthread.session.conversation import Conversation

    settings = config or load_config()
    opened: list[Closing] = []
    if store is None or isinstance(store, str | Path):
        store = await asyncio.to_thread(open_store, store if store is not None else store_url(settings))
        opened.append(store.close)
    told: list[Conversation] = []

    def model_event(event: ModelEvent) -> None:
        for conversation in told:
            conversation.on_model_event(event)

    try:
        route = await _route(
            model, settings, api=api, own_client=own_client, fallback=fallback, events=model_events or model_event
        )
        if route.model is not model and route.model is not None:
            opened.insert(0, _closing(route.model))
        setup = _setup(store, route, settings, opened, system=system, summarizer=summarizer, project=project)
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


# Agents


async def open_agent(
    config: Config | None = None,
    *,
    model: str | StreamingModel | None = None,
    resume: str | None = None,
    workspace: str | Path | None = None,
    approve: Approver | None = None,
    yes: bool = False,
    store: Store | str | Path | None = None,
    listener: Listener | None = None,
    tools: Sequence[Tool] | None = None,
    session: NewSession | None = None,
    summarizer: str | Summarizer = "auto",
    api: Api | None = None,
    fallback: Sequence[StreamingModel] = (),
) -> Agent:
    """An agent in a workspace (default: the current folder): new, or resumed by any id of its thread.

    `approve` decides what needs leave; without it only what `approvals.txt` in the home allows is done, and with `yes`
    everything. `tools`: these instead of the built-in ones. What is opened here is closed with the agent.
    """
    from everthread.agent.approval import Approvals, read_rules
    from everthread.agent.base import ToolContext
    from everthread.agent.environment import child_environment
    from everthread.agent.equipment import Equipment
    from everthread.agent.journal import Journal
    from everthread.agent.loop import Agent
    from everthread.agent.memory import Memory, memory_folder

    settings, home = config or load_config(), home_directory()
    options, place = settings.agent, _workspace(workspace)
    allowed = Approvals(everything=True) if yes else approve or Approvals(read_rules(home))
    opened: list[Closing] = []
    if store is None or isinstance(store, str | Path):
        store = await asyncio.to_thread(open_store, store if store is not None else store_url(settings))
        opened.append(store.close)
    try:
        memory = Memory(memory_folder(home, await _tenant(store, resume, session)))
        equipment = Equipment(place, memory, allowed, options.instructions_chars, tools)
        conversation = await open_conversation(
            model, config=settings, store=store, resume=resume, system=equipment.prompt,
            tools=[tool.schema for tool in equipment.tools], summarizer=summarizer, listener=equipment.hear,
            hooks=equipment.hooks(store), session=session, api=api, fallback=fallback, project=place,
            model_events=equipment.hear_model,
        )  # fmt: skip
    except BaseException:
        for close in opened:
            await close()
        raise

    async def routes(name: str) -> Route:
        route = await _route(name, settings, api=None, own_client=False, fallback=(), events=equipment.hear_model)
        if route.model is not None:
            opened.insert(0, _closing(route.model))
        return route

    environment = child_environment(os.environ, _key_names(settings))
    equipment.agent = Agent(
        conversation, equipment.tools, context=ToolContext(place, home, conversation, environment=environment),
        approve=allowed, max_rounds=options.max_rounds, parallel=options.parallel, listener=listener,
        journal=Journal(ttl=_SECONDS[settings.prompt_caching.cache_ttl]), memory=memory, routes=routes, closing=opened,
    )  # fmt: skip
    return equipment.agent


_SECONDS = {"5m": 300.0, "1h": 3_600.0}


def _workspace(given: str | Path | None) -> Path:
    place = Path(given or ".").expanduser().resolve()
    if not place.is_dir():
        raise InputError(f"the workspace {place} is no folder")
    return place


async def _tenant(store: Store, resume: str | None, session: NewSession | None) -> str:
    """Whose memory it is."""
    if session is not None or resume is None:
        return (session or NewSession()).tenant
    return (await store.resolve(resume)).tenant


def _key_names(config: Config) -> list[str]:
    """The environment variables the configuration names for keys."""
    named = (config.model.api_key_env, config.auxiliary.compression.api_key_env)
    return [name for name in named if name]


def _closing(model: StreamingModel) -> Closing:
    from everthread.models.wrapper import close_model

    return lambda: close_model(model)


def session_options(config: Config) -> SessionOptions:
    """What the configuration says of a conversation."""
    from everthread.session.setup import SessionOptions

    compression = config.compression.model_dump(exclude={"template"})
    output = config.tool_output.model_dump()
    ttl, cap = config.prompt_caching.cache_ttl, config.model.max_tokens
    return SessionOptions(**compression, **output, cache_ttl=ttl, max_tokens=cap)


def _setup(
    store: Store,
    route: Route,
    config: Config,
    opened: list[Closing],
    *,
    system: System | Callable[[], System],
    summarizer: str | Summarizer,
    project: Path | None,
) -> Setup:
    from everthread.engines.base import ContextEngine, Services
    from everthread.engines.registry import create_engine
    from everthread.session.setup import Setup

    name = config.context.engine
    options = dict(config.engines.get(name, {}))
    if name == "compressor":
        options.setdefault("template", config.compression.template)

    def engine(services: Services) -> ContextEngine:
        return create_engine(name, services, options, home=home_directory(), project=project)

    def writer(desk: Desk) -> Summarizer:
        if summarizer != "auto":
            return _summarizer(summarizer, desk.counter)
        auxiliary = auxiliary_model(desk, config)
        if auxiliary is not None:
            opened.append(_closing(auxiliary))
        return summarizer_for(desk, config, auxiliary)

    return Setup(store, route, engine, writer, session_options(config), system)


async def _route(
    model: str | StreamingModel | None,
    config: Config,
    *,
    api: Api | None,
    own_client: bool,
    fallback: Sequence[StreamingModel],
    events: Callable[[ModelEvent], None],
) -> Route:
    """Which model is talked to, its window, and the wrappers around it."""
    from everthread.models.choose import choose, choose_model
    from everthread.models.endpoint import ask_endpoint
    from everthread.models.fallback import FallbackModel
    from everthread.models.fitting import FittingModel
    from everthread.models.limits import TimeLimitedModel
    from everthread.models.retry import RetryingModel
    from everthread.models.window import resolve_window
    from everthread.session.setup import Route

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
    window = await resolve_window(choice.model, setting=settings.context_length, ask=None if known else ask)
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


def summarizer_for(desk: Desk, config: Config, auxiliary: StreamingModel | None = None) -> Summarizer:
    """Who writes summaries: the auxiliary model, else the main one, else the extract, which always can.

    On a route whose prefix is cached by marks the main model is asked on that prefix first. A local model writes none
    unless it is named for it: a small one does worse than the extract.
    """
    from everthread.core.tokens import TokenCounter
    from everthread.models.fitting import FittingModel
    from everthread.models.metered import MeteredModel
    from everthread.summarizers.chain import SummarizerChain
    from everthread.summarizers.extractive import ExtractiveSummarizer
    from everthread.summarizers.llm import LlmSummarizer
    from everthread.summarizers.llm_warm import WarmPrefixSummarizer

    template, options = config.compression.template, config.auxiliary.compression
    routes: list[Summarizer] = []
    if auxiliary is not None:
        counter, metered = TokenCounter(auxiliary.name), MeteredModel(FittingModel(auxiliary), desk.lost)
        routes.append(LlmSummarizer(metered, counter, context_length=options.context_length, template=template))
    if desk.route.model is not None and desk.route.provider != "local":
        main = MeteredModel(desk.route.model, desk.lost)
        if desk.route.caches_by_marks:
            routes.append(WarmPrefixSummarizer(main, desk.counter, desk.live, template=template))
        routes.append(LlmSummarizer(main, desk.counter, context_length=options.context_length, template=template))
    floor = ExtractiveSummarizer(desk.counter)
    return SummarizerChain(routes, floor=floor, clock=time.time, events=desk.events) if routes else floor


def auxiliary_model(desk: Desk, config: Config) -> StreamingModel | None:
    """The model the configuration names for summaries; None where it names none."""
    from everthread.models.choose import choose_model

    options, main = config.auxiliary.compression, config.model
    if options.model is None and options.provider in ("auto", "main") and options.base_url is None:
        return None
    via = main if options.provider == "main" else options
    return choose_model(
        options.model or desk.route.name, environment=os.environ, home=home_directory(), provider=via.provider,
        base_url=via.base_url, api_key_env=via.api_key_env, context_length=options.context_length,
    )  # fmt: skip
