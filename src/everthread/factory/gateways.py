"""Build a gateway from a configuration, and the dashboard, as a part of it or alone."""

from __future__ import annotations

import asyncio
import functools
import importlib
import ipaddress
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from everthread.config import Config, home_directory, load_config
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.core.types import Api
from everthread.errors import ConfigError, InputError, StoreError
from everthread.factory.agent import make_threads_api
from everthread.factory.caller_setup import make_caller_setup
from everthread.factory.conversations import make_session_options
from everthread.factory.model_setup import EngineChoice, make_summarizer_factory
from everthread.factory.stores import open_store, store_url
from everthread.gateway.contracts import Auth, Mode
from everthread.store.store import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from everthread.gateway.access.authentication import Authenticator
    from everthread.gateway.api.threads_api import ThreadsApi
    from everthread.gateway.app import GatewayApp
    from everthread.gateway.contracts import Auth, Limits
    from everthread.gateway.dashboard.access import LoginMode
    from everthread.gateway.dashboard.page_data import PageReader, WindowSource
    from everthread.gateway.dashboard.page_routes import Dashboard
    from everthread.gateway.dashboard.trials import RunTrial
    from everthread.gateway.filters import Feature
    from everthread.gateway.filters.compaction_answers import MakeItem
    from everthread.gateway.filters.telemetry import Telemetry
    from everthread.gateway.managed.manager import ProxyManager
    from everthread.gateway.middleware import SitePolicy
    from everthread.gateway.monitoring.store_watch import StoreWatch
    from everthread.gateway.proxy import Proxy
    from everthread.gateway.router import Upstream
    from everthread.gateway.server import Gateway
    from everthread.gateway.supervisor import WorkerSetup
    from everthread.thread.events import Listener


async def make_dashboard(
    config: Config,
    store: Store,
    *,
    sites: SitePolicy,
    trial: RunTrial | None = None,
    announce: Callable[[str], None] | None = None,
    links: Path | None = None,
) -> Dashboard:
    """Build the dashboard. To log in, `auth: none` needs a link, `keys` a key, `passthrough` the dashboard's own key.

    `links`: the folder with login links that several processes share.
    """
    from everthread.gateway.dashboard.access import SECRET_NAME, Access, LoginLinks
    from everthread.gateway.dashboard.page_routes import Dashboard, PageSettings

    key = _read_operator_key(config)
    logins: dict[Auth, LoginMode] = {
        "none": "local",
        "keys": "keys",
        "passthrough": "operator" if key else "off",
    }
    secret = await store.shared_secret(SECRET_NAME)
    access = Access(
        store,
        secret,
        login=logins[config.gateway.auth],
        operator_key=key,
        links=LoginLinks(links),
    )
    compression = config.compression
    settings = PageSettings(compression.threshold, compression.target_ratio)
    reader = make_page_reader(config, store)
    return Dashboard(
        reader,
        access,
        settings=settings,
        sites=sites,
        trial=trial,
        announce=announce,
    )


def make_page_reader(config: Config, store: Store) -> PageReader:
    """Return the reader of the data that the pages show."""
    from everthread.gateway.dashboard.page_data import PageReader

    return PageReader(
        store,
        make_window_source(config),
        ttl=CACHE_SECONDS[config.prompt_caching.cache_ttl],
    )


def make_window_source(config: Config) -> WindowSource:
    """Return a function that finds a model's window and threshold without network calls."""
    from everthread.gateway.dashboard.views import WindowSize
    from everthread.providers.catalog import find_catalogue_window

    options = make_session_options(config)

    @functools.cache
    def find_window(model: str, learnt_limit: int | None) -> WindowSize:
        setting = config.model.context_length if model == config.model.default else None
        catalogue = find_catalogue_window(model)
        tokens = min(
            size
            for size in (setting or catalogue.tokens, learnt_limit)
            if size is not None
        )
        source = (
            "learnt from the provider"
            if tokens == learnt_limit
            else "as configured"
            if setting
            else str(catalogue)
        )
        return WindowSize(tokens, options.budget(tokens).threshold, source.rstrip("."))

    return find_window


