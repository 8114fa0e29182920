"""Which thread a request belongs to, and its new messages into that thread.

A thread is known by what was said: a chain of digests over the client's messages. A second chain, the skeleton, leaves
out what clients drop to save room: thinking and the contents of tool results. A thread is a line of points, each where
a request or an answer ended. A request that goes on from the last point continues the thread; one that goes on from an
earlier point otherwise than the thread did is a branch. Ids follow from tenant, scope and digests, so two processes
that see the same request name the same thread; which of two different requests continues a point is decided by the
store, once.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from everthread.conversation.events import Listener
from everthread.core.fingerprints import canonical_form, chained, message_fingerprint
from everthread.core.messages import (
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    Message,
    calls_of,
    content_text,
    json_value,
    kind_of,
    text_of,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, System
from everthread.errors import EverthreadError, UnknownIdError
from everthread.gateway.base import THREAD, Outcome, decode_messages, encode_messages
from everthread.gateway.body import Element
from everthread.gateway.management.clients import BODY, SESSION_HEADER, ClientSession, read_client, scope_of
from everthread.gateway.management.compaction_items import TRIGGER
from everthread.gateway.management.events import Branched, RecordFailed
from everthread.store.models import NewMessage, NewSession, NewThreadLink, SessionKind, ThreadLink, ThreadLinkMatch
from everthread.store.store import Store

# Identity

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

_CLEARED = re.compile(
    r"\b(?:clear|remov|omit|truncat|prun|elid|compact|trimm|delet|redact|drop|snip|no longer|not shown|old tool)",
    re.IGNORECASE,
)
_LONGEST_PLACEHOLDER = 300
_MOST_KNOWN = 50_000
_SHORT = 12
"""Characters of a result's hash."""
_WORD = re.compile(r"\w+")
_BLANK_LINE = re.compile(r"\n\n+")


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """The hashes by which one message is recognised."""

    fingerprint: str
    skeleton: str
    """Empty where nothing of it is in the skeleton."""
    results: tuple[str, ...] = ()
    """A short hash for each tool result in it."""
    cleared: tuple[bool, ...] = ()
    """Whether that result is a placeholder."""
    key: bytes = b""
    """A hash of its text as it was written."""
    legacy: str = ""
    """The fingerprint by every field, as earlier versions kept it; empty where it is the same."""


@dataclass(frozen=True, slots=True)
class History:
    """The chains of a client's messages: entry `i` is about the first `i + 1` of them."""

    digests: tuple[str, ...]
    skeletons: tuple[str, ...]
    pieces: tuple[MessageIdentity, ...]
    result_hashes: str = ""
    """The hashes of all tool results, in order."""
    has_legacy: bool = False
    """Earlier versions may have known one of the messages otherwise."""

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def legacy_digests(self) -> tuple[str, ...]:
        """The chain as earlier versions kept it; empty where it is the same."""
        if not self.has_legacy:
            return ()
        prints = (piece.legacy or piece.fingerprint for piece in self.pieces)
        return tuple(accumulate(prints, _chain_digest, initial=""))[1:]

    def digest(self, length: int) -> str:
        return self.digests[length - 1] if length else ""

    def skeleton(self, length: int) -> str:
        return self.skeletons[length - 1] if length else ""

    def skeletons_after(self, length: int) -> list[str]:
        """The skeletons of longer beginnings, those that say something."""
        return [skeleton for skeleton in self.skeletons[length:] if skeleton]

    def results(self, start: int, end: int) -> str:
        if start == 0 and end == len(self.pieces):
            return self.result_hashes
        return " ".join(result for piece in self.pieces[start:end] for result in piece.results)

    def drifted_from(self, results: str, length: int) -> bool:
        """Whether the first messages, whose skeleton is known with these results, are the same but for cleared ones."""
        stored_hashes = results.split()
        now = [pair for piece in self.pieces[:length] for pair in zip(piece.results, piece.cleared, strict=True)]
        return len(stored_hashes) == len(now) and all(
            old == new or cleared for old, (new, cleared) in zip(stored_hashes, now, strict=True)
        )

    def until(self, length: int) -> History:
        """The history of the first `length` messages."""
        if length == len(self.pieces):
            return self
        later = sum(len(piece.results) for piece in self.pieces[length:])
        result_hashes = (
            self.result_hashes[: max(0, len(self.result_hashes) - later * (_SHORT + 1))]
            if later
            else self.result_hashes
        )
        pieces = self.pieces[:length]
        legacy = self.has_legacy and any(piece.legacy for piece in pieces)
        return History(self.digests[:length], self.skeletons[:length], pieces, result_hashes, legacy)

    def extend(self, pieces: Sequence[MessageIdentity]) -> History:
        if not pieces:
            return self
        length = len(self.pieces)
        digests = accumulate((piece.fingerprint for piece in pieces), _chain_digest, initial=self.digest(length))
        skeletons = accumulate((piece.skeleton for piece in pieces), _chain_skeleton, initial=self.skeleton(length))
        result_hashes = " ".join(
            filter(None, [self.result_hashes, *(result for piece in pieces for result in piece.results)])
        )
        return History(
            self.digests + tuple(digests)[1:], self.skeletons + tuple(skeletons)[1:], (*self.pieces, *pieces),
            result_hashes, self.has_legacy or any(piece.legacy for piece in pieces),
        )  # fmt: skip


