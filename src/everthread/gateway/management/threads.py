"""Which thread a request belongs to, and its new messages into that thread.

A thread is known by what was said (`identity`). It is a line of points, each where a request or an answer ended. A
request that goes on from the last point continues the thread; one that goes on from an earlier point otherwise than the
thread did is a branch. Ids follow from tenant, scope and digests, so two processes that see the same request name the
same thread; which of two different requests continues a point is decided by the store, once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from everthread.conversation.events import Listener
from everthread.core.messages import (
    Message,
    content_text,
    text_of,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, System
from everthread.errors import EverthreadError, UnknownIdError
from everthread.gateway.base import Outcome, decode_messages, encode_messages
from everthread.gateway.management.clients import BODY, SESSION_HEADER, ClientSession, read_client, scope_of
from everthread.gateway.management.events import Branched, RecordFailed
from everthread.gateway.management.identity import (
    History,
    Reminder,
    align,
    identify,
    last_spoken,
    list_reminders,
    with_reminder,
)
from everthread.store.models import NewMessage, NewSession, NewThreadLink, SessionKind, ThreadLink, ThreadLinkMatch
from everthread.store.store import Store

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

# Finding a thread

PLATFORM = "gateway"
_MOST_POINTS = 10_000
_MOST_PASSED = 4_000
_MOST_STEPS = 64
"""Points between a match and the end of its thread that are looked at."""
_MOST_REMINDERS = 64
_MOST_CHARACTERS = 2_000_000
"""So many ends of a message are tried; of a long one so many that no more than these are read."""
_MOST_KEPT, _LONGEST_KEPT = 8, 20_000
"""So many reminders of a tenant's clients are remembered, none with more characters."""


@dataclass(frozen=True, slots=True)
class ThreadMatch:
    """The thread a history belongs to, and how much of it is stored."""

    tenant: str
    scope: str
    thread: str
    matched: int = 0
    """How many of its messages are stored."""
    previous: str = ""
    """The digest of the point it goes on from."""
    branch_of: tuple[str, int] | None = None
    is_inside: bool = False
    """All of it is stored, but the thread has gone on and no point is kept where it ends: nothing is added there."""

    @property
    def explicit(self) -> bool:
        """The client named the thread: then nothing it sends is a branch."""
        return self.scope.startswith(f"{SESSION_HEADER}:")

    @property
    def is_new(self) -> bool:
        return self.branch_of is not None or not self.matched


@dataclass(frozen=True, slots=True)
class WireMessages:
    """A client's messages as the wire has them."""

    api: Api
    model: str
    values: Sequence[Any]


_Point = tuple[str, str, str]
"""Tenant, scope and digest."""


class PendingPoint:
    """A point on its way into the store: the thread it is in at the end, None where it could not be stored."""

    def __init__(self, point: _Point) -> None:
        self.point = point
        self.ended = asyncio.Event()
        self.thread: str | None = None
        self.is_answer = False
        """An answer to a request that is stored: it waits for nobody."""