@asynccontextmanager
async def open_dashboard(
    config: Config,
    store: Store,
    *,
    port: int = 0,
    trial: RunTrial | None = None,
    announce: Callable[[str], None] | None = None,
) -> AsyncIterator[tuple[str, Dashboard]]:
    """Serve the dashboard of a store without a gateway, on this machine only. Yield its address and the application."""
    from everthread.core.prices import find_listed_window
    from everthread.gateway.middleware import SitePolicy
    from everthread.gateway.server import LoopServer, listen

    host = "127.0.0.1"
    pages = await make_dashboard(
        _override_gateway(config, auth="none"),
        store,
        sites=SitePolicy(),
        trial=trial,
        announce=announce,
    )
    listener = listen(port, host)
    address = f"http://{host}:{listener.getsockname()[1]}"
    server = LoopServer(
        pages, listener, grace_seconds=1.0, server_header=False, log_level="critical"
    )
    await server.start()
    # Load the table of windows now; the first page would wait for it.
    loading = asyncio.create_task(asyncio.to_thread(find_listed_window, "gpt-4o"))
    try:
        yield address, pages
    finally:
        loading.cancel()
        pages.close()
        await server.stop()


def _read_operator_key(config: Config) -> str | None:
    name = config.gateway.dashboard.key_env
    if name is None:
        return None
    key = os.environ.get(name, "")
    if len(key) < 16:
        raise ConfigError(
            f"gateway.dashboard.key_env names the environment variable {name}, which holds "
            + ("a key of fewer than 16 characters" if key else "nothing")
        )
    return key


_STORE_CHECK_SECONDS = 1.0
STORE_WAIT_SECONDS = 0.7
"""Seconds that a request waits for an unresponsive database before it continues without the store."""
STORE_SHUTDOWN_SECONDS = 10.0
"""Seconds that a gateway waits at its end for a database that does not answer."""
_LOG = logging.getLogger("everthread.gateway")
INDEX_NICENESS = 10
"""A lower priority than that of compactions, because no caller waits for the index."""
COMPACTION_SECONDS_SHARE = 0.75
SUMMARY_SECONDS_SHARE = 0.5
"""Shares of a request's time limit: for a compaction, and for a model's summary within it."""


@asynccontextmanager
async def open_gateway(
    config: Config | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    upstreams: Sequence[Upstream] | None = None,
    auth: Auth | None = None,
    store: Store | None = None,
    authenticator: Authenticator | None = None,
    trial: RunTrial | None = None,
    announce: Callable[[str], None] | None = None,
    worker: WorkerSetup | None = None,
    is_gateway_process: bool = False,
) -> AsyncIterator[Gateway]:
    """Open a listening gateway. Arguments override the configuration; a store that is passed in stays open.

    `trial`: replays a stored thread for the dashboard. `announce`: called with the path of a login link. `worker`: the
    setup of this process if it is one of several. `is_gateway_process`: whether the process runs nothing else, so that
    the process for compactions starts at once and a separate process indexes.
    """
    from everthread.gateway.server import Gateway

    settings = _override_gateway(
        config or load_config(), host=host, port=port, auth=auth
    )
    options = settings.gateway
    routes = _choose_routes(settings, upstreams, worker)
    end_event = asyncio.Event()  # set when the gateway ends
    async with AsyncExitStack() as stack:
        routes = await start_local_models(routes, settings, stack)
        store = store or await _open_own_store(
            settings, stack, end_event, index_in_process=is_gateway_process
        )
        authenticator = authenticator or await _open_authenticator(
            options.auth, store, options.host, stack
        )
        manager, service = await _open_service(
            settings,
            store,
            routes,
            stack,
            authenticator=authenticator,
            trial=trial,
            announce=announce,
            worker=worker,
        )
        server = Gateway(
            service,
            host=options.host,
            port=options.port,
            listener=worker.listener if worker else None,
        )
        gateway = await stack.enter_async_context(server)
        stack.callback(end_event.set)
        if is_gateway_process:
            _warm_up(manager, stack)
        if service.pages is not None:
            service.pages.settings = replace(service.pages.settings, base=gateway.url)
        yield gateway


def _warm_up(manager: ProxyManager, stack: AsyncExitStack) -> None:
    """Start the process for compactions, and load the modules for the first request in the background."""
    manager.warm()
    preload_task = asyncio.create_task(preload())
    stack.callback(preload_task.cancel)


def _choose_routes(
    config: Config, upstreams: Sequence[Upstream] | None, worker: WorkerSetup | None
) -> list[Upstream]:
    """Return the given or configured upstreams with their keys; those of a worker have their keys already."""
    routes = list(upstreams) if upstreams is not None else list_upstreams(config)
    return add_keys(routes, config.gateway.auth) if worker is None else routes


