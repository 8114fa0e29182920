"""Build a gateway from a configuration."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everthread.config import Config, load_config
from everthread.config.sections import GatewayLimitOptions
from everthread.core.types import Api
from everthread.errors import InputError
from everthread.factory.caller_setup_factory import make_caller_setup
from everthread.factory.dashboards import make_dashboard
from everthread.factory.engine_choice import EngineChoice
from everthread.factory.gateway_store import (
    claim_sole_use,
    find_store_problem,
    make_store_watch,
    open_gateway_store,
)
from everthread.factory.summarizer_factory import SummarizerFactory
from everthread.factory.threads_api_factory import make_threads_api
from everthread.factory.upstreams import add_keys, list_upstreams, start_local_models
from everthread.gateway.access.authentication import (
    TENANT_SECRET_NAME,
    AcceptedCredentials,
    Authenticator,
    ForwardedAuthenticator,
    KeyAuthenticator,
    PassthroughAuthenticator,
)
from everthread.gateway.api.compact import PATH, CompactApp
from everthread.gateway.api.threads_api import ThreadsApi
from everthread.gateway.app import GatewayApp
from everthread.gateway.contracts import Auth, GatewayLimits
from everthread.gateway.dashboard.page_routes import Dashboard
from everthread.gateway.dashboard.trial_page import RunTrial
from everthread.gateway.features import Feature
from everthread.gateway.filters.answer_recall import RecallFeature
from everthread.gateway.filters.charging import ChargingFeature
from everthread.gateway.filters.compaction_answers import CompactionItemFeature, MakeItem
from everthread.gateway.filters.read_answer import AnswerReadingFeature
from everthread.gateway.filters.usage_option import UsageOptionFeature
from everthread.gateway.managed.manager import ProxyManager
from everthread.gateway.mcp_mount import McpMount
from everthread.gateway.monitoring.event_reports import EventReporter, FailureLog
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.monitoring.store_watch import StoreWatch
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway, tune_process
from everthread.gateway.site_policy import SitePolicy, is_loopback
from everthread.gateway.worker_process import WorkerSetup
from everthread.providers.catalog import ask_endpoint, resolve_window
from everthread.store.store import Store
from everthread.thread.engines.worker_processes import MAX_PROCESSES
from everthread.thread.events import Listener

if TYPE_CHECKING:
    from everthread.gateway.filters.telemetry import TelemetryFeature

_LOG = logging.getLogger("everthread.gateway")
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
    settings = _override_gateway(config or load_config(), host=host, port=port, auth=auth)
    options = settings.gateway
    upstreams = _choose_upstreams(settings, upstreams, worker)
    end_event = asyncio.Event()  # set when the gateway ends
    async with AsyncExitStack() as stack:
        upstreams = await start_local_models(upstreams, settings, stack)
        store = store or await open_gateway_store(
            settings, stack, end_event, index_in_process=is_gateway_process
        )
        authenticator = authenticator or await _open_authenticator(
            options.auth, store, options.host, stack
        )
        parts = _make_parts(
            settings,
            store,
            upstreams,
            stack=stack,
            worker_count=worker.worker_count if worker else 1,
        )
        manager, proxy = await _open_proxy(parts)
        pages = await _make_pages(parts, worker, trial=trial, announce=announce)
        app = await _open_app(parts, manager, proxy, authenticator=authenticator, pages=pages)
        server = Gateway(
            app,
            host=options.host,
            port=options.port,
            listener=worker.listener if worker else None,
        )
        gateway = await stack.enter_async_context(server)
        stack.callback(end_event.set)
        if is_gateway_process:
            _warm_up(manager, stack)
        if app.pages is not None:
            app.pages.base_url = gateway.url
        yield gateway


async def _make_pages(
    parts: _GatewayParts,
    worker: WorkerSetup | None,
    *,
    trial: RunTrial | None,
    announce: Callable[[str], None] | None,
) -> Dashboard | None:
    """Return the dashboard, or None if it is turned off."""
    if not parts.config.gateway.dashboard.enabled:
        return None
    return await make_dashboard(
        parts.config,
        parts.store,
        sites=parts.sites,
        trial=trial,
        announce=announce,
        links=worker.links_folder if worker else None,
    )


def _make_parts(
    settings: Config,
    store: Store,
    upstreams: Sequence[Upstream],
    *,
    stack: AsyncExitStack,
    worker_count: int,
) -> _GatewayParts:
    options = settings.gateway
    return _GatewayParts(
        settings,
        store,
        upstreams,
        stack=stack,
        worker_count=worker_count,
        limits=_make_limits(options.limits),
        sites=SitePolicy(
            options.allowed_origins,
            (options.host, *options.allowed_hosts),
            has_keys=options.auth == "keys",
        ),
        store_watch=make_store_watch(store),
    )


def _make_limits(options: GatewayLimitOptions) -> GatewayLimits:
    return GatewayLimits(
        body_bytes=options.body_bytes,
        header_bytes=options.header_bytes,
        concurrent=options.concurrent,
        header_seconds=options.header_seconds,
        body_seconds=options.body_seconds,
        connect_seconds=options.connect_seconds,
        max_answer_gap_seconds=options.answer_seconds,
        write_seconds=options.write_seconds,
        manage_seconds=options.manage_seconds,
        hold_seconds=options.hold_seconds,
        keepalive_seconds=options.keepalive_seconds,
        silence_seconds=options.silence_seconds,
    )


def _warm_up(manager: ProxyManager, stack: AsyncExitStack) -> None:
    """Start the process for compactions, and load the modules for the first request in the background."""
    manager.threads.start_worker()
    preload_task = asyncio.create_task(preload())
    stack.callback(preload_task.cancel)


async def _open_authenticator(
    auth: Auth, store: Store, host: str, stack: AsyncExitStack
) -> Authenticator | None:
    """Return the authenticator, or None for `auth: none`."""
    if auth == "none":
        return None
    if auth == "passthrough":
        credentials = AcceptedCredentials(store)
        stack.push_async_callback(credentials.close)
        return PassthroughAuthenticator(
            await store.keys.load_shared_secret(TENANT_SECRET_NAME), credentials
        )
    keys = KeyAuthenticator(store)
    stack.push_async_callback(keys.close)
    if not is_loopback(host) and not await keys.has_keys():
        raise InputError(
            f"to listen on {host} the gateway needs an API key: make one with `everthread keys create`"
        )
    return keys


async def preload() -> None:
    """Load, in a thread, the modules that the first request needs, then freeze the process's memory."""

    def load() -> None:
        import anyio
        import httpx2

        from everthread.compaction.summarizers import (  # noqa: F401 - for the first compaction
            chain,
            llm_summarizer,
            warm_prefix,
        )
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
        _LOG.warning("the gateway is not warmed up: %s: %s", type(error).__name__, error)
    tune_process()


