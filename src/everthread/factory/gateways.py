"""Build a gateway from a configuration."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everthread.config import Config, load_config
from everthread.core.types import Api
from everthread.errors import InputError, StoreError
from everthread.factory.agent import make_threads_api
from everthread.factory.caller_setup import make_caller_setup
from everthread.factory.dashboards import make_dashboard
from everthread.factory.model_setup import EngineChoice, make_summarizer_factory
from everthread.factory.stores import open_store, store_url
from everthread.factory.upstreams import add_keys, list_upstreams, start_local_models
from everthread.gateway.contracts import Auth
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.gateway.access.authentication import Authenticator
    from everthread.gateway.api.threads_api import ThreadsApi
    from everthread.gateway.app import GatewayApp
    from everthread.gateway.contracts import Auth, Limits
    from everthread.gateway.dashboard.page_routes import Dashboard
    from everthread.gateway.dashboard.trials import RunTrial
    from everthread.gateway.features import Feature
    from everthread.gateway.filters.compaction_answers import MakeItem
    from everthread.gateway.filters.telemetry import Telemetry
    from everthread.gateway.managed.manager import ProxyManager
    from everthread.gateway.monitoring.store_watch import StoreWatch
    from everthread.gateway.proxy import Proxy
    from everthread.gateway.router import Upstream
    from everthread.gateway.server import Gateway
    from everthread.gateway.worker_process import WorkerSetup
    from everthread.thread.events import Listener


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
            service.pages.base_url = gateway.url
        yield gateway


def _warm_up(manager: ProxyManager, stack: AsyncExitStack) -> None:
    """Start the process for compactions, and load the modules for the first request in the background."""
    manager.start_worker()
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
    from everthread.thread.engines.worker_processes import WorkerProcesses

    indexers = WorkerProcesses(1, niceness=INDEX_NICENESS)
    stack.push_async_callback(indexers.close)
    store = await asyncio.to_thread(
        open_store, store_url(config), away_seconds=STORE_WAIT_SECONDS
    )
    stack.push_async_callback(store.close)
    if index_in_process:
        store.use_index_process(functools.partial(indexers.call, index_waiting))
    abandon_task = asyncio.create_task(_abandon_unresponsive_store(store, end_event))
    stack.callback(abandon_task.cancel)
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
    from everthread.gateway.mcp_mount import McpMount
    from everthread.gateway.site_policy import SitePolicy

    options = config.gateway
    limits = Limits(**options.limits.model_dump())
    watch = _make_store_watch(store)
    workers = worker.count if worker else 1
    manager, proxy = await _open_proxy(
        config, store, upstreams, stack, limits=limits, watch=watch, workers=workers
    )
    threads_api = await _open_threads_api(
        config, store, limits, stack, has_no_keys=authenticator is None
    )
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
    mcp = McpMount(store)
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


async def _open_threads_api(
    config: Config,
    store: Store,
    limits: Limits,
    stack: AsyncExitStack,
    *,
    has_no_keys: bool,
) -> ThreadsApi | None:
    """Start the threads API, and close it with the stack; return None if it is disabled."""
    if not config.gateway.native.enabled:
        return None
    threads_api = make_threads_api(config, store, limits, has_no_keys=has_no_keys)
    stack.push_async_callback(threads_api.close)
    await threads_api.start()
    return threads_api


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
    from everthread.thread.engines.worker_processes import MAX_PROCESSES

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
        from everthread.core.costs.canonical_usage import CanonicalUsage
        from everthread.core.costs.prices import compute_call_cost
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


async def _abandon_unresponsive_store(store: Store, end_event: asyncio.Event) -> None:
    """When the gateway ends, stop waiting for an unresponsive database, so that the gateway can stop."""
    await end_event.wait()
    while True:
        await asyncio.sleep(STORE_SHUTDOWN_SECONDS)
        with suppress(StoreError):
            await store.get_state("gateway", "watch")
        if store.is_unresponsive:
            _LOG.warning(
                "the store does not answer; records that are not stored yet are lost"
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
    from everthread.gateway.site_policy import is_loopback

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
