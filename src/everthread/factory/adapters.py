"""From a configuration to the adapters: chats of other services, answered by the gateway's own threads."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from everthread.config.gateway import AdapterOptions, TelegramSettings, WebhookSettings
from everthread.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from everthread.gateway.api.queue import TurnDesk

HOOKS = "/hooks"


async def open_adapters(options: AdapterOptions, desk: TurnDesk | None, stack: AsyncExitStack) -> dict[str, ASGIApp]:
    """The adapters, running until the stack ends; and what they answer to, by path."""
    if not options.webhooks and not options.telegram:
        return {}
    if desk is None:
        raise ConfigError("gateway.adapters needs threads: set gateway.native.enabled to true")
    hooks = {f"{HOOKS}/{one.name}": await _webhook(one, desk, stack) for one in options.webhooks}
    for bot in options.telegram:
        app = await _telegram(bot, desk, stack)
        if app is not None:
            hooks[f"{HOOKS}/{bot.name}"] = app
    return hooks


async def _webhook(chosen: WebhookSettings, desk: TurnDesk, stack: AsyncExitStack) -> ASGIApp:
    from everthread.gateway.adapters.bridge import Bridge
    from everthread.gateway.adapters.hooks import hook
    from everthread.gateway.adapters.webhook import Webhook, WebhookCarrier, WebhookOptions

    secret = _secret(chosen.secret_env, f"gateway.adapters.webhooks {chosen.name}")
    options = WebhookOptions(chosen.name, secret, chosen.senders, chosen.callbacks, chosen.tenant)
    carrier = WebhookCarrier(options)
    stack.push_async_callback(carrier.close)
    bridge = Bridge(desk, carrier, chosen.tenant)
    stack.push_async_callback(bridge.close)
    await bridge.start()
    return hook(Webhook(options, bridge).handle, status=202)


async def _telegram(chosen: TelegramSettings, desk: TurnDesk, stack: AsyncExitStack) -> ASGIApp | None:
    from everthread.gateway.adapters.bridge import Bridge
    from everthread.gateway.adapters.hooks import hook
    from everthread.gateway.adapters.telegram import Telegram, TelegramCarrier, TelegramOptions

    where = f"gateway.adapters.telegram {chosen.name}"
    secret = _secret(chosen.secret_env, where) if chosen.secret_env else ""
    token = _secret(chosen.token_env, where)
    options = TelegramOptions(
        chosen.name, token, frozenset(chosen.users), frozenset(chosen.chats), chosen.mode, secret, chosen.api_url,
        chosen.tenant,
    )  # fmt: skip
    carrier = TelegramCarrier(options)
    stack.push_async_callback(carrier.close)
    bridge = Bridge(desk, carrier, chosen.tenant)
    stack.push_async_callback(bridge.close)
    await bridge.start()
    bot = Telegram(options, carrier, bridge)
    stack.push_async_callback(bot.close)
    await bot.start()
    return hook(bot.handle) if chosen.mode == "webhook" else None


def _secret(name: str, where: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"{where} names the environment variable {name}, which is not set")
    return value
