"""Build the dashboard, as a part of a gateway or alone."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from everthread.config import Config
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.errors import ConfigError
from everthread.factory.conversations import make_session_options
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.gateway.dashboard.page_routes import Dashboard
    from everthread.gateway.dashboard.thread_costs import FindWindow, ThreadCosts
    from everthread.gateway.dashboard.trial_page import RunTrial
    from everthread.gateway.site_policy import SitePolicy


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
    from everthread.gateway.dashboard.login import SECRET_NAME, DashboardLogin, LoginLinks
    from everthread.gateway.dashboard.page_routes import Dashboard

    secret = await store.keys.load_shared_secret(SECRET_NAME)
    access = DashboardLogin(
        store,
        secret,
        auth=config.gateway.auth,
        operator_key=_read_operator_key(config),
        links=LoginLinks(links),
    )
    return Dashboard(
        make_thread_costs(config, store),
        access,
        sites=sites,
        trial=trial,
        threshold=config.compression.threshold,
        ratio=config.compression.target_ratio,
        announce=announce,
    )


def make_thread_costs(config: Config, store: Store) -> ThreadCosts:
    """Return the windows and the costs of the threads in a store."""
    from everthread.gateway.dashboard.thread_costs import ThreadCosts

    return ThreadCosts(
        store,
        make_window_finder(config),
        cache_seconds=CACHE_SECONDS[config.prompt_caching.cache_ttl],
    )


def make_window_finder(config: Config) -> FindWindow:
    """Return a function that finds a model's window and threshold without network calls."""
    from everthread.gateway.dashboard.context_window import WindowSize
    from everthread.providers.catalog import find_catalogue_window

    options = make_session_options(config)

    @functools.cache
    def find_window(model: str, learnt_limit: int | None) -> WindowSize:
        setting = config.model.context_length if model == config.model.default else None
        catalogue_window = find_catalogue_window(model)
        tokens = min(
            size for size in (setting or catalogue_window.tokens, learnt_limit) if size is not None
        )
        if tokens == learnt_limit:
            source = "learnt from the provider"
        elif setting:
            source = "as configured"
        else:
            source = str(catalogue_window).rstrip(".")
        return WindowSize(tokens, options.budget(tokens).threshold, source)

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
    from everthread.core.costs.prices import find_listed_window
    from everthread.gateway.loop_server import LoopServer, listen
    from everthread.gateway.site_policy import SitePolicy

    host = "127.0.0.1"
    pages = await make_dashboard(
        _without_auth(config),
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


def _without_auth(config: Config) -> Config:
    """Return the configuration for a dashboard that one logs in to with a link."""
    gateway = config.gateway.model_copy(update={"auth": "none"})
    return config.model_copy(update={"gateway": gateway})