_NOTHING = History((), (), ())


def build_history(pieces: Iterable[MessageIdentity]) -> History:
    return _NOTHING.extend(tuple(pieces))


def _chain_skeleton(digest: str, skeleton: str) -> str:
    return _chain_digest(digest or "skeleton", skeleton) if skeleton else digest


@functools.lru_cache(maxsize=2 * _MOST_KNOWN)
def _chain_digest(digest: str, fingerprint: str) -> str:
    """The digest of a chain with one more fingerprint, cached: histories come again."""
    return chained(digest, fingerprint)


class IdentityCache:
    """Identities of messages by their text: of a history that comes again, only the new end is read."""

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        self._identities: OrderedDict[bytes, MessageIdentity] = OrderedDict()
        self._most = most

    def read(self, api: Api, element: Element) -> MessageIdentity:
        key = blake2b(element.text.encode(), digest_size=20, person=api.encode()[:16]).digest()
        identity = self._identities.get(key)
        if identity is not None:
            self._identities.move_to_end(key)
            return identity
        identity = self._identities[key] = identify(api, element.value, key)
        if len(self._identities) > self._most:
            self._identities.popitem(last=False)
        return identity


def identify(api: Api, value: Any, key: bytes = b"") -> MessageIdentity:
    """The identity of one wire message. A value that is no object is taken as its content."""
    if not isinstance(value, dict):
        value = {"role": "", "content": [value]}
    if api == "openai_responses":
        value = _item(value)
    fields = _identity_fields(value)
    results, fingerprint = _results(fields), message_fingerprint(fields)
    legacy = fingerprint if fields == value else message_fingerprint(value)
    return MessageIdentity(
        fingerprint,
        _skeleton(fields),
        tuple(_short(content) for content in results),
        tuple(is_cleared(content) for content in results),
        key,
        "" if legacy == fingerprint else legacy,
    )


_MESSAGE_FIELDS = frozenset({"role", "content", "name", "refusal", "tool_calls", "tool_call_id", "function_call"})
_ITEM_FIELDS = {
    "function_call": frozenset({"type", "call_id", "name", "arguments"}),
    "custom_tool_call": frozenset({"type", "call_id", "name", "input"}),
    "function_call_output": frozenset({"type", "call_id", "output"}),
    "custom_tool_call_output": frozenset({"type", "call_id", "output"}),
    "reasoning": frozenset({"type", "summary", "content", "encrypted_content"}),
}
_NO_FIELDS = frozenset({"id", "status", "metadata", "created_at", "timestamp"})
"""Of an item that is not known: these say nothing of what was said."""


