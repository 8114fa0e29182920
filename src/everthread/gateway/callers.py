"""Find out who sends a request, and check that this caller may use its path."""

from __future__ import annotations

from everthread.gateway.access.authentication import (
    Authenticator,
    Caller,
    OpenAuthenticator,
)
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.request_head import RequestHead


class CallerFinder:
    """Authenticate the callers of each kind of path. Raise `RequestRefused` for a caller who may not use it."""

    def __init__(
        self,
        authenticator: Authenticator | None,
        forwarded_authenticator: Authenticator | None,
    ) -> None:
        """`authenticator`: None for a gateway without keys, which uses the other one for forwarded requests."""
        self.has_keys = authenticator is not None
        self._authenticator: Authenticator = authenticator or OpenAuthenticator()
        self._forwarded_authenticator = None if self.has_keys else forwarded_authenticator

    async def admit_anyone(self, head: RequestHead) -> Caller:
        """Accept every caller, also an unknown one."""
        return head.caller

    async def authenticate(self, head: RequestHead) -> Caller:
        """Accept every caller that can be authenticated."""
        if self._forwarded_authenticator is not None and head.is_forwarded:
            return await self._forwarded_authenticator.authenticate(head.credentials)
        return await self._authenticator.authenticate(head.credentials)

    async def admit_to_threads(self, head: RequestHead) -> Caller:
        """Accept a caller of the threads API."""
        caller = await self.authenticate(head)
        if self.has_keys and "threads" not in caller.scopes:
            raise RequestRefused(
                403,
                "missing_scope",
                "Conversations need a key with the scope `threads`.",
            )
        return caller

    async def admit_reader(self, head: RequestHead) -> Caller:
        """Accept a caller who may read conversations, and count the request."""
        caller = await self.authenticate(head)
        if (
            caller.key_id is not None
            and not caller.is_passthrough
            and "threads" not in caller.scopes
        ):
            raise RequestRefused(
                403,
                "missing_scope",
                "Reading conversations needs a key with the scope `threads`.",
            )
        caller.admit()
        return caller

    async def admit_to_proxy(self, head: RequestHead) -> Caller:
        """Accept a caller of the providers' endpoints."""
        caller = await self.authenticate(head)
        if caller.key_id is not None and "proxy" not in caller.scopes:
            raise RequestRefused(
                403,
                "missing_scope",
                "This key may not use the proxy; it lacks the scope `proxy`.",
            )
        return caller
