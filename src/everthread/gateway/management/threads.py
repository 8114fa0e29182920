"""Which thread a request belongs to, and its new messages into that thread.

A thread is known by what was said (`identity`). It is a line of points, each where a request or an answer ended. A
request that goes on from the last point continues the thread; one that goes on from an earlier point otherwise than the
thread did is a branch. Ids follow from tenant, scope and digests, so two processes that see the same request name the
same thread; which of two different requests continues a point is decided by the store, once.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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
from everthread.core.types import Api
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
from everthread.store.models import (
    NewMessage,
    NewSession,
    NewThreadLink,
    NewUsage,
    SessionKind,
    ThreadLink,
    ThreadLinkMatch,
)
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
        """An answer to a request that is stored, or is with it: it waits for nobody."""
        self.hasten: Callable[[], object] | None = None
        """Has it stored now, where it is put off."""


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
        if expected.hasten is not None:
            expected.hasten()
        await expected.ended.wait()
        return expected.thread == match.thread or (match.explicit and expected.thread is not None)

    async def wait_for_answers(self, tenant: str, scope: str) -> None:
        """Wait until the pending answers of a client's session are stored."""
        points = [point for point in self._expected.values() if point.is_answer and point.point[:2] == (tenant, scope)]
        for point in points:
            await point.ended.wait()

    async def store(
        self,
        match: ThreadMatch,
        steps: Sequence[ThreadStep],
        usage: Sequence[NewUsage] = (),
        state: tuple[str, Any] | None = None,
    ) -> list[ThreadMatch]:
        """Store steps that follow each other, with usage and state: one transaction. The match at the end of each.

        It may be of another thread, where somebody stored the same. Fewer than the steps where the thread was
        continued otherwise meanwhile; where the first one's is missing, nothing was stored.
        """
        points, ends = [], []
        for step in steps:
            points.append(_new_point(match, step))
            match = _match_after(match, step.history)
            ends.append(match)
        matches = []
        links = await self._store.extend_thread(match.thread, points, usage, state)
        for step, end, link in zip(steps, ends, links, strict=False):
            if link is not None:
                self._remember(link, step.history)
                matches.append(end if end.thread == link.thread else replace(end, thread=link.thread))
        return matches

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


@dataclass(frozen=True, slots=True)
class ThreadStep:
    """New messages of a thread, and the history that ends with them."""

    history: History
    messages: Sequence[Message]
    sizes: Sequence[int]
    """Tokens of the wire's messages."""
    session: NewSession
    """What the thread begins with, where it is new."""
    client_parent: str = ""


def _new_point(match: ThreadMatch, step: ThreadStep) -> NewThreadLink:
    link = _link(match, step.history)
    tokens = share_tokens(step.sizes, step.messages)
    new = [
        NewMessage(body, event=f"{link.digest}:{index}", tokens=size)
        for index, (body, size) in enumerate(zip(step.messages, tokens, strict=True))
    ]
    taken = link.digest if match.explicit else match.previous
    return NewThreadLink(link, taken, step.session, match.branch_of, new, step.client_parent)


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


_DELAY = 1.0
"""Seconds for which a request waits for its answer, to be stored with it."""