class ThreadIndex:
    """Finds threads, in memory or in the store."""

    def __init__(self, store: Store, *, most: int = _MOST_POINTS) -> None:
        self._store = store
        self._tips: OrderedDict[_Point, ThreadLinkMatch] = OrderedDict()
        """The last known point of threads, by digest and by skeleton."""
        self._passed: OrderedDict[_Point, ThreadLinkMatch] = OrderedDict()
        """Points that threads have gone on from, by digest: a request that comes again ends at one."""
        self._expected: dict[_Point, PendingPoint] = {}
        self._named: dict[tuple[str, str], str] = {}
        self._reminders: dict[str, Sequence[Reminder]] = {}
        """What clients of a tenant hung on the newest user message, the last first."""
        self._most = most

    async def find_match(
        self,
        tenant: str,
        scope: str,
        history: History,
        messages: WireMessages | None = None,
        *,
        remembered: bool = True,
    ) -> ThreadMatch:
        """Where the history belongs. What is remembered may be behind the store; storing it tells.

        `messages`: what the client sent, to be compared with the stored ones where they seem to go on otherwise.
        """
        candidate = await self._find_point(tenant, scope, history, messages, remembered=remembered)
        if candidate is None and scope.startswith(BODY):
            candidate = await self._find_point(tenant, "", history, messages, remembered=remembered)
            if candidate is None or (await self._store.session(candidate[0].link.thread)).client_session:
                candidate = None  # of another session of the client's
            else:
                scope = ""  # from before sessions were read from a request's fields
        named = await self._named_thread(tenant, scope)
        if candidate is None:
            return ThreadMatch(tenant, scope, named or _id(tenant, scope, "", history.digest(len(history))))
        point, length = candidate
        match = ThreadMatch(tenant, scope, named or point.link.thread, length, point.link.digest)
        goes_elsewhere = point.next is not None and length < len(history)
        if goes_elsewhere and messages is not None:
            same = await self._align_match(match, point, history, messages)
            if same is not None:
                return same
        if named is None and goes_elsewhere and point.link.message is not None:
            branch = _id(tenant, scope, point.link.digest, history.digest(len(history)))
            return replace(match, thread=branch, branch_of=(point.link.thread, point.link.message))
        return match

    async def _find_point(
        self, tenant: str, scope: str, history: History, messages: WireMessages | None, *, remembered: bool
    ) -> tuple[ThreadLinkMatch, int] | None:
        candidate = self._find_in_memory(tenant, scope, history) if remembered else None
        candidate = candidate or await self._find_in_store(tenant, scope, history)
        if messages is None:
            return candidate
        matched = candidate[1] if candidate else 0
        return await self._match_reminder(tenant, scope, history, messages, matched, remembered=remembered) or candidate

    async def _match_reminder(  # noqa: PLR0913  a point's name, what is asked for, and what is known of it
        self, tenant: str, scope: str, history: History, messages: WireMessages, matched: int, *, remembered: bool
    ) -> tuple[ThreadLinkMatch, int] | None:
        """A longer beginning: all before the newest user message, where a reminder hung on the one before it.

        Some clients hang a reminder on the newest user message and take it away later. It ends the newest one now, or
        was found in this way before; with it all that was said is the same, word for word or but for what was cleared.
        """
        newest = last_spoken(messages.values, matched + 1, len(messages.values))
        before = last_spoken(messages.values, 0, newest)
        if before < 0:
            return None
        earlier = self._reminders.get(tenant, ())
        most = min(
            _MOST_REMINDERS, _MOST_CHARACTERS // sum(len(text_of(messages.values[at])) for at in (before, newest))
        )
        reminders = [*earlier, *itertools.islice(list_reminders(messages.values[newest]), most)][:most]
        past, between = history.until(before), history.pieces[before + 1 : newest]
        pasts = [
            past.extend((identify(messages.api, with_reminder(messages.values[before], reminder)), *between))
            for reminder in reminders
        ]
        for point in await self._find_end_points(tenant, scope, pasts, remembered=remembered):
            for reminder, same in zip(reminders, pasts, strict=True):
                if same.digest(newest) == point.link.digest or (
                    same.skeleton(newest) == point.link.skeleton and same.drifted_from(point.results, newest)
                ):
                    self._keep_reminder(tenant, reminder)
                    return point, newest
        return None

    def _keep_reminder(self, tenant: str, reminder: Reminder) -> None:
        if len(reminder[0]) + len(str(reminder[1])) > _LONGEST_KEPT:
            return
        others = (other for other in self._reminders.pop(tenant, ()) if other != reminder)
        self._reminders[tenant] = [reminder, *others][:_MOST_KEPT]
        while len(self._reminders) > self._most:
            self._reminders.pop(next(iter(self._reminders)))

    async def _find_end_points(
        self, tenant: str, scope: str, pasts: Sequence[History], *, remembered: bool
    ) -> Sequence[ThreadLinkMatch]:
        """The points at which one of these histories ends."""
        digests, skeletons = ([one.digest(len(one)) for one in pasts], [one.skeleton(len(one)) for one in pasts])
        remembered_points = (
            [self._tips.get((tenant, scope, key)) for key in (*digests, *skeletons)] if remembered else []
        )
        points = [point for point in remembered_points if point is not None]
        if not points:
            stored = await self._store.find_link(tenant, scope, digests)
            points = [stored] if stored else await self._store.find_skeletons(tenant, scope, skeletons)
        return points

    def expect(self, match: ThreadMatch, history: History) -> PendingPoint:
        """Announce a history that will be stored: a request that continues it belongs to the same thread."""
        expected = PendingPoint((match.tenant, match.scope, history.digest(len(history))))
        if expected.point not in self._expected and (len(history) > match.matched or match.is_new):
            self._expected[expected.point] = expected
            self._remember(_link(match, history), history)
        return expected

    def fulfil(self, expected: PendingPoint, thread: str | None) -> None:
        """It is in that thread now; None: it could not be stored, and nothing is known of it."""
        if self._expected.get(expected.point) is not expected:
            return
        del self._expected[expected.point]
        if thread is None:
            self._forget(expected.point[2])
        expected.thread = thread
        expected.ended.set()

    async def wait_for_point(self, match: ThreadMatch) -> bool:
        """Wait for the point a history continues; whether it is in the expected thread."""
        expected = self._expected.get((match.tenant, match.scope, match.previous))
        if expected is None:
            return True
        await expected.ended.wait()
        return expected.thread == match.thread or (match.explicit and expected.thread is not None)

    async def wait_for_answers(self, tenant: str, scope: str) -> None:
        """Wait until the pending answers of a client's session are stored."""
        points = [point for point in self._expected.values() if point.is_answer and point.point[:2] == (tenant, scope)]
        for point in points:
            await point.ended.wait()

    async def store(  # noqa: PLR0913  what a thread begins with, each by its name
        self,
        match: ThreadMatch,
        history: History,
        messages: Sequence[Message],
        *,
        system: System = None,
        model: str = "",
        client: ClientSession | None = None,
        kind: SessionKind = "main",
        sizes: Sequence[int] = (),
    ) -> ThreadMatch | None:
        """Store the new messages and return the match; None where the thread was continued otherwise meanwhile."""
        length = len(history)
        if length == match.matched and not match.is_new:
            return match
        digest = history.digest(length)
        link = _link(match, history)
        client = client or ClientSession()
        session = NewSession(
            id=match.thread, kind=kind, tenant=match.tenant, platform=PLATFORM, model=model, system=system,
            client=client.client, client_session=client.session,
        )  # fmt: skip
        tokens = share_tokens(sizes, messages)
        new = [
            NewMessage(body, event=f"{digest}:{index}", tokens=size)
            for index, (body, size) in enumerate(zip(messages, tokens, strict=True))
        ]
        step = digest if match.explicit else match.previous
        stored = await self._store.extend_link(
            NewThreadLink(link, step, session, match.branch_of, new, client.parent or client.session)
        )
        if stored is None:
            return None
        self._remember(stored, history)
        return replace(match, thread=stored.thread, matched=length, previous=digest, branch_of=None)

    def forget(self, match: ThreadMatch) -> None:
        """Forget a remembered point that the store contradicts."""
        self._forget(match.previous)

    def _forget(self, digest: str) -> None:
        for points in (self._tips, self._passed):
            for key in [key for key, point in points.items() if point.link.digest == digest]:
                del points[key]

    # Memory

    def _find_in_memory(self, tenant: str, scope: str, history: History) -> tuple[ThreadLinkMatch, int] | None:
        """The last point of a thread, where the history goes on from it; an earlier one only where it ends there."""
        again = self._passed.get((tenant, scope, history.digest(len(history))))
        if again is not None:
            return again, len(history)
        for length in range(len(history), 0, -1):
            point = self._tips.get((tenant, scope, history.digest(length)))
            if point is None and history.skeleton(length):
                point = self._tips.get((tenant, scope, history.skeleton(length)))
                if point is not None and not history.drifted_from(point.results, length):
                    point = None
            if point is not None:
                return point, length
        return None

    def _remember(self, link: ThreadLink, history: History) -> None:
        """A new last point; it takes the place of the one before it."""
        for key in _keys(link.tenant, link.scope, link.previous, history, link.length):
            passed = self._tips.pop(key, None)
            if passed is not None and passed.link.digest == key[2] != link.digest:
                self._passed[key] = ThreadLinkMatch(passed.link, link.digest, "")
        while len(self._passed) > _MOST_PASSED:
            self._passed.popitem(last=False)
        point = ThreadLinkMatch(link, None, history.results(0, link.length))
        self._tips[link.tenant, link.scope, link.digest] = point
        if link.skeleton:
            self._tips[link.tenant, link.scope, link.skeleton] = point
        while len(self._tips) > self._most:
            self._tips.popitem(last=False)

    # The store

    async def _find_in_store(self, tenant: str, scope: str, history: History) -> tuple[ThreadLinkMatch, int] | None:
        """The longest known beginning: word for word, or but for what was cleared."""
        digests = history.digests
        link_match = await self._store.find_link(tenant, scope, digests)
        if link_match is None and history.legacy_digests:
            digests = history.legacy_digests
            link_match = await self._store.find_link(tenant, scope, digests)
        best = (link_match, digests.index(link_match.link.digest) + 1) if link_match else None
        matched = best[1] if best else 0
        if matched == len(history):
            return best
        similar_ones = await self._store.find_skeletons(tenant, scope, history.skeletons_after(matched))
        for similar in sorted(similar_ones, key=lambda point: (-point.link.length, point.next is not None)):
            length = history.skeletons.index(similar.link.skeleton) + 1
            if length > matched and history.drifted_from(similar.results, length):
                return similar, length
        return best

    async def _align_match(
        self, match: ThreadMatch, point: ThreadLinkMatch, history: History, messages: WireMessages
    ) -> ThreadMatch | None:
        """The same thread after all: what follows is a beginning of what is stored, or goes on from its end.

        The assistant's words may be others there, where a client re-worded or shortened them.
        """
        tip = point
        for _ in range(_MOST_STEPS):
            if tip.next is None:
                break
            following = await self._store.find_link(match.tenant, match.scope, [tip.next])
            if following is None:
                return None
            tip = following
        if tip.next is not None or tip.link.thread != point.link.thread or point.link.message is None:
            return None
        stored = [
            message.body
            for message in await self._store.history(point.link.thread)
            if message.id > point.link.message and (tip.link.message is None or message.id <= tip.link.message)
        ]
        if stored and stored[0]["role"] == "assistant":  # no protocol begins with one
            values = encode_messages(messages.api, [{"role": "user", "content": "."}, *stored], messages.model)[1:]
        else:
            values = encode_messages(messages.api, stored, messages.model)
        mine, theirs = align(messages.api, messages.values[match.matched :], values)
        if match.matched + mine == len(history):
            return replace(match, matched=len(history), previous=history.digest(len(history)), is_inside=True)
        if theirs == len(values):
            return replace(match, matched=match.matched + mine, previous=tip.link.digest)
        return None

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


