"""Which thread a request belongs to, and its new messages into that thread.

A thread is a line of points, each where a request or an answer ended. A request that goes on from the last point
continues the thread; one that goes on from an earlier point otherwise than the thread did is a branch. Ids follow from
tenant, scope and digests, so two processes that see the same request name the same thread; which of two different
requests continues a point is decided by the store, once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from everthread.core.exchange import System
from everthread.core.messages import Message
from everthread.errors import UnknownIdError
from everthread.gateway.identity import SESSION_HEADER, History, scope_of
from everthread.store.models import NewMessage, NewSession, NewThreadLink, ThreadLink, ThreadLinkMatch
from everthread.store.store import Store

PLATFORM = "gateway"
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a history belongs."""

    tenant: str
    scope: str
    thread: str
    matched: int = 0
    """How many of its messages are known."""
    previous: str = ""
    """The digest of the point it goes on from."""
    branch_of: tuple[str, int] | None = None

    @property
    def explicit(self) -> bool:
        """The client named the thread: then nothing it sends is a branch."""
        return self.scope.startswith(f"{SESSION_HEADER}:")

    @property
    def is_new(self) -> bool:
        return self.branch_of is not None or not self.matched


_Point = tuple[str, str, str]
"""Tenant, scope and digest."""


class Expected:
    """A point on its way into the store: the thread it is in at the end, None where it could not be stored."""

    def __init__(self, point: _Point) -> None:
        self.point = point
        self.ended = asyncio.Event()
        self.thread: str | None = None


