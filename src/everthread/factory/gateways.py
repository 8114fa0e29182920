"""Build a gateway from a configuration."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everthread.config import Config, load_config
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
from everthread.gateway.contracts import Auth, Limits
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.gateway.access.authentication import Authenticator
    from everthread.gateway.api.threads_api import ThreadsApi
    from everthread.gateway.app import GatewayApp
    from everthread.gateway.dashboard.page_routes import Dashboard
    from everthread.gateway.dashboard.trial_page import RunTrial
    from everthread.gateway.features import Feature
    from everthread.gateway.filters.compaction_answers import MakeItem
    from everthread.gateway.filters.telemetry import TelemetryFeature
    from everthread.gateway.managed.manager import ProxyManager
    from everthread.gateway.proxy import Proxy
    from everthread.gateway.router import Upstream
    from everthread.gateway.server import Gateway
    from everthread.gateway.worker_process import WorkerSetup
    from everthread.thread.events import Listener

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
    from everthread.gateway.server import Gateway

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
        builder = _GatewayBuilder(settings, store, upstreams, stack, worker)
        manager, proxy = await builder.open_proxy()
        app = await builder.open_app(
            manager,
            proxy,
            authenticator=authenticator,
            pages=await builder.make_dashboard(trial, announce),
        )
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


def _warm_up(manager: ProxyManager, stack: AsyncExitStack) -> None:
    """Start the process for compactions, and load the modules for the first request in the background."""
    manager.threads.start_worker()
    preload_task = asyncio.create_task(preload())
    stack.callback(preload_task.cancel)


async def _open_authenticator(
    auth: Auth, store: Store, host: str, stack: AsyncExitStack
) -> Authenticator | None:
    """Return the authenticator; None for `auth: none`."""
    from everthread.gateway.access.authentication import (
        TENANT_SECRET_NAME,
        AcceptedCredentials,
        KeyAuthenticator,
        PassthroughAuthenticator,
    )
    from everthread.gateway.site_policy import is_loopback

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
    from everthread.gateway.server import tune_process

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


class _GatewayBuilder:
    """Builds the parts of a gateway; the stack closes them."""

    def __init__(
        self,
        config: Config,
        store: Store,
        upstreams: Sequence[Upstream],
        stack: AsyncExitStack,
        worker: WorkerSetup | None,
    ) -> None:
        """`worker`: the setup of this process if it is one of several."""
        from everthread.gateway.site_policy import SitePolicy

        options = config.gateway
        self._config = config
        self._store = store
        self._upstreams = upstreams
        self._stack = stack
        self._worker = worker
        self._limits = Limits(**options.limits.model_dump())
        self._store_watch = make_store_watch(store)
        self._sites = SitePolicy(
            options.allowed_origins,
            (options.host, *options.allowed_hosts),
            has_keys=options.auth == "keys",
        )

    async def open_proxy(self) -> tuple[ProxyManager, Proxy]:
        """Build the manager, which decides on requests, and the proxy, which forwards them."""
        from everthread.gateway.monitoring.event_reports import (
            EventReporter,
            FailureLog,
        )
        from everthread.gateway.monitoring.metrics import Metrics
        from everthread.gateway.proxy import Proxy
        from everthread.gateway.router import Routes

        # Closed after the manager.
        models = await self._stack.enter_async_context(AsyncExitStack())
        metrics = Metrics()
        failures = FailureLog(self._store.state.add_failures)
        self._stack.push_async_callback(failures.close)
        manager = await self._make_manager(models, EventReporter(metrics, failures))
        self._stack.push_async_callback(manager.close)
        features = make_features(
            include_usage=self._config.gateway.include_usage,
            make_item=manager.requested_compactions.make_item,
            telemetry=_make_telemetry(),
        )
        proxy = Proxy(
            Routes(self._upstreams),
            manager,
            features=features,
            limits=self._limits,
            metrics=metrics,
            store_watch=self._store_watch,
            failures=failures,
            flush_records=manager.deferred_records.flush_all,
        )
        return manager, proxy

    async def _make_manager(self, models: AsyncExitStack, listener: Listener) -> ProxyManager:
        """Return the manager. `models`: closes the models that write summaries."""
        from everthread.gateway.managed.manager import ProxyManager
        from everthread.thread.engines.worker_processes import MAX_PROCESSES

        options = self._config.gateway
        seconds = options.limits.manage_seconds
        workers = self._worker.worker_count if self._worker else 1
        is_sole_writer = claim_sole_use(self._store, self._stack, workers)
        summarizers = SummarizerFactory(
            self._config,
            models.push_async_callback,
            seconds=SUMMARY_SECONDS_SHARE * seconds,
        )
        setup = await make_caller_setup(
            self._config,
            self._store,
            summarizer=summarizers,
            window=self._find_window,
            listener=listener,
        )
        setup = replace(
            setup,
            uses_processes=EngineChoice.from_config(self._config).is_built_in,
            compaction_seconds=COMPACTION_SECONDS_SHARE * seconds,
            compaction_processes=max(1, MAX_PROCESSES // workers),
            is_sole_writer=is_sole_writer,
        )
        return ProxyManager(setup, offer_recall=options.recall, set_cache_marks=options.cache_marks)

    async def _find_window(self, api: Api, model: str, upstream: str, betas: str) -> int:
        """Return the window of a model at an upstream, which is asked for it if need be."""
        from everthread.providers.catalog import ask_endpoint, resolve_window

        options = self._config.model
        address = upstream if api in ("anthropic", "gemini") else f"{upstream}/v1"
        keys = {entry.root_url: entry.api_key for entry in self._upstreams}
        ask = functools.partial(ask_endpoint, address, model, api=api, api_key=keys.get(upstream))
        window = await resolve_window(
            model,
            setting=options.context_length if model == options.default else None,
            ask_server=ask,
            betas=betas,
        )
        return window.tokens

    async def make_dashboard(
        self, trial: RunTrial | None, announce: Callable[[str], None] | None
    ) -> Dashboard | None:
        """Return the dashboard; None if it is disabled."""
        if not self._config.gateway.dashboard.enabled:
            return None
        return await make_dashboard(
            self._config,
            self._store,
            sites=self._sites,
            trial=trial,
            announce=announce,
            links=self._worker.links_folder if self._worker else None,
        )

    async def open_app(
        self,
        manager: ProxyManager,
        proxy: Proxy,
        *,
        authenticator: Authenticator | None,
        pages: Dashboard | None,
    ) -> GatewayApp:
        """Build the application: the proxy and the apps for the gateway's own paths."""
        from everthread.gateway.access.authentication import (
            TENANT_SECRET_NAME,
            ForwardedAuthenticator,
        )
        from everthread.gateway.api.compact import PATH, CompactApp
        from everthread.gateway.app import GatewayApp
        from everthread.gateway.mcp_mount import McpMount

        threads_api = await self._open_threads_api(has_no_keys=authenticator is None)
        mcp = McpMount(self._store)
        self._stack.push_async_callback(mcp.close)
        compact_app = CompactApp(
            manager.requested_compactions, self._limits, self._upstreams[0].root_url
        )
        tenant_secret = await self._store.keys.load_shared_secret(TENANT_SECRET_NAME)
        return GatewayApp(
            proxy,
            authenticator=authenticator,
            threads_api=threads_api,
            find_problem=lambda: find_store_problem(self._store),
            site_policy=self._sites,
            mounted_apps={"/mcp": mcp, PATH: compact_app},
            pages=pages,
            store_watch=self._store_watch,
            forwarded_authenticator=ForwardedAuthenticator(tenant_secret),
        )

    async def _open_threads_api(self, *, has_no_keys: bool) -> ThreadsApi | None:
        """Start the threads API; return None if it is disabled."""
        if not self._config.gateway.native.enabled:
            return None
        threads_api = make_threads_api(
            self._config, self._store, self._limits, has_no_keys=has_no_keys
        )
        self._stack.push_async_callback(threads_api.close)
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
    from everthread.gateway.filters.answer_recall import RecallFeature
    from everthread.gateway.filters.charging import ChargingFeature
    from everthread.gateway.filters.compaction_answers import CompactionItemFeature
    from everthread.gateway.filters.read_answer import AnswerReadingFeature
    from everthread.gateway.filters.usage_option import UsageOptionFeature

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
    """Return the telemetry; None if the extra `otel` is not installed or not set up."""
    try:
        from everthread.gateway.filters.telemetry import TelemetryFeature
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return None
    return TelemetryFeature.from_process()