def share_tokens(sizes: Sequence[int], messages: Sequence[Message]) -> list[int | None]:
    """The tokens of messages, of which the wire's own are known: shared by length where it has more of them."""
    if not sizes or len(sizes) == len(messages):
        return list(sizes) or [None] * len(messages)
    lengths = [len(content_text(message.get("content"))) + 8 for message in messages]
    return [sum(sizes) * length // sum(lengths) for length in lengths]


def _link(match: ThreadMatch, history: History) -> ThreadLink:
    length = len(history)
    return ThreadLink(
        match.tenant, match.scope, history.digest(length), match.previous, history.skeleton(length), match.thread,
        length, None, history.results(match.matched, length),
    )  # fmt: skip


def _keys(tenant: str, scope: str, previous: str, history: History, length: int) -> list[tuple[str, str, str]]:
    if not previous:
        return []
    keys = [(tenant, scope, previous)]
    for index in range(length - 1, -1, -1):  # it is mostly close to the end
        if history.digests[index] == previous:
            return [*keys, (tenant, scope, history.skeletons[index])]
    return keys


def _id(*parts: str) -> str:
    text = "\0".join(parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"gateway").hexdigest()


def named_thread_id(tenant: str, name: str) -> str:
    """The id of the thread that a client calls by a name of its own."""
    return _id(tenant, scope_of({SESSION_HEADER: name}), "", "")


# Storing a request and its answer


class ThreadRecorder:
    def __init__(self, threads: ThreadIndex, listener: Listener) -> None:
        self._threads = threads
        self._listener = listener

    def begin(self, turn: ManagedTurn) -> None:
        """Expect the request in the store: one that continues it is matched from now on."""
        turn.expected = self._threads.expect(turn.match, turn.history)

    async def store_request(self, turn: ManagedTurn) -> ThreadMatch:
        """Store the request's new messages; a caller that is cancelled does not cancel this."""
        return await asyncio.shield(self.start(turn))

    def start(self, turn: ManagedTurn) -> asyncio.Task[ThreadMatch]:
        """Store it in the background: what is about to be sent goes before it."""
        if turn.storing is None:
            turn.storing = asyncio.get_running_loop().create_task(self._record(turn))
        return turn.storing

    def expect_answer(self, turn: ManagedTurn, outcome: Outcome) -> PendingAnswer | None:
        """Expect a complete answer in the store: a request that continues it is matched from now on."""
        if not (200 <= outcome.status < 300) or outcome.reply is None or outcome.reply.stop is None:
            return None
        message, api = outcome.reply.message, turn.incoming.api
        values = encode_messages(api, [message], turn.model)
        pieces = [identify(api, value) for value in values if value.get("role") != "user" and _says_something(value)]
        if not pieces:
            return None
        past = turn.history.extend(pieces)
        expected = self._threads.expect(_match_after(turn.match, turn.history), past)
        expected.is_answer = turn.is_stored
        return PendingAnswer(message, past, expected)

    async def store_answer(self, answer: PendingAnswer, match: ThreadMatch, turn: ManagedTurn) -> None:
        """Store the answer. A second answer to the same request is stored when the client continues it."""
        stored = None
        try:
            if match.matched == len(turn.history) and not match.is_inside:
                size = TokenCounter(turn.model).message(answer.message)
                stored = await self._threads.store(match, answer.history, [answer.message], sizes=[size])
        finally:
            self._threads.fulfil(answer.expected, stored.thread if stored else None)

    def give_up(self, answer: PendingAnswer) -> None:
        """Stop expecting an answer that is not stored."""
        self._threads.fulfil(answer.expected, None)

    async def _record(self, turn: ManagedTurn) -> ThreadMatch:
        """Store the request. A failure is reported as an event; the request goes on."""
        await asyncio.sleep(0)  # the task that writes to the upstream was made after this one
        thread = None
        try:
            turn.match = await self._store_messages(turn, turn.match)
            turn.is_stored = True
            thread = None if turn.match.is_inside else turn.match.thread  # nobody goes on from a point that is not kept
        except EverthreadError as error:
            self._listener(RecordFailed(turn.match.thread, str(error)))
        finally:
            if turn.expected is not None:
                self._threads.fulfil(turn.expected, thread)
        return turn.match

    async def _store_messages(self, turn: ManagedTurn, match: ThreadMatch) -> ThreadMatch:
        certain = await self._threads.wait_for_point(match)
        if match.is_new and match.scope:  # a subagent stands under what called it, which the client has heard already
            await self._threads.wait_for_answers(match.tenant, match.scope)
        while True:
            if not certain:  # another process went on from there first
                self._threads.forget(match)
                match = await self._threads.find_match(
                    match.tenant, match.scope, turn.history, turn.wire_messages, remembered=False
                )
            new = [element.value for element in turn.elements_from(match.matched)]
            messages = decode_messages(turn.incoming.api, new, turn.model)
            client = read_client(turn.incoming.headers, turn.sliced.fields)
            stored = await self._threads.store(
                match, turn.history, messages, system=turn.frame.system, model=turn.model, client=client,
                kind=thread_kind(client, has_tools=bool(turn.frame.tools)), sizes=turn.sizes[match.matched :],
            )  # fmt: skip
            if stored is not None:
                if match.branch_of is not None:
                    self._listener(Branched(stored.thread, match.branch_of[0], match.matched))
                return stored
            certain = False


def thread_kind(client: ClientSession, *, has_tools: bool) -> SessionKind:
    """As what a thread begins: within a client's session, one without tools is a title or a count until it goes on."""
    if client.is_subagent:
        return "subagent"
    return "side" if client.session and not has_tools else "main"


def _says_something(value: Mapping[str, Any]) -> bool:
    """An empty message is nobody's answer: the client asks again, or sends it along with what it says next."""
    return any(content for name, content in value.items() if name not in ("role", "type", "id", "status"))


class PendingAnswer:
    """An answer to be stored, and the history that ends with it."""

    def __init__(self, message: Message, history: History, expected: PendingPoint) -> None:
        self.message = message
        self.history = history
        self.expected = expected


def _match_after(match: ThreadMatch, history: History) -> ThreadMatch:
    """The match of a request once its messages are stored."""
    return replace(match, matched=len(history), previous=history.digest(len(history)), branch_of=None)