def _choose_upstreams(
    config: Config, upstreams: Sequence[Upstream] | None, worker: WorkerSetup | None
) -> list[Upstream]:
    """Return the given upstreams, or else the configured ones, with keys added. A worker's upstreams come with keys."""
    chosen_upstreams = list_upstreams(config) if upstreams is None else list(upstreams)
    if worker is not None:
        return chosen_upstreams
    return add_keys(chosen_upstreams, config.gateway.auth)


def _override_gateway(config: Config, **overrides: Any) -> Config:
    """Return the configuration with these settings of the gateway, except those that are None."""
    update = {name: value for name, value in overrides.items() if value is not None}
    return config.model_copy(update={"gateway": config.gateway.model_copy(update=update)})


@dataclass(frozen=True, slots=True)
class _GatewayParts:
    """The values from which a gateway is built. `stack` closes its parts."""

    config: Config
    store: Store
    upstreams: Sequence[Upstream]
    stack: AsyncExitStack
    worker_count: int
    """The number of processes that share the port and the store."""
    limits: GatewayLimits
    sites: SitePolicy
    store_watch: StoreWatch | None


async def _open_proxy(parts: _GatewayParts) -> tuple[ProxyManager, Proxy]:
    """Build the manager, which decides on requests, and the proxy, which forwards them."""
    # Closed after the manager.
    models = await parts.stack.enter_async_context(AsyncExitStack())
    metrics = Metrics()
    failures = FailureLog(parts.store.state.add_failures)
    parts.stack.push_async_callback(failures.close)
    manager = await _make_manager(parts, models, EventReporter(metrics, failures))
    parts.stack.push_async_callback(manager.close)
    features = make_features(
        include_usage=parts.config.gateway.include_usage,
        make_item=manager.requested_compactions.make_item,
        telemetry=_make_telemetry(),
    )
    proxy = Proxy(
        Routes(parts.upstreams),
        manager,
        features=features,
        limits=parts.limits,
        metrics=metrics,
        store_watch=parts.store_watch,
        failures=failures,
        flush_records=manager.deferred_records.flush_all,
    )
    return manager, proxy


