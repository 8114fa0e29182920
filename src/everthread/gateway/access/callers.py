"""Find out who sends a request, and whether that is enough for its path."""

from __future__ import annotations

from everthread.gateway.access.authentication import (
    Authenticator,
    Caller,
    OpenAuthenticator,
)
from everthread.gateway.error_answers import Refused
from everthread.gateway.request.request_head import RequestHead


class CallerFinder:
    """One method for each kind of path; each raises `Refused` for a caller who may not use it."""

    def __init__(
        self, authenticator: Authenticator | None, forwarded: Authenticator | None
    ) -> None:
        """Set `authenticator` to None without keys; `forwarded` then handles requests that another server forwarded."""
        self.has_keys = authenticator is not None
        self._authenticator: Authenticator = authenticator or OpenAuthenticator()
        self._forwarded = None if self.has_keys else forwarded

    async def admit_anybody(self, head: RequestHead) -> Caller:
        return head.caller

    async def authenticate(self, head: RequestHead) -> Caller:
        """Accept any caller that is known."""
        if self._forwarded is not None and head.is_forwarded:
            return await self._forwarded.authenticate(head.credentials)
        return await self._authenticator.authenticate(head.credentials)

    async def admit_to_threads(self, head: RequestHead) -> Caller:
        """Accept a caller of the threads API."""
        caller = await self.authenticate(head)
        if self.has_keys and "threads" not in caller.scopes:
            raise Refused(
                403,
                "missing_scope",
                "Conversations need a key with the scope `threads`.",
            )
        return caller

    async def admit_to_mounted(self, head: RequestHead) -> Caller:
        """Accept a caller who reads conversations; the request is counted here."""
        caller = await self.authenticate(head)
        if (
            caller.key_id is not None
            and not caller.passthrough
            and "threads" not in caller.scopes
        ):
            raise Refused(
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
            raise Refused(
                403,
                "missing_scope",
                "This key may not use the proxy; it lacks the scope `proxy`.",
            )
        return caller
