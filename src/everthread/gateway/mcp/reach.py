"""Whose conversations a call may see, and which of them it means."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.conversation.lookup import LookupCache, StoreLookup
from everthread.errors import AmbiguousIdError, InputError, UnknownIdError
from everthread.gateway.threads import named_thread_id
from everthread.store.store import Store


@dataclass(frozen=True, slots=True)
class Reach:
    """One tenant; `confined`: of it only the thread."""

    tenant: str
    thread: str | None = None
    """The thread a call means where it names none: any id of it, how one begins, or a client's own name for it."""
    confined: bool = False


async def thread_meant(store: Store, reach: Reach, named: str) -> str | None:
    """The thread a call is about; None where nobody named one. `UnknownIdError` for another tenant's as for none."""
    if reach.thread is None:
        return await _resolved(store, reach.tenant, named) if named else None
    own = await _resolved(store, reach.tenant, reach.thread)
    if not named:
        return own
    other = await _resolved(store, reach.tenant, named)
    if reach.confined and other != own:
        raise UnknownIdError(f"there is no thread {named[:80]!r} here; leave the thread out")
    return other


def lookup_in(store: Store, reach: Reach, thread: str | None, known: LookupCache) -> StoreLookup:
    return StoreLookup(store, reach.tenant, thread, reach="thread" if reach.confined else "all", known=known)


async def _resolved(store: Store, tenant: str, name: str) -> str:
    for given in (name, named_thread_id(tenant, name)):
        try:
            session = await store.resolve(given, tenant=tenant)
        except UnknownIdError:
            continue
        except AmbiguousIdError as error:
            raise InputError(f"several threads begin with {name[:80]!r}; give more of the id") from error
        return session.thread
    raise UnknownIdError(f"there is no thread {name[:80]!r}; `status` without a thread lists the latest ones")
