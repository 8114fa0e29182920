"""Who the gateway lets in, as it is configured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.gateway.auth import Authenticator
    from everthread.gateway.base import Auth
    from everthread.gateway.router import Upstream
    from everthread.store.store import Store


@asynccontextmanager
async def open_access(
    auth: Auth, store: Store, upstreams: Sequence[Upstream], host: str
) -> AsyncIterator[Authenticator | None]:
    """The authenticator; None: whoever reaches the address, which then is this machine's own."""
    from everthread.gateway.auth import SECRET, AcceptedCredentials, KeyAuthenticator, PassthroughAuthenticator
    from everthread.gateway.middleware import is_loopback

    if auth == "none":
        if not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or "
                "gateway.auth: keys"
            )
        yield None
    elif auth == "passthrough":
        if named := [upstream.name for upstream in upstreams if upstream.api_key is not None]:
            raise InputError(
                f"under gateway.auth: passthrough a client's own credential goes upstream; {', '.join(named)} has an "
                "api_key_env, which anybody could use then: leave it out, or use gateway.auth: keys"
            )
        yield PassthroughAuthenticator(await store.shared_secret(SECRET), AcceptedCredentials(store))
    else:
        keys = KeyAuthenticator(store)
        if not is_loopback(host) and not await keys.has_keys():
            raise InputError(
                f"to listen on {host} the gateway needs an API key: make one with `everthread keys create`"
            )
        try:
            yield keys
        finally:
            await keys.close()
