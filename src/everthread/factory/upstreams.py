"""List a gateway's upstreams with their keys, and start the local models among them."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from everthread.config import Config, home_directory
from everthread.errors import ConfigError, InputError
from everthread.gateway.contracts import Auth, Mode

if TYPE_CHECKING:
    from everthread.gateway.router import Upstream

_LOG = logging.getLogger("everthread.gateway")
LOCAL_URL = "local"
"""The URL of the model on this machine; `local:` and a name or a file is another one."""
_USUAL_KEY_VARIABLES = {
    "openai.com": "OPENAI_API_KEY",
    "anthropic.com": "ANTHROPIC_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
    "googleapis.com": "GEMINI_API_KEY",
}
"""By domain of a provider, the usual environment variable of its key. A key is sent only to its provider."""


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
            provider=options_entry.protocol,
            api_key=_read_key(options_entry.api_key_env),
            mode=mode or options_entry.mode or options.mode,
        )
        for options_entry in options.upstreams
    ]


def add_keys(upstreams: Sequence[Upstream], auth: Auth) -> list[Upstream]:
    """Add the gateway's own keys if clients need a key of this gateway; otherwise remove all keys."""
    # A ChatGPT login belongs to a person; no key of this gateway can replace it.
    if auth == "keys":
        return [
            add_own_key(upstream)
            for upstream in upstreams
            if upstream.api_key is not None or not _has_no_key(upstream)
        ]
    names = ", ".join(upstream.name for upstream in upstreams if upstream.api_key is not None)
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

    return upstream.serves_chatgpt_logins or (
        upstream.url == GOOGLE_URL and not os.environ.get("GEMINI_API_KEY")
    )


def add_own_key(upstream: Upstream) -> Upstream:
    """Return the upstream with the provider's usual key if none is configured.

    With `auth: keys` no client's key is forwarded. A server in a private network may need none.
    """
    host = urlsplit(upstream.url).hostname or ""
    if upstream.api_key is not None or upstream.url == "local" or _is_private_host(host):
        return upstream
    advice = "name the variable that has it in api_key_env"
    for domain, name in _USUAL_KEY_VARIABLES.items():
        if f".{host}".endswith(f".{domain}"):
            if key := os.environ.get(name):
                return replace(upstream, api_key=key)
            advice = f"set {name}, or {advice}"
    raise ConfigError(
        f"under gateway.auth: keys the upstream {upstream.name} needs a key of the gateway's own: {advice}"
    )


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


def is_local(url: str) -> bool:
    return url == LOCAL_URL or url.startswith(f"{LOCAL_URL}:")


async def start_local_models(
    upstreams: Sequence[Upstream], config: Config, stack: AsyncExitStack
) -> list[Upstream]:
    """Start a local model for each upstream that names one; return the upstreams with the models' addresses."""
    return [
        await _start_local_model(upstream, config, stack) if is_local(upstream.url) else upstream
        for upstream in upstreams
    ]


async def _start_local_model(upstream: Upstream, config: Config, stack: AsyncExitStack) -> Upstream:
    from everthread.providers.local import SMOLLM2, LocalModel, find_model_file

    name = upstream.url.partition(":")[2] or None
    path = find_model_file(name, home_directory())
    is_own_model = name is None or not name.lower().endswith(".gguf")
    window = config.model.context_length or SMOLLM2.trained_window
    model = LocalModel(path, name=SMOLLM2.name if is_own_model else None, window=window)
    stack.push_async_callback(model.aclose)
    address, key = await model.serve()
    return replace(upstream, url=address, api_key=key)