def _override_gateway(config: Config, **overrides: Any) -> Config:
    """Return the configuration with those settings of the gateway that are not None."""
    update = {name: value for name, value in overrides.items() if value is not None}
    return config.model_copy(
        update={"gateway": config.gateway.model_copy(update=update)}
    )


async def _open_own_store(
    config: Config,
    stack: AsyncExitStack,
    end_event: asyncio.Event,
    *,
    index_in_process: bool,
) -> Store:
    """Open the configured store, and close it with the stack even if it no longer answers.

    `index_in_process`: whether to index in a separate process.
    """
    from everthread.store.index_process import index_waiting
    from everthread.thread.worker import WorkerProcesses

    indexers = WorkerProcesses(1, niceness=INDEX_NICENESS)
    stack.push_async_callback(indexers.close)
    store = await asyncio.to_thread(
        open_store, store_url(config), away_seconds=STORE_WAIT_SECONDS
    )
    stack.push_async_callback(store.close)
    if index_in_process:
        store.use_index_process(functools.partial(indexers.call, index_waiting))
    guard_task = asyncio.create_task(_give_up_unresponsive_store(store, end_event))
    stack.callback(guard_task.cancel)
    return store


async def _open_service(
    config: Config,
    store: Store,
    upstreams: Sequence[Upstream],
    stack: AsyncExitStack,
    *,
    authenticator: Authenticator | None,
    trial: RunTrial | None,
    announce: Callable[[str], None] | None,
    worker: WorkerSetup | None,
) -> tuple[ProxyManager, GatewayApp]:
    """Build the application: the proxy and the apps for the gateway's own paths."""
    from everthread.gateway.access.authentication import (
        TENANT_SECRET_NAME,
        ForwardedAuthenticator,
    )
    from everthread.gateway.api.compact import PATH, CompactApp
    from everthread.gateway.app import GatewayApp
    from everthread.gateway.contracts import Limits
    from everthread.gateway.middleware import SitePolicy

    options = config.gateway
    limits = Limits(**options.limits.model_dump())
    watch = _make_store_watch(store)
    workers = worker.count if worker else 1
    manager, proxy = await _open_proxy(
        config, store, upstreams, stack, limits=limits, watch=watch, workers=workers
    )
    threads_api: ThreadsApi | None = None
    if options.native.enabled:
        threads_api = make_threads_api(
            config, store, limits, has_no_keys=authenticator is None
        )
        stack.push_async_callback(threads_api.close)
        await threads_api.start()
    sites = SitePolicy(
        options.allowed_origins,
        (options.host, *options.allowed_hosts),
        has_keys=options.auth == "keys",
    )
    pages: Dashboard | None = None
    if options.dashboard.enabled:
        links = worker.links if worker else None
        pages = await make_dashboard(
            config, store, sites=sites, trial=trial, announce=announce, links=links
        )
    mcp = _McpMount(store)
    stack.push_async_callback(mcp.close)
    compact_app = CompactApp(manager, limits, upstreams[0].root)
    return manager, GatewayApp(
        proxy,
        authenticator=authenticator,
        threads_api=threads_api,
        find_problem=lambda: _find_store_problem(store),
        site_policy=sites,
        mounted_apps={"/mcp": mcp, PATH: compact_app},
        pages=pages,
        store_watch=watch,
        forwarded_authenticator=ForwardedAuthenticator(
            await store.shared_secret(TENANT_SECRET_NAME)
        ),
    )