async def _make_manager(
    parts: _GatewayParts, models: AsyncExitStack, listener: Listener
) -> ProxyManager:
    """Return the manager. `models`: closes the models that write summaries."""
    options = parts.config.gateway
    seconds = options.limits.manage_seconds
    is_sole_writer = claim_sole_use(parts.store, parts.stack, parts.worker_count)
    summarizers = SummarizerFactory(
        parts.config,
        models,
        seconds=SUMMARY_SECONDS_SHARE * seconds,
    )
    setup = await make_caller_setup(
        parts.config,
        parts.store,
        summarizer=summarizers,
        window=functools.partial(_find_window, parts),
        listener=listener,
    )
    setup = replace(
        setup,
        uses_processes=EngineChoice.from_config(parts.config).is_built_in,
        compaction_seconds=COMPACTION_SECONDS_SHARE * seconds,
        compaction_processes=max(1, MAX_PROCESSES // parts.worker_count),
        is_sole_writer=is_sole_writer,
    )
    return ProxyManager(setup, offer_recall=options.recall, set_cache_marks=options.cache_marks)


async def _find_window(
    parts: _GatewayParts, api: Api, model: str, upstream: str, betas: str
) -> int:
    """Return the window of a model. Ask the upstream if it is not known."""
    options = parts.config.model
    address = upstream if api in ("anthropic", "gemini") else f"{upstream}/v1"
    keys = {entry.root_url: entry.api_key for entry in parts.upstreams}
    ask = functools.partial(ask_endpoint, address, model, api=api, api_key=keys.get(upstream))
    window = await resolve_window(
        model,
        setting=options.context_length if model == options.default else None,
        ask_server=ask,
        betas=betas,
    )
    return window.tokens


async def _open_app(
    parts: _GatewayParts,
    manager: ProxyManager,
    proxy: Proxy,
    *,
    authenticator: Authenticator | None,
    pages: Dashboard | None,
) -> GatewayApp:
    """Build the application: the proxy and the apps for the gateway's own paths."""
    threads_api = await _open_threads_api(parts, has_no_keys=authenticator is None)
    mcp = McpMount(parts.store)
    parts.stack.push_async_callback(mcp.close)
    compact_app = CompactApp(
        manager.requested_compactions, parts.limits, parts.upstreams[0].root_url
    )
    tenant_secret = await parts.store.keys.load_shared_secret(TENANT_SECRET_NAME)
    return GatewayApp(
        proxy,
        authenticator=authenticator,
        threads_api=threads_api,
        find_problem=lambda: find_store_problem(parts.store),
        site_policy=parts.sites,
        mounted_apps={"/mcp": mcp, PATH: compact_app},
        pages=pages,
        store_watch=parts.store_watch,
        forwarded_authenticator=ForwardedAuthenticator(tenant_secret),
    )


async def _open_threads_api(parts: _GatewayParts, *, has_no_keys: bool) -> ThreadsApi | None:
    """Start the threads API; return None if it is disabled."""
    if not parts.config.gateway.native.enabled:
        return None
    threads_api = make_threads_api(parts.config, parts.store, parts.limits, has_no_keys=has_no_keys)
    parts.stack.push_async_callback(threads_api.close)
    await threads_api.start()
    return threads_api


def make_features(
    *,
    include_usage: bool = True,
    make_item: MakeItem | None = None,
    telemetry: TelemetryFeature | None = None,
) -> list[Feature]:
    """List the proxy's features, from the client's side to the upstream's.

    To remove a feature, delete its file in `gateway/filters/` and its line here.
    """
    features: list[Feature | None] = [
        telemetry,
        ChargingFeature(),
        UsageOptionFeature() if include_usage else None,
        AnswerReadingFeature(),
        CompactionItemFeature(make_item) if make_item is not None else None,
        RecallFeature(),
    ]
    return [feature for feature in features if feature is not None]


def _make_telemetry() -> TelemetryFeature | None:
    """Return the telemetry, or None if the extra `otel` is not installed or not set up."""
    try:
        from everthread.gateway.filters.telemetry import TelemetryFeature
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return None
    return TelemetryFeature.from_global_providers()
