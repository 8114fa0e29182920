"""From a configuration to a running gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from everthread.compose.conversations import session_options
from everthread.compose.models import auxiliary_model, closing_of, summarizer_for
from everthread.compose.stores import open_store, store_url
from everthread.config import Config, home_directory, load_config
from everthread.core.exchange import Api, StreamingModel
from everthread.core.summary import Summarizer
from everthread.errors import ConfigError, StoreError
from everthread.gateway.base import Mode
from everthread.stores.base import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from everthread.engines.base import ContextEngine, Services
    from everthread.gateway.access import Authenticator
    from everthread.gateway.managing import ProxyManager
    from everthread.gateway.routes import Upstream
    from everthread.gateway.running import Gateway
    from everthread.session.events import Event
    from everthread.session.setup import Desk

_LOG = logging.getLogger("everthread.gateway")


@asynccontextmanager
async def open_gateway(
    config: Config | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    upstreams: Sequence[Upstream] | None = None,
    mode: Mode | None = None,
    store: Store | None = None,
    authenticator: Authenticator | None = None,
    native: ASGIApp | None = None,
) -> AsyncIterator[Gateway]:
    """The gateway, listening. What is given stands before what is configured; a store that is given stays open."""
    from everthread.gateway.limits import Limits
    from everthread.gateway.proxy import Proxy
    from everthread.gateway.routes import Routes
    from everthread.gateway.running import Gateway
    from everthread.gateway.service import Service

    settings = config or load_config()
    options = settings.gateway
    known = list(upstreams) if upstreams is not None else upstreams_of(settings, mode)
    async with AsyncExitStack() as stack:
        if store is None:
            store = await asyncio.to_thread(open_store, store_url(settings))
            stack.push_async_callback(store.close)
        manager = _manager(settings, store, known, stack)
        stack.push_async_callback(manager.close)
        limits = Limits(**options.limits.model_dump())
        proxy = Proxy(Routes(known), manager, limits=limits, include_usage=options.include_usage)
        service = Service(proxy, authenticator=authenticator, native=native, ready=_readiness(store))
        listening = Gateway(service, host=host or options.host, port=options.port if port is None else port)
        yield await stack.enter_async_context(listening)


def upstreams_of(config: Config, mode: Mode | None = None) -> list[Upstream]:
    """The configured upstreams with their keys; without any, OpenAI and Anthropic with the clients' own keys."""
    from everthread.gateway.routes import Upstream

    options = config.gateway
    chosen = mode or options.mode
    if not options.upstreams:
        from everthread.models.anthropic import ANTHROPIC_URL
        from everthread.models.openai_chat import OPENAI_URL

        return [
            Upstream("openai", OPENAI_URL, (), "openai", mode=chosen),
            Upstream("anthropic", ANTHROPIC_URL, ("claude-*",), "anthropic", mode=chosen),
        ]
    return [
        Upstream(one.name, one.url, one.models, one.protocol, _key(one.api_key_env), mode or one.mode or options.mode)
        for one in options.upstreams
    ]


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise ConfigError(f"gateway.upstreams names the environment variable {name}, which is not set")
    return key


def _manager(config: Config, store: Store, upstreams: Sequence[Upstream], stack: AsyncExitStack) -> ProxyManager:
    from everthread.engines.registry import create_engine
    from everthread.gateway.managing import ProxyManager
    from everthread.gateway.setup import ManagerSetup

    name = config.context.engine
    options = dict(config.engines.get(name, {}))
    if name == "compressor":
        options.setdefault("template", config.compression.template)
    auxiliaries: dict[str, StreamingModel | None] = {}
    keys = {upstream.root: upstream.api_key for upstream in upstreams}

    def engine(services: Services) -> ContextEngine:
        return create_engine(name, services, options, home=home_directory())

    def writer(desk: Desk) -> Summarizer:
        if desk.route.name not in auxiliaries:
            made = auxiliaries[desk.route.name] = auxiliary_model(desk, config)
            if made is not None:
                stack.push_async_callback(closing_of(made))
        return summarizer_for(desk, config, auxiliaries[desk.route.name])

    async def window(api: Api, model: str, upstream: str) -> int:
        return await _window(config, api, model, upstream, keys.get(upstream))

    digest = _digest({"engine": options, "compression": config.compression.model_dump()})
    return ProxyManager(
        ManagerSetup(store, engine, f"{name} {digest}", writer, window, session_options(config), listener=_logged)
    )


async def _window(config: Config, api: Api, model: str, upstream: str, key: str | None) -> int:
    from everthread.models.endpoint import ask_endpoint
    from everthread.models.window import resolve_window

    address = upstream if api == "anthropic" else f"{upstream}/v1"
    setting = config.model.context_length if model == config.model.default else None

    async def ask() -> Any:
        return await ask_endpoint(address, model, api=api, api_key=key)

    return (await resolve_window(model, setting=setting, ask=ask)).tokens


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _logged(event: Event) -> None:
    """An event's kind and thread, and why something failed; never what was said."""
    reason = getattr(event, "reason", None) or getattr(event, "message", None)
    level = logging.WARNING if event.kind.endswith("failed") else logging.INFO
    _LOG.log(level, "%s in %s%s", event.kind, event.session, f": {reason}" if isinstance(reason, str) else "")


def _readiness(store: Store) -> Any:
    async def trouble() -> str | None:
        try:
            await store.list_sessions(limit=1)
        except StoreError as error:
            _LOG.warning("not ready: %s", error)
            return "the store does not answer"
        return None

    return trouble