class Threads:
    """Finds threads, in memory or in the store."""

    def __init__(self, store: Store, *, most: int = _MOST_KNOWN) -> None:
        self._store = store
        self._tips: OrderedDict[_Point, ThreadLinkMatch] = OrderedDict()
        """The last known point of threads, by digest and by skeleton."""
        self._expected: dict[_Point, Expected] = {}
        self._named: dict[tuple[str, str], str] = {}
        self._most = most

    async def place(self, tenant: str, scope: str, history: History, *, remembered: bool = True) -> Place:
        """Where the history belongs. What is remembered may be behind the store; storing it tells."""
        found = self._remembered(tenant, scope, history) if remembered else None
        if found is None:
            found = await self._stored(tenant, scope, history)
        named = await self._named_thread(tenant, scope)
        if found is None:
            return Place(tenant, scope, named or _id(tenant, scope, "", history.digest(len(history))))
        known, length = found
        place = Place(tenant, scope, named or known.link.thread, length, known.link.digest)
        goes_elsewhere = known.next is not None and length < len(history)
        if named is None and goes_elsewhere and known.link.message is not None:
            branch = _id(tenant, scope, known.link.digest, history.digest(len(history)))
            return replace(place, thread=branch, branch_of=(known.link.thread, known.link.message))
        return place

    def expect(self, place: Place, history: History) -> Expected:
        """A history that will be stored there: who goes on from it meanwhile belongs to the same thread."""
        expected = Expected((place.tenant, place.scope, history.digest(len(history))))
        if expected.point not in self._expected and (len(history) > place.matched or place.is_new):
            self._expected[expected.point] = expected
            self._remember(_link(place, history), history)
        return expected

    def fulfil(self, expected: Expected, thread: str | None) -> None:
        """It is in that thread now; None: it could not be stored, and nothing is known of it."""
        if self._expected.get(expected.point) is not expected:
            return
        del self._expected[expected.point]
        if thread is None:
            self._forget(expected.point[2])
        expected.thread = thread
        expected.ended.set()

    async def settled(self, place: Place) -> bool:
        """Whether the point that a history goes on from is where it was expected, after waiting for it."""
        expected = self._expected.get((place.tenant, place.scope, place.previous))
        if expected is None:
            return True
        await expected.ended.wait()
        return expected.thread == place.thread or (place.explicit and expected.thread is not None)

    async def store(
        self, place: Place, history: History, messages: Sequence[Message], *, system: System = None, model: str = ""
    ) -> Place | None:
        """Store what is new. The place it ended up at; None where the thread went on otherwise meanwhile."""
        length = len(history)
        if length == place.matched and not place.is_new:
            return place
        digest = history.digest(length)
        link = _link(place, history)
        session = NewSession(id=place.thread, tenant=place.tenant, platform=PLATFORM, model=model, system=system)
        new = [NewMessage(body, event=f"{digest}:{index}") for index, body in enumerate(messages)]
        step = digest if place.explicit else place.previous
        stored = await self._store.extend_link(NewThreadLink(link, step, session, place.branch_of, new))
        if stored is None:
            return None
        self._remember(stored, history)
        return replace(place, thread=stored.thread, matched=length, previous=digest, branch_of=None)

    def forget(self, place: Place) -> None:
        """What is remembered of a place was wrong."""
        self._forget(place.previous)

    def _forget(self, digest: str) -> None:
        for key in [key for key, known in self._tips.items() if known.link.digest == digest]:
            del self._tips[key]

    # Memory

    def _remembered(self, tenant: str, scope: str, history: History) -> tuple[ThreadLinkMatch, int] | None:
        """The last point of a thread, where the history goes on from it; earlier points only the store knows."""
        for length in range(len(history), 0, -1):
            known = self._tips.get((tenant, scope, history.digest(length)))
            if known is None and history.skeleton(length):
                known = self._tips.get((tenant, scope, history.skeleton(length)))
                if known is not None and not history.drifted_from(known.results, length):
                    known = None
            if known is not None:
                return known, length
        return None

    def _remember(self, link: ThreadLink, history: History) -> None:
        """A new last point; it takes the place of the one before it."""
        for key in _keys(link.tenant, link.scope, link.previous, history, link.length):
            self._tips.pop(key, None)
        known = ThreadLinkMatch(link, None, history.results(0, link.length))
        self._tips[link.tenant, link.scope, link.digest] = known
        if link.skeleton:
            self._tips[link.tenant, link.scope, link.skeleton] = known
        while len(self._tips) > self._most:
            self._tips.popitem(last=False)

    # The store

    async def _stored(self, tenant: str, scope: str, history: History) -> tuple[ThreadLinkMatch, int] | None:
        """The longest known beginning: word for word, or but for what was cleared."""
        found = await self._store.find_link(tenant, scope, history.digests)
        best = (found, history.digests.index(found.link.digest) + 1) if found else None
        known = best[1] if best else 0
        if known == len(history):
            return best
        similar_ones = await self._store.find_skeletons(tenant, scope, history.skeletons_after(known))
        for similar in sorted(similar_ones, key=lambda point: (-point.link.length, point.next is not None)):
            length = history.skeletons.index(similar.link.skeleton) + 1
            if length > known and history.drifted_from(similar.results, length):
                return similar, length
        return best

    async def _named_thread(self, tenant: str, scope: str) -> str | None:
        """The thread a client named: one of its tenant's, or a new one."""
        prefix = f"{SESSION_HEADER}:"
        if not scope.startswith(prefix):
            return None
        if (tenant, scope) not in self._named:
            name = scope.removeprefix(prefix)
            thread = _id(tenant, scope, "", "")
            try:
                session = await self._store.session(name)
                if (session.tenant, session.platform) == (tenant, PLATFORM):
                    thread = session.thread
            except UnknownIdError:
                pass  # a name of the client's own
            if len(self._named) >= self._most:
                self._named.clear()
            self._named[tenant, scope] = thread
        return self._named[tenant, scope]


def _link(place: Place, history: History) -> ThreadLink:
    length = len(history)
    return ThreadLink(
        place.tenant, place.scope, history.digest(length), place.previous, history.skeleton(length), place.thread,
        length, None, history.results(place.matched, length),
    )  # fmt: skip


def _keys(tenant: str, scope: str, previous: str, history: History, length: int) -> list[tuple[str, str, str]]:
    if not previous:
        return []
    keys = [(tenant, scope, previous)]
    if previous in history.digests[:length]:
        keys.append((tenant, scope, history.skeletons[history.digests.index(previous)]))
    return keys


def _id(*parts: str) -> str:
    text = "\0".join(parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"gateway").hexdigest()


def thread_named(tenant: str, name: str) -> str:
    """The id of the thread that a client calls by a name of its own."""
    return _id(tenant, scope_of({SESSION_HEADER: name}), "", "")
