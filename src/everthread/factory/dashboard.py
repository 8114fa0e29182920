"""From a configuration to the pages for people: within a gateway, or on a store alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from everthread.config import Config
from everthread.core.cache_control import CACHE_SECONDS
from everthread.errors import ConfigError
from everthread.factory.conversation import session_options
from everthread.gateway.base import Auth
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.gateway.dashboard.access import Door
    from everthread.gateway.dashboard.app import Dashboard
    from everthread.gateway.dashboard.reader import Trial, WindowSource
    from everthread.gateway.middleware import SitePolicy


async def make_dashboard(
    config: Config,
    store: Store,
    *,
    auth: Auth,
    sites: SitePolicy,
    trial: Trial | None = None,
    announce: Callable[[str], None] | None = None,
    links: Path | None = None,
) -> Dashboard:
    """The pages. With `auth: none` a link lets in, with `keys` a key; with `passthrough` only the dashboard's own.

    `links`: the folder in which several processes share the links that let in.
    """
    from everthread.gateway.dashboard.access import SECRET, Access, LoginLinks
    from everthread.gateway.dashboard.app import Dashboard, Settings
    from everthread.gateway.dashboard.reader import PageReader

    key = _operator_key(config)
    doors: dict[Auth, Door] = {"none": "local", "keys": "keys", "passthrough": "operator" if key else "off"}
    secret = await store.shared_secret(SECRET)
    access = Access(store, secret, door=doors[auth], operator_key=key, links=LoginLinks(links))
    compression = config.compression
    settings = Settings(compression.threshold, compression.target_ratio)
    reader = PageReader(store, window_source(config), ttl=CACHE_SECONDS[config.prompt_caching.cache_ttl])
    return Dashboard(reader, access, settings=settings, sites=sites, trial=trial, announce=announce)


async def saved_dollars(config: Config, store: Store, since: float) -> float | None:
    """What compactions saved from a time on, by the method of the pages; None where nothing can be compared."""
    from everthread.gateway.dashboard.reader import PageReader

    reader = PageReader(store, window_source(config), ttl=CACHE_SECONDS[config.prompt_caching.cache_ttl])
    found = await reader.savings(since)
    return found.saved if found.calls else None


def window_source(config: Config) -> WindowSource:
    """A model's window and threshold without asking anybody: as configured, learnt, or from the catalogue."""
    from everthread.gateway.dashboard.views import WindowSize
    from everthread.providers.catalog import catalogue_window

    options = session_options(config)
    known: dict[tuple[str, int | None], WindowSize] = {}

    def window(model: str, learnt: int | None) -> WindowSize:
        if (model, learnt) not in known:
            setting = config.model.context_length if model == config.model.default else None
            found = catalogue_window(model)
            tokens = min(size for size in (setting or found.tokens, learnt) if size is not None)
            source = "learnt from the provider" if tokens == learnt else "as configured" if setting else str(found)
            known[model, learnt] = WindowSize(tokens, options.budget(tokens).threshold, source.rstrip("."))
        return known[model, learnt]

    return window


@asynccontextmanager
async def open_dashboard(
    config: Config,
    store: Store,
    *,
    port: int = 0,
    trial: Trial | None = None,
    announce: Callable[[str], None] | None = None,
) -> AsyncIterator[tuple[str, Dashboard]]:
    """The pages on a store without a gateway, on this machine only: where, and the application."""
    from everthread.gateway.middleware import SitePolicy
    from everthread.gateway.server import LoopServer, listen

    host = "127.0.0.1"
    pages = await make_dashboard(config, store, auth="none", sites=SitePolicy(), trial=trial, announce=announce)
    listener = listen(port, host)
    address = f"http://{host}:{listener.getsockname()[1]}"
    server = LoopServer(pages, listener, patience=1.0, server_header=False, log_level="critical")
    await server.start()
    try:
        yield address, pages
    finally:
        pages.close()
        await server.stop()


def within_gateway(pages: Dashboard, url: str) -> None:
    """Tell the pages where clients reach the gateway they are part of."""
    pages.settings = replace(pages.settings, base=url)


def _operator_key(config: Config) -> str | None:
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
