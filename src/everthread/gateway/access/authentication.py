"""Authenticate requests: by a key of this gateway, by the credential for the upstream, or not at all.

A key is `et_`, its public id, and 256 random bits. It is shown once; only its digest is stored. A plain SHA-256 is
enough, since 256 random bits cannot be guessed.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.recent_dict import RecentDict
from everthread.core.utc_days import DAY_SECONDS
from everthread.errors import EverthreadError
from everthread.gateway.access.key_creation import digest_of, is_key
from everthread.gateway.access.quotas import KeyAccount, KeyUsageCounter
from everthread.gateway.contracts import CREDENTIAL_HEADERS, Account, Mode
from everthread.gateway.error_answers import RequestRefused
from everthread.store.key_records import StoredKey
from everthread.store.records import DEFAULT_TENANT
from everthread.store.store import Store


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client."""

    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()
    is_passthrough: bool = False
    """Whether its credential is the upstream's own and is forwarded; a gateway key never leaves the gateway."""
    mode: Mode | None = None
    """The mode of its key, or None for the mode of the upstream."""
    account: Account | None = field(default=None, compare=False, repr=False)
    """The remaining allowance of its key, or None if it has no limit."""
    credential: PassthroughCredential | None = field(default=None, compare=False, repr=False)
    """The credential, if only the upstream can check it, or None if the gateway has checked it."""

    @property
    def admission_group(self) -> str | None:
        """The group of callers that shares a limit of concurrent requests: the tenant, with all its keys.

        All unknown credentials, which may be made up, form one group. None if there is only one user.
        """
        if self.credential is not None and not self.credential.is_known:
            return ""
        return None if self.key_id is None else self.tenant

    def admit(self) -> None:
        """Count a request. Raise `RequestRefused` if a limit is reached."""
        if self.account is not None:
            self.account.admit()

    async def authorize(self, usage: CanonicalUsage, model: str) -> None:
        """Raise `RequestRefused` unless this client may spend this usage on the operator's own key.

        Called before every use of the operator's key: for a summary of a proxied conversation, for a compaction item
        and for `/v1/compact`. A credential that no upstream has accepted may be made up; a gateway key has limits.
        """
        if self.credential is not None and not await self.credential.is_accepted():
            raise RequestRefused(
                403,
                "unknown_credential",
                "No upstream has accepted this credential yet.",
            )
        if self.account is not None:
            self.account.authorize(usage, model)


class Authenticator(Protocol):
    """Authenticates requests; raises `RequestRefused`."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Find the caller of a request. `headers`: its `CREDENTIAL_HEADERS`, by their lower-case names."""
        ...


class OpenAuthenticator:
    """Accept every request as one of the gateway's only owner, whatever credential it has for the upstream."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:  # noqa: ARG002  nothing in them matters
        return Caller(is_passthrough=True)


class ForwardedAuthenticator:
    """Authenticate requests that another server forwards, for several people, to a gateway without keys.

    Each set of credentials is a tenant; all requests without a credential belong to one tenant.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        sent_credentials = list_credentials(headers)
        return Caller(
            derive_tenant(self._secret, sent_credentials) if sent_credentials else FORWARDED_TENANT,
            is_passthrough=True,
        )


FORWARDED_TENANT = "forwarded"


def derive_tenant(secret: bytes, sent_credentials: Iterable[str]) -> str:
    """Return the tenant of the credentials in a request.

    The tenant depends on all of them, so that no client gets a tenant without the credential that the upstream accepts.
    """
    text = "\0".join(sent_credentials).encode("utf-8", "surrogatepass")
    return f"up_{hmac.digest(secret, text, 'sha256').hex()[:40]}"


KEY_CACHE_SECONDS = 3.0
"""Seconds for which a looked-up key is cached; a revoked key may be accepted this long."""
TENANT_SECRET_NAME = "gateway.tenants"  # noqa: S105  the secret's name  # nosec B105
_LOOKUP_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for the store to look a key up."""
_LATE_FACTOR = 1.1
"""If a wait took longer than its limit by this factor, the event loop was busy, and the store is not to blame."""
_MAX_CACHED_CREDENTIALS = 10_000
_ACCEPTED_STATE = "gateway.accepted"
_ACCEPTED_LIFETIME_SECONDS = 30 * DAY_SECONDS
"""Seconds for which a credential counts as accepted after an upstream has accepted it."""
_LOG = logging.getLogger("everthread.gateway")
T = TypeVar("T")


def list_credentials(headers: Mapping[str, str]) -> list[str]:
    """Return a client's credentials: the token of `Authorization`, and the providers' own headers."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    authorization = token.strip() if scheme.lower() == "bearer" else f"{scheme} {token}".strip()
    credentials = [authorization, *(headers.get(name, "") for name in CREDENTIAL_HEADERS[1:])]
    return [text for text in credentials if text]


async def _wait_for_answer(lookup: asyncio.Task[T]) -> T:
    """Return the store's answer; raise `TimeoutError` if there is none. If the event loop was late, wait once more."""
    for _attempt in range(2):
        start_time = time.monotonic()
        finished_tasks, _ = await asyncio.wait({lookup}, timeout=_LOOKUP_TIMEOUT_SECONDS)
        if finished_tasks:
            return lookup.result()
        if time.monotonic() - start_time < _LATE_FACTOR * _LOOKUP_TIMEOUT_SECONDS:
            break
    raise TimeoutError