async def _open_proxy(
    config: Config,
    store: Store,
    upstreams: Sequence[Upstream],
    stack: AsyncExitStack,
    *,
    limits: Limits,
    watch: StoreWatch | None,
    workers: int,
) -> tuple[ProxyManager, Proxy]:
    """Build the manager, which decides on requests, and the proxy, which forwards them."""
    from everthread.gateway.monitoring.event_reports import EventReporter, FailureLog
    from everthread.gateway.monitoring.metrics import Metrics
    from everthread.gateway.proxy import Proxy
    from everthread.gateway.router import Routes
    from everthread.thread.worker import MAX_PROCESSES

    # Closed after the manager.
    models = await stack.enter_async_context(AsyncExitStack())
    metrics = Metrics()
    failures = FailureLog(store.add_failures)
    stack.push_async_callback(failures.close)
    manager = await _make_manager(
        config,
        store,
        upstreams,
        models,
        EventReporter(metrics, failures),
        processes=max(1, MAX_PROCESSES // workers),
        has_sole_use=_claim_sole_use(store, stack, workers),
    )
    stack.push_async_callback(manager.close)
    features = make_features(
        include_usage=config.gateway.include_usage,
        make_item=manager.make_compaction_item,
        telemetry=_make_telemetry(),
    )
    proxy = Proxy(
        Routes(upstreams),
        manager,
        features=features,
        limits=limits,
        metrics=metrics,
        watch=watch,
        failures=failures,
    )
    return manager, proxy


def make_features(
    *,
    include_usage: bool = True,
    make_item: MakeItem | None = None,
    telemetry: Telemetry | None = None,
) -> list[Feature]:
    """List the proxy's features, from the client's side to the upstream's.

    To remove a feature, delete its file in `gateway/filters/` and its line here.
    """
    from everthread.gateway.filters.answer_recall import RecallRounds
    from everthread.gateway.filters.charging import Charging
    from everthread.gateway.filters.compaction_answers import CompactionAnswers
    from everthread.gateway.filters.read_answer import ReadAnswer
    from everthread.gateway.filters.usage_option import UsageOption

    features: list[Feature | None] = [
        telemetry,
        Charging(),
        UsageOption() if include_usage else None,
        ReadAnswer(),
        CompactionAnswers(make_item) if make_item is not None else None,
        RecallRounds(),
    ]
    return [feature for feature in features if feature is not None]


def _claim_sole_use(
    store: Store, stack: AsyncExitStack, workers: int
) -> Callable[[], bool]:
    """Claim to be the only gateway on the store; return a function that returns whether the claim still holds."""
    from everthread.thread.caller.caller_setup import is_never_sole_writer

    claim = store.database.claim_sole_use() if workers == 1 else None
    if claim is None:
        return is_never_sole_writer
    stack.callback(claim.close)
    return claim.check_is_alone


async def preload() -> None:
    """Load, in a thread, the modules that the first request needs, then freeze the process's memory."""
    from everthread.gateway.server import tune_process

    def load() -> None:
        import anyio
        import httpx2

        from everthread.compaction.summarizers import chain, model  # noqa: F401 - for the first compaction
        from everthread.core.canonical_usage import CanonicalUsage
        from everthread.core.prices import compute_call_cost
        from everthread.core.tokens.tokenizers import load_tokenizer
        from everthread.providers import model_choice  # noqa: F401 - for the first summary

        httpx2.Client().close()
        # Load anyio's backend, which the question for a model's window needs.
        anyio.run(anyio.sleep, 0)
        compute_call_cost(CanonicalUsage(1, 1), "gpt-4o", time=datetime.now(UTC))
        load_tokenizer("gpt-4o")

    try:
        await asyncio.to_thread(load)
    except Exception as error:  # noqa: BLE001 - requests load it themselves then, and wait for it
        _LOG.warning(
            "the gateway is not warmed up: %s: %s", type(error).__name__, error
        )
    tune_process()


class _McpMount:
    """The app at `/mcp`. The first call loads the SDK in a thread, which takes most of a second.

    Without the SDK, the answer says which package to install. One task opens and closes the application, as the SDK's
    task group requires.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._app: asyncio.Future[ASGIApp] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._app))
        app = await asyncio.shield(self._app)
        await app(scope, receive, send)

    async def _run(self, ready: asyncio.Future[ASGIApp]) -> None:
        try:
            mcp = await asyncio.to_thread(
                importlib.import_module, "everthread.gateway.mcp_server"
            )
        except ImportError as error:
            from starlette.responses import JSONResponse

            message = f"/mcp needs a package that is not installed ({error}): pip install 'everthread[mcp]'"
            ready.set_result(
                JSONResponse(
                    {"error": {"code": "not_installed", "message": message}},
                    status_code=501,
                )
            )
            return
        try:
            async with mcp.application(
                mcp.make_server(mcp.LookupTools(self._store))
            ) as app:
                ready.set_result(app)
                await asyncio.Event().wait()  # until it is closed
        except Exception as error:
            self._app = None  # the next call tries again
            if ready.done():
                raise
            ready.set_exception(error)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def list_upstreams(config: Config, mode: Mode | None = None) -> list[Upstream]:
    """Return the configured upstreams with their keys; by default OpenAI, Anthropic and Google, with clients' keys.

    `mode`: replaces the configured modes.
    """
    from everthread.gateway.router import CHATGPT_URL, Upstream

    options = config.gateway
    default_mode = mode or options.mode
    if not options.upstreams:
        from everthread.providers.clients import ANTHROPIC_URL, GOOGLE_URL, OPENAI_URL

        return [
            Upstream("openai", OPENAI_URL, (), "openai", mode=default_mode),
            Upstream(
                "anthropic",
                ANTHROPIC_URL,
                ("claude-*",),
                "anthropic",
                mode=default_mode,
            ),
            Upstream("chatgpt", CHATGPT_URL, (), "openai", mode=default_mode),
            Upstream("google", GOOGLE_URL, (), "gemini", mode=default_mode),
        ]
    return [
        Upstream(
            options_entry.name,
            options_entry.url,
            models=options_entry.models,
            family=options_entry.protocol,
            api_key=_read_key(options_entry.api_key_env),
            mode=mode or options_entry.mode or options.mode,
        )
        for options_entry in options.upstreams
    ]


_USUAL_KEY_VARIABLES = {
    "openai.com": "OPENAI_API_KEY",
    "anthropic.com": "ANTHROPIC_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
    "googleapis.com": "GEMINI_API_KEY",
}
"""By domain of a provider, the usual environment variable of its key. A key is sent only to its provider."""


def add_keys(upstreams: Sequence[Upstream], auth: Auth) -> list[Upstream]:
    """Add the gateway's own keys if clients need a key of this gateway; otherwise remove all keys."""
    # A ChatGPT login belongs to a person; no key of this gateway can replace it.
    if auth == "keys":
        return [
            add_own_key(upstream)
            for upstream in upstreams
            if upstream.api_key is not None or not _has_no_key(upstream)
        ]
    names = ", ".join(
        upstream.name for upstream in upstreams if upstream.api_key is not None
    )
    if names and auth == "passthrough":
        raise InputError(
            f"under gateway.auth: passthrough a client's own credential goes upstream; {names} has an api_key_env, "
            "which anybody could use then: leave it out, or use gateway.auth: keys"
        )
    if names:
        _LOG.warning(
            "gateway.auth is none: the client's own key goes to %s; that of api_key_env is for gateway.auth: keys",
            names,
        )
    return [replace(upstream, api_key=None) for upstream in upstreams]


def _has_no_key(upstream: Upstream) -> bool:
    """Return whether an upstream is left out because it can have no key (logins) or has none (Google by default)."""
    from everthread.providers.clients import GOOGLE_URL

    return upstream.serves_logins or (
        upstream.url == GOOGLE_URL and not os.environ.get("GEMINI_API_KEY")
    )


def add_own_key(upstream: Upstream) -> Upstream:
    """Add the provider's usual key if none is configured, because with `auth: keys` no client's key is forwarded.

    A server in a private network may need no key.
    """
    host = urlsplit(upstream.url).hostname or ""
    if (
        upstream.api_key is not None
        or upstream.url == "local"
        or _is_private_host(host)
    ):
        return upstream
    name = next(
        (
            name
            for domain, name in _USUAL_KEY_VARIABLES.items()
            if f".{host}".endswith(f".{domain}")
        ),
        None,
    )
    key = os.environ.get(name) if name else None
    if not key:
        raise ConfigError(
            f"under gateway.auth: keys the upstream {upstream.name} needs a key of the gateway's own: "
            + (f"set {name}, or name" if name else "name")
            + " the variable that has it in api_key_env"
        )
    return replace(upstream, api_key=key)


def _is_private_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def _read_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise ConfigError(
            f"gateway.upstreams names the environment variable {name}, which is not set"
        )
    return key


async def _make_manager(
    config: Config,
    store: Store,
    upstreams: Sequence[Upstream],
    stack: AsyncExitStack,
    listener: Listener,
    *,
    processes: int,
    has_sole_use: Callable[[], bool],
) -> ProxyManager:
    from everthread.compaction.summarizers.chain import DeferredJournal
    from everthread.gateway.managed.manager import ProxyManager
    from everthread.providers.catalog import ask_endpoint, resolve_window

    seconds = config.gateway.limits.manage_seconds
    keys = {upstream.root: upstream.api_key for upstream in upstreams}
    summarizers = make_summarizer_factory(
        config,
        stack.push_async_callback,
        fallback_summarizer=DeferredJournal(),
        seconds=SUMMARY_SECONDS_SHARE * seconds,
    )

    async def find_window(api: Api, model: str, upstream: str, betas: str) -> int:
        address = upstream if api in ("anthropic", "gemini") else f"{upstream}/v1"
        setting = config.model.context_length if model == config.model.default else None
        ask = functools.partial(
            ask_endpoint, address, model, api=api, api_key=keys.get(upstream)
        )
        return (
            await resolve_window(model, setting=setting, ask_server=ask, betas=betas)
        ).tokens

    setup = await make_caller_setup(
        config, store, summarizer=summarizers, window=find_window, listener=listener
    )
    setup = replace(
        setup,
        uses_processes=EngineChoice.from_config(config).is_built_in,
        compaction_seconds=COMPACTION_SECONDS_SHARE * seconds,
        compaction_processes=processes,
        is_sole_writer=has_sole_use,
    )
    return ProxyManager(
        setup, recall=config.gateway.recall, cache_markers=config.gateway.cache_marks
    )


def _make_telemetry() -> Telemetry | None:
    """Return the telemetry; None if the extra `otel` is not installed or not set up."""
    try:
        from everthread.gateway.filters.telemetry import Telemetry
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return None
    return Telemetry.from_process()


def _make_store_watch(store: Store) -> StoreWatch | None:
    """Return the watch of a database server; None for a file, which is always reachable."""
    from everthread.gateway.monitoring.store_watch import StoreWatch

    if store.database.dialect.name != "postgresql":
        return None
    return StoreWatch(
        lambda: store.get_state("gateway", "watch"),
        answered_at=lambda: store.answered_at,
    )


async def _find_store_problem(store: Store) -> str | None:
    """Return why the gateway is not ready; None if it is."""
    try:
        async with asyncio.timeout(_STORE_CHECK_SECONDS):
            # A full disk can still be read.
            await store.put_state("gateway", "readyz", time.time())
    except TimeoutError:
        return "the store does not answer"
    except StoreError as error:
        _LOG.warning("not ready: %s", error)
        return "the store takes nothing"
    return None


async def _give_up_unresponsive_store(store: Store, end_event: asyncio.Event) -> None:
    """When the gateway ends, stop waiting for an unresponsive database, so that the gateway can stop."""
    await end_event.wait()
    while True:
        await asyncio.sleep(STORE_SHUTDOWN_SECONDS)
        with suppress(StoreError):
            await store.get_state("gateway", "watch")
        if store.is_unresponsive:
            _LOG.warning(
                "the store does not answer; what was not stored yet is given up"
            )
            store.fail_all()


async def _open_authenticator(
    auth: Auth, store: Store, host: str, stack: AsyncExitStack
) -> Authenticator | None:
    """Return the authenticator; None for `auth: none`, which only a loopback address allows."""
    from everthread.gateway.access.authentication import (
        TENANT_SECRET_NAME,
        AcceptedCredentials,
        KeyAuthenticator,
        PassthroughAuthenticator,
    )
    from everthread.gateway.middleware import is_loopback

    if auth == "none":
        if not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or "
                "gateway.auth: keys"
            )
        return None
    if auth == "passthrough":
        credentials = AcceptedCredentials(store)
        stack.push_async_callback(credentials.close)
        return PassthroughAuthenticator(
            await store.shared_secret(TENANT_SECRET_NAME), credentials
        )
    keys = KeyAuthenticator(store)
    stack.push_async_callback(keys.close)
    if not is_loopback(host) and not await keys.has_keys():
        raise InputError(
            f"to listen on {host} the gateway needs an API key: make one with `everthread keys create`"
        )
    return keys


# A model on this machine as an upstream: `local`, or `local:` and a model's name or file

LOCAL_URL = "local"


def is_local(url: str) -> bool:
    return url == LOCAL_URL or url.startswith(f"{LOCAL_URL}:")


async def start_local_models(
    upstreams: Sequence[Upstream], config: Config, stack: AsyncExitStack
) -> list[Upstream]:
    """Start a local model for each upstream that names one; return the upstreams with the models' addresses."""
    return [
        await _start_local_model(upstream, config, stack)
        if is_local(upstream.url)
        else upstream
        for upstream in upstreams
    ]


async def _start_local_model(
    upstream: Upstream, config: Config, stack: AsyncExitStack
) -> Upstream:
    from everthread.providers.local import SMOLLM2, LocalModel, find_model_file

    name = upstream.url.partition(":")[2] or None
    path = find_model_file(name, home_directory())
    is_own_model = name is None or not name.lower().endswith(".gguf")
    window = config.model.context_length or SMOLLM2.trained_window
    model = LocalModel(path, name=SMOLLM2.name if is_own_model else None, window=window)
    stack.push_async_callback(model.aclose)
    address, key = await model.serve()
    return replace(upstream, url=address, api_key=key)