def _identity_fields(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that identify a message, without ids, metadata, states and annotations."""
    fields = _MESSAGE_FIELDS if "role" in value else _ITEM_FIELDS.get(kind_of(value))
    if fields is None:
        message = {key: part for key, part in value.items() if key not in _NO_FIELDS}
    else:
        message = {key: part for key, part in value.items() if key in fields}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_identity_call(call) for call in calls]
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_identity_part(part) for part in content]
    return value if message == value else message


def _identity_call(call: Any) -> Any:
    names = ("id", "type", "function", "custom")
    return {name: call[name] for name in names if name in call} if isinstance(call, dict) else call


def _identity_part(part: Any) -> Any:
    if kind_of(part) != "text":
        return part
    return {key: value for key, value in part.items() if key in ("type", "text", "cache_control")}


def leading_system(elements: Sequence[Element]) -> int:
    """How many messages at the start are the system prompt: no part of the conversation's identity."""
    for count in range(len(elements)):
        value = elements[count].value
        if not isinstance(value, dict) or value.get("role") not in SYSTEM_ROLES:
            return count
    return len(elements)


def trailing_system(elements: Sequence[Element], first: int) -> int:
    """How many messages at the end are reminders of the system's: clients renew them, and nobody answers them."""
    count = 0
    while len(elements) - count > first + 1:
        value = elements[len(elements) - 1 - count].value
        if not isinstance(value, dict) or not (value.get("role") in SYSTEM_ROLES or kind_of(value) == TRIGGER):
            break
        count += 1
    return count


def is_cleared(content: Any) -> bool:
    """Whether a tool result is nothing but a placeholder."""
    text = content_text(content).strip()
    return not text or (len(text) <= _LONGEST_PLACEHOLDER and bool(_CLEARED.search(text)))


def _item(value: dict[str, Any]) -> dict[str, Any]:
    """An item of the Responses protocol with its words as in the other two; a message may leave out its type."""
    content = value.get("content")
    item = {key: part for key, part in value.items() if key != "status" and (key != "id" or "role" not in value)}
    if item.get("type") == "message":
        del item["type"]
    if isinstance(content, list) and "role" in item:
        item["content"] = [
            {**part, "type": "text"} if kind_of(part) in ("input_text", "output_text") else part for part in content
        ]
    return item


def _results(value: dict[str, Any]) -> list[Any]:
    """The contents of the tool results in a message."""
    if value.get("role") in ("tool", "function"):
        return [value.get("content")]
    if "output" in value and kind_of(value).endswith("_output"):
        return [value["output"]]
    content = value.get("content")
    return [part.get("content") for part in content if _is_result(part)] if isinstance(content, list) else []


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and kind_of(part) in RESULT_BLOCKS


def _skeleton(value: dict[str, Any]) -> str:
    if kind_of(value) in REASONING_BLOCKS:
        return ""
    if value.get("role") == "assistant":
        calls = [[call.id, call.name, _arguments(call.arguments)] for call in calls_of(value)]
        text = text_of(value).strip() or str(value.get("refusal") or "").strip()
        return _hash(["assistant", text, calls]) if text or calls else ""
    return message_fingerprint(_without_results(value))


def _without_results(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("role") in ("tool", "function"):
        return {**value, "content": None}
    if "output" in value and kind_of(value).endswith("_output"):
        return {**value, "output": None}
    content = value.get("content")
    if not isinstance(content, list) or not any(map(_is_result, content)):
        return value
    return {**value, "content": [{**part, "content": None} if _is_result(part) else part for part in content]}


def _arguments(text: str) -> Any:
    parsed = json_value(text)
    return text if parsed is None else parsed


def _short(content: Any) -> str:
    form = cast("dict[str, Any]", canonical_form({"role": "tool", "content": content}))
    return _hash(form.get("content"))[:_SHORT]


def _hash(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20, person=b"skeleton").hexdigest()


# Finding a thread

PLATFORM = "gateway"
_MOST_POINTS = 10_000
_MOST_PASSED = 4_000


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


_MOST_STEPS = 64
"""Points between a match and the end of its thread that are looked at."""
_FEWEST_WORDS = 5
_MARKER_WORDS = 8
"""A shortened message begins as the stored one, with at least so many words, and ends with a marker of so few."""


def align(api: Api, values: Sequence[Any], stored: Sequence[Any]) -> tuple[int, int]:
    """How many of a client's messages, and of the stored ones, say the same from their beginning on.

    Reasoning and reminders that only one side has are passed over.
    """
    mine = theirs = 0
    while True:
        while mine < len(values) and _is_passed_over(api, values[mine]):
            mine += 1
        while theirs < len(stored) and _is_passed_over(api, stored[theirs]):
            theirs += 1
        if mine == len(values) or theirs == len(stored) or not _agree(api, values[mine], stored[theirs]):
            return mine, theirs
        mine, theirs = mine + 1, theirs + 1


def _is_passed_over(api: Api, value: Any) -> bool:
    if isinstance(value, dict) and value.get("role") in SYSTEM_ROLES:
        return True
    return not identify(api, value).skeleton


def _agree(api: Api, mine: Any, stored: Any) -> bool:
    one, other = identify(api, mine), identify(api, stored)
    if one.fingerprint == other.fingerprint:
        return True
    if one.skeleton == other.skeleton and len(one.results) == len(other.results):
        pairs = zip(one.results, other.results, one.cleared, strict=True)
        return all(new == old or cleared for new, old, cleared in pairs)
    return _is_reworded(mine, stored)


def _is_reworded(mine: Any, stored: Any) -> bool:
    """Whether an assistant's message is the stored one in other words: around the same calls, its calls as text, or
    shortened. Another answer to the same question is none of these."""
    if not all(isinstance(value, dict) and value.get("role") == "assistant" for value in (mine, stored)):
        return False
    calls, stored_calls = calls_of(mine), calls_of(stored)
    if calls:
        return [(call.name, _arguments(call.arguments)) for call in calls] == [
            (call.name, _arguments(call.arguments)) for call in stored_calls
        ]
    words, stored_words = _WORD.findall(text_of(mine)), _WORD.findall(text_of(stored))
    if stored_calls:
        named = set(words)
        return all(named.issuperset(_WORD.findall(f"{call.name} {call.arguments}")) for call in stored_calls)
    alike = next((index for index, (a, b) in enumerate(zip(words, stored_words, strict=False)) if a != b), len(words))
    if len(words) < _FEWEST_WORDS or len(words) >= len(stored_words):
        return False
    remaining = iter(stored_words)  # each word behind the one before: thoughts or marks were taken out
    return (alike >= _FEWEST_WORDS and len(words) - alike <= _MARKER_WORDS) or all(word in remaining for word in words)


_MOST_REMINDERS = 64
_MOST_CHARACTERS = 2_000_000
"""So many ends of a message are tried; of a long one so many that no more than these are read."""
_MOST_KEPT, _LONGEST_KEPT = 8, 20_000
"""So many reminders of a tenant's clients are remembered, none with more characters."""

Reminder = tuple[str, Sequence[dict[str, Any]]]
"""What hangs on the newest user message: behind its text, and blocks of its own."""


def last_spoken(values: Sequence[Any], first: int, end: int) -> int:
    """The last place from `first` on, before `end`, where the user says something; -1 where there is none."""
    return next((at for at in range(end - 1, first - 1, -1) if _is_spoken(values[at])), -1)


def _is_spoken(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") == "user" and bool(text_of(value).strip())


def list_reminders(value: dict[str, Any]) -> Iterator[Reminder]:
    """What of a message may be a reminder: its end from a blank line or a new block on, the shortest first."""
    parts = _content_parts(value)
    text = str(parts[-1].get("text") or "")
    yield from ((text[gap.start() :], ()) for gap in reversed(list(_BLANK_LINE.finditer(text))))
    yield from (("", parts[index:]) for index in range(len(parts) - 1, 0, -1))


def with_reminder(value: dict[str, Any], reminder: Reminder) -> dict[str, Any]:
    """A user message as it was when it was the newest."""
    behind, blocks = reminder
    parts = _content_parts(value)
    parts[-1] = {**parts[-1], "text": f"{parts[-1].get('text') or ''}{behind}"} if behind else parts[-1]
    return {**value, "content": [*parts, *blocks]}


def _content_parts(value: dict[str, Any]) -> list[dict[str, Any]]:
    content = value["content"]
    parts = content if isinstance(content, list) else [content]
    return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in parts]


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
        """Store it from the next turn of the event loop on: what is about to be sent is on its way then."""
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
        thread = None
        try:
            turn.match = await self._store_messages(turn, turn.match)
            turn.is_stored = True
            turn.headers[THREAD] = turn.match.thread
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