class KeyAuthenticator:
    """Accept requests with a key that is stored and not revoked. The key is never sent upstream."""

    def __init__(
        self,
        store: Store,
        *,
        usage_counter: KeyUsageCounter | None = None,
        clock: Callable[[], float] = time.monotonic,
        cache_seconds: float = KEY_CACHE_SECONDS,
    ) -> None:
        self._store = store
        self._usage_counter = usage_counter or KeyUsageCounter(store)
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._lookups: RecentDict[str, tuple[asyncio.Task[StoredKey | None], float]] = RecentDict(
            _MAX_CACHED_CREDENTIALS
        )
        """By digest of the key, the cached lookup and its expiry."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        sent_credentials = list_credentials(headers)
        if not sent_credentials:
            raise RequestRefused(
                401,
                "missing_api_key",
                "The request has no API key. Send one as `Authorization: Bearer et_…`.",
            )
        token = next(filter(is_key, sent_credentials), None)
        stored_key = await self._find_key(digest_of(token)) if token is not None else None
        if stored_key is None or stored_key.revoked_at is not None:
            raise RequestRefused(
                401,
                "invalid_api_key",
                "This API key is not known here, or was revoked.",
            )
        key = stored_key.key
        mode = cast("Mode | None", key.mode)
        return Caller(
            key.tenant,
            key.id,
            key.scopes,
            mode=mode,
            account=KeyAccount(self._usage_counter, key),
        )

    async def has_keys(self) -> bool:
        """Return whether any key exists."""
        return any(
            key.revoked_at is None
            for key in await self._store.keys.list_keys(self._usage_counter.day)
        )

    async def close(self) -> None:
        await self._usage_counter.close()

    async def _find_key(self, digest: str) -> StoredKey | None:
        """Return the key, at most `cache_seconds` old; concurrent callers share one lookup."""
        lookup = self._lookups.get(digest)
        if lookup is None or self._clock() >= lookup[1]:
            task = asyncio.get_running_loop().create_task(self._read_key(digest))
            lookup = self._lookups[digest] = (task, self._clock() + self._cache_seconds)
        try:
            return await _wait_for_answer(lookup[0])
        except (EverthreadError, TimeoutError) as error:
            if self._lookups.get(digest) is lookup:
                del self._lookups[digest]
            _LOG.warning(
                "a key cannot be looked up: %s",
                str(error) or f"no answer within {_LOOKUP_TIMEOUT_SECONDS:g} s",
            )
            message = "API keys cannot be checked right now. Try again in a second."
            raise RequestRefused(503, "keys_unavailable", message, retry_after=1) from error

    async def _read_key(self, digest: str) -> StoredKey | None:
        day = self._usage_counter.day
        stored_key = await self._store.keys.find_key(digest, day)
        if stored_key is None or not hmac.compare_digest(stored_key.key.digest, digest):
            return None
        self._usage_counter.add_stored_use(stored_key.key.id, day, stored_key.use_of_day)
        return stored_key


class AcceptedCredentials:
    """The digests of credentials that an upstream has accepted, stored for 30 days and used by all processes."""

    def __init__(self, store: Store, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._accepted_until: RecentDict[str, float] = RecentDict(_MAX_CACHED_CREDENTIALS)
        """The expiry of each accepted credential, by its digest."""
        self._storing_tasks: set[asyncio.Task[None]] = set()

    async def has(self, digest: str) -> bool:
        accepted_until = self._accepted_until.get(digest)
        if accepted_until is None:
            try:
                stored_time = await self._store.state.get_state(_ACCEPTED_STATE, digest)
            except EverthreadError as error:
                _LOG.warning("whether a credential was accepted cannot be looked up: %s", error)
                return False
            accepted_until = float(stored_time) if isinstance(stored_time, int | float) else 0.0
            if accepted_until > self._wall_clock():
                self._accepted_until[digest] = accepted_until
        return accepted_until > self._wall_clock()

    def is_known(self, digest: str) -> bool:
        """Return whether a credential is known in this process, without asking the store."""
        return self._accepted_until.get(digest, 0.0) > self._wall_clock()

    def add(self, digest: str) -> None:
        """Accept a credential at once in this process, and store it in the background."""
        accepted_until = self._wall_clock() + _ACCEPTED_LIFETIME_SECONDS
        self._accepted_until[digest] = accepted_until
        task = asyncio.get_running_loop().create_task(self._store_accepted(digest, accepted_until))
        self._storing_tasks.add(task)
        task.add_done_callback(self._storing_tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._storing_tasks)

    async def _store_accepted(self, digest: str, accepted_until: float) -> None:
        try:
            await self._store.state.put_state(_ACCEPTED_STATE, digest, accepted_until)
        except EverthreadError as error:
            _LOG.warning("that a credential was accepted cannot be stored: %s", error)


@dataclass(frozen=True, slots=True)
class PassthroughCredential:
    """A client's credential for the upstream. Its requests are only forwarded until an upstream has accepted it."""

    digest: str
    accepted: AcceptedCredentials

    @property
    def is_known(self) -> bool:
        return self.accepted.is_known(self.digest)

    async def is_accepted(self) -> bool:
        return await self.accepted.has(self.digest)

    def accept(self) -> None:
        """Remember that an upstream has answered to this credential with 2xx."""
        self.accepted.add(self.digest)


class PassthroughAuthenticator:
    """Forward the client's credential to the upstream, which checks it. The tenant is a keyed digest of it."""

    def __init__(self, secret: bytes, accepted: AcceptedCredentials) -> None:
        self._secret = secret
        self._accepted = accepted

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        sent_credentials = list_credentials(headers)
        if not sent_credentials:
            raise RequestRefused(
                401,
                "missing_api_key",
                "The request has no credential. Send the one for the upstream; it is forwarded.",
            )
        tenant = derive_tenant(self._secret, sent_credentials)
        credential = PassthroughCredential(tenant, self._accepted)
        return Caller(
            tenant,
            tenant,
            frozenset({"proxy"}),
            is_passthrough=True,
            credential=credential,
        )