class ThreadRecorder:
    """Stores requests and their answers.

    `alone`: no other process extends these threads. Then a request that continues one is stored with its answer, in one
    transaction, or a moment later. Else it is stored at once: only the store decides which of two processes continues
    a point, and the client is told the thread.
    """

    def __init__(self, threads: ThreadIndex, listener: Listener, *, alone: bool = False) -> None:
        self._threads = threads
        self._listener = listener
        self._alone = alone

    def begin(self, turn: ManagedTurn) -> None:
        """Expect the request in the store: one that continues it is matched from now on."""
        turn.expected = self._threads.expect(turn.match, turn.history)

    def start(self, turn: ManagedTurn) -> None:
        """Store the request in the background, or put it off until there is an answer."""
        if turn.storing is not None:
            return
        if self._alone and turn.memory.is_stored and turn.expected is not None and not turn.match.is_new:
            turn.expected.hasten = functools.partial(self._store_now, turn)
            turn.delay = asyncio.get_running_loop().call_later(_DELAY, turn.expected.hasten)
        else:
            self._store_now(turn)

    def _store_now(self, turn: ManagedTurn) -> asyncio.Future[ThreadMatch]:
        if turn.storing is None:
            turn.storing = asyncio.get_running_loop().create_task(self._store_request(turn))
        return turn.storing

    async def store_request(self, turn: ManagedTurn) -> ThreadMatch:
        """Store the request's new messages; a caller that is cancelled does not cancel this."""
        return await asyncio.shield(self._store_now(turn))

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
        expected.is_answer = turn.is_stored or turn.storing is None
        return PendingAnswer(message, past, expected)

    async def store_outcome(
        self, turn: ManagedTurn, answer: PendingAnswer | None, usage: Sequence[NewUsage], state: tuple[str, Any]
    ) -> None:
        """Store the answer, with usage and state, and with the request where that was put off."""
        if turn.storing is None:
            turn.storing = stored = asyncio.get_running_loop().create_future()
            try:
                await self._store(turn, answer, usage, state)
            finally:
                stored.set_result(turn.match)
        else:
            await asyncio.shield(turn.storing)
            await self._store(turn, answer, usage, state)

    def give_up(self, answer: PendingAnswer) -> None:
        """Stop expecting an answer that is not stored."""
        self._threads.fulfil(answer.expected, None)

    async def _store_request(self, turn: ManagedTurn) -> ThreadMatch:
        """Store the request. A failure is reported as an event; the request goes on."""
        await asyncio.sleep(0)  # the task that writes to the upstream was made after this one
        try:
            await self._store(turn)
        except EverthreadError as error:
            self._listener(RecordFailed(turn.match.thread, str(error)))
        return turn.match

    async def _store(
        self,
        turn: ManagedTurn,
        answer: PendingAnswer | None = None,
        usage: Sequence[NewUsage] = (),
        state: tuple[str, Any] | None = None,
    ) -> None:
        """Store what is not stored yet of a request, its answer, usage and state."""
        if turn.delay is not None:
            turn.delay.cancel()
            turn.delay = None
        try:
            if not turn.is_stored and not await self._wait_for_others(turn.match):
                turn.match = await self._find_again(turn)
            while True:
                request = None if turn.is_stored else _request_step(turn)
                reply = _answer_step(turn, answer) if answer is not None and not turn.match.is_inside else None
                steps = [step for step in (request, reply) if step is not None]
                if not steps and not usage and state is None:
                    turn.is_stored = turn.memory.is_stored = True
                    return
                matches = await self._threads.store(turn.match, steps, usage, state)
                if matches or not steps:
                    turn.is_stored = turn.memory.is_stored = True
                    usage, state = (), None
                if request is not None and not matches:  # another process went on from there first
                    turn.match = await self._find_again(turn)
                    continue
                if request is not None:
                    if turn.match.branch_of is not None:
                        self._listener(Branched(matches[0].thread, turn.match.branch_of[0], turn.match.matched))
                    turn.match = matches.pop(0)
                if matches and answer is not None:
                    self._threads.fulfil(answer.expected, matches[0].thread)
                if matches or request is None:  # a second answer to a request is stored when the client continues it
                    answer = None
        finally:
            if turn.expected is not None:  # nobody goes on from a point that is not kept
                turn.expected.hasten = None  # it holds the turn: the body would stay until a search for garbage
                is_kept = turn.is_stored and not turn.match.is_inside
                self._threads.fulfil(turn.expected, turn.match.thread if is_kept else None)

    async def _wait_for_others(self, match: ThreadMatch) -> bool:
        """Wait for what a request goes on from, and stands under; whether that is in the expected thread."""
        is_certain = await self._threads.wait_for_point(match)
        if match.is_new and match.scope:  # a subagent stands under what called it, which the client has heard already
            await self._threads.wait_for_answers(match.tenant, match.scope)
        return is_certain

    async def _find_again(self, turn: ManagedTurn) -> ThreadMatch:
        """Where a request belongs after all, by the store alone."""
        match = turn.match
        self._threads.forget(match)
        return await self._threads.find_match(
            match.tenant, match.scope, turn.history, turn.wire_messages, remembered=False
        )


def _request_step(turn: ManagedTurn) -> ThreadStep | None:
    """The request's messages that its thread lacks; None where it has all of them."""
    match = turn.match
    if match.matched == len(turn.history) and not match.is_new:
        return None
    client = read_client(turn.incoming.headers, turn.sliced.fields)
    session = NewSession(
        id=match.thread, kind=thread_kind(client, has_tools=bool(turn.frame.tools)), tenant=match.tenant,
        platform=PLATFORM, model=turn.model, system=turn.frame.system, client=client.client,
        client_session=client.session,
    )  # fmt: skip
    new = [element.value for element in turn.elements[match.matched :]]
    messages = decode_messages(turn.incoming.api, new, turn.model)
    return ThreadStep(turn.history, messages, turn.sizes[match.matched :], session, client.parent or client.session)


def _answer_step(turn: ManagedTurn, answer: PendingAnswer) -> ThreadStep:
    session = NewSession(id=turn.match.thread, tenant=turn.match.tenant, platform=PLATFORM)
    size = TokenCounter(turn.model).message(answer.message)
    return ThreadStep(answer.history, [answer.message], [size], session)


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
    length = len(history)
    return ThreadMatch(
        match.tenant, match.scope, match.thread, length, history.digest(length), is_inside=match.is_inside
    )
