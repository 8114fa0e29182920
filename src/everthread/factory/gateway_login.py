"""Choose how the clients of a gateway are authenticated."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from everthread.errors import InputError
from everthread.gateway.contracts import Auth
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.gateway.access.authentication import Authenticator


async def open_authenticator(
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
        return PassthroughAuthenticator(await store.shared_secret(TENANT_SECRET_NAME), credentials)
    keys = KeyAuthenticator(store)
    stack.push_async_callback(keys.close)
    if not is_loopback(host) and not await keys.has_keys():
        raise InputError(
            f"to listen on {host} the gateway needs an API key: make one with `everthread keys create`"
        )
    return keys
