"""One request as the manager sees it, from its arrival to its answer, and the bytes that go upstream for it."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from everthread.agent.tools.conversation import RECALL_SCHEMA
from everthread.context.policy import FADING, ContextOptions, ContextState, PolicyDecision, fading_text
from everthread.context.recovery import LimitKey, RecoveryAttempts
from everthread.core.cache_control import SHORTEST_CACHED, cache_route, mark_system, place_marks
from everthread.core.messages import content_text, json_value, kind_of
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, Reply, Request
from everthread.gateway.base import (
    COMPACTIONS_HEADER,
    CREDENTIAL_HEADERS,
    NOTICE_HEADER,
    PLAN_HEADER,
    TOKENS_HEADER,
    Incoming,
    Outcome,
    Outgoing,
)
from everthread.gateway.body import Element, SlicedBody, Values, encode_value, slice_body, splice_bytes, splice_text
from everthread.gateway.management.compaction_items import TRIGGER
from everthread.gateway.management.identity import History
from everthread.gateway.management.recall import RecallTurn, recall_changes
from everthread.gateway.management.rewrite import (
    Change,
    RewriteKey,
    RewriteState,
    note_change,
    replacement_change,
    replacement_messages,
    takes_blocks,
)
from everthread.gateway.management.threads import PendingPoint, ThreadMatch, WireMessages
from everthread.providers.catalog import BETA_HEADER, FIELDS, cap_field, window_headers
from everthread.store.models import Rewrite, RewriteSearch

if TYPE_CHECKING:
    from everthread.gateway.management.manager import ProxyManager

STATEFUL = ("previous_response_id", "conversation")
"""Fields by which the provider keeps the history itself: such a request is never rewritten."""
_MOST_THREADS = 5_000


@dataclass(slots=True)
class ThreadMemory:
    """What one process remembers of a thread; none of it is needed to go on."""

    context: ContextState = field(default_factory=ContextState)
    cache_marks: tuple[bytes, int] | None = None
    """What the last request began with, and where its last cache mark was."""
    slim: bool = False
    """A request had too many bytes: what was made smaller then is used whatever the tokens."""
    rewrite: RewriteKey | None = None
    """The rewrite that was sent last: it is sent again until the next compaction is due."""
    search: RewriteSearch | None = None
    """The last look for rewrites of it."""
    is_stored: bool = False
    """The thread is in the store: its id can be told."""
    has_sent: bool = False
    """This process sent a request of the thread: without a `rewrite` that was the client's own history."""
    budget: tuple[tuple[str, int, int | None, int], Budget] | None = None
    """The last budget, with what it was made from."""


@dataclass(slots=True)
class ManagedTurn:
    """One managed request, from its arrival to its answer."""

    manager: ProxyManager
    incoming: Incoming
    sliced: SlicedBody
    first: int
    """How many messages at the start are the system prompt."""
    history: History
    frame: Request
    sizes: list[int]
    fixed: int
    """Tokens of system prompt and tools."""
    match: ThreadMatch
    memory: ThreadMemory
    trailing: int = 0
    """How many messages at the end are reminders, which go as they came."""
    has_marks: bool = False
    """Cache marks may stand in it."""
    window: int = 0
    size: int = 0
    """Tokens of the client's messages, uncorrected."""
    expected: PendingPoint | None = None
    """The point at the request's end, until it is stored."""
    storing: asyncio.Future[ThreadMatch] | None = None
    """The request on its way into the store; None where that is put off until there is an answer."""
    delay: asyncio.TimerHandle | None = None
    """When it is stored at the latest, where it is put off."""
    is_stored: bool = False
    """The request is stored, so its match is certain."""
    used: Rewrite | None = None
    ready: Rewrite | None = None
    estimate: int = 0
    """Tokens of what was sent, uncorrected."""
    cap: int | None = None
    """The largest answer the model was found to allow."""
    room: int | None = None
    """What the prompt leaves of the window, where a cap was found to be too large."""
    attempts: RecoveryAttempts = field(default_factory=RecoveryAttempts)
    """What was tried after refusals."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the client."""
    tables: Mapping[int, str] = field(default_factory=dict)
    """Messages whose results are sent as tables, by index."""
    notice: str = ""
    """A line for the person, in the answer."""
    sent: Outgoing = field(init=False)
    """The request to send."""
    model: str = field(init=False)
    elements: Sequence[Element] = field(init=False)
    """The client's messages, without the system prompt and reminders at the end."""
    limit_key: LimitKey = field(init=False)
    """The key under which the model's learnt limits are stored."""
    requested_cap: int | None = field(init=False)
    """The output cap the client set."""
    unmanaged_reason: str = field(init=False)
    """Why the request is left alone: the provider keeps or changes the history itself; empty where it does not."""
    decision: PolicyDecision | None = None
    """Whether to compact before this call, and why; None where the policy was not asked."""
    is_undone: bool = False
    """The user undid the thread's last compaction, and no other is due yet."""
    relieved: int = 0
    """The prompt without the rewrite that took effect with this request, in tokens as the provider counts."""
    is_expanded: bool = False
    """Messages were put in or taken out on arrival: the client's own bytes never go upstream."""
    has_recall: bool = False
    """This client gets our recall tool: summaries name it."""
    recall: RecallTurn = field(default_factory=RecallTurn)
    restored_by_length: dict[int, dict[int, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        incoming, elements = self.incoming, self.sliced.elements
        self.model = self.frame.model
        self.elements = (
            elements[self.first : len(elements) - self.trailing] if self.first or self.trailing else elements
        )
        headers = window_headers(incoming.headers) if BETA_HEADER in incoming.headers else ""
        credential = credential_digest(incoming.headers)
        self.limit_key = LimitKey(incoming.tenant, incoming.upstream, self.model, headers, credential)
        self.requested_cap = _requested_cap(self.sliced.fields)
        self.unmanaged_reason = _unmanaged_reason(self.sliced)

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        """After an error of the provider: what to send instead, None where the client gets the error."""
        if not self.rewritable:
            return None
        outgoing = await self.manager.recover(self, status, body)
        if outgoing is not None:
            self.sent = outgoing
        return outgoing

    async def resume(self, reply: Reply) -> Outgoing | None:
        """After a round that called our own tool: what goes upstream next."""
        return await self.manager.resume(self, reply)

    async def withdraw(self, reply: Reply) -> Outgoing | None:
        return self.manager.withdraw(self, reply)

    @property
    def thread(self) -> str:
        return self.match.thread

    async def response_headers(self) -> Mapping[str, str]:
        """The headers for the client; the thread id is among them once the thread is stored."""
        return await self.manager.response_headers(self)

    async def record(self, outcome: Outcome) -> None:
        await self.manager.record(self, outcome)

    @property
    def equipped_frame(self) -> Request:
        """Model, system prompt and tools, with our own where this client gets it."""
        return replace(self.frame, tools=[*(self.frame.tools or ()), RECALL_SCHEMA]) if self.has_recall else self.frame

    @property
    def plan(self) -> str:
        """Whether compacting pays now, in one line; empty where that was not weighed."""
        return str(self.decision.weighed) if self.decision is not None and self.decision.weighed is not None else ""

    @property
    def rewritable(self) -> bool:
        return self.incoming.mode == "managed" and not self.unmanaged_reason

    @property
    def is_continued(self) -> bool:
        """Whether a next call is likely, which reads what this one writes to the cache: a one-shot prompt has none."""
        if self.frame.tools or self.match.matched:
            return True
        return any(isinstance(value, dict) and value.get("role") == "assistant" for value in Values(self.elements))

    @property
    def wire_messages(self) -> WireMessages:
        """The client's messages, to be compared with stored ones."""
        return WireMessages(self.incoming.api, self.model, Values(self.elements))

    @property
    def thinking_budget(self) -> int | None:
        """What the client set aside for thinking: the output cap must exceed it."""
        stated = self.sliced.fields.get("thinking")
        tokens = stated.get("budget_tokens") if isinstance(stated, dict) else None
        return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None

    @property
    def output_cap(self) -> int | None:
        """An output cap below the client's; None where the client's own is fine."""
        client_cap = self.requested_cap
        cap = self.attempts.cap or min(filter(None, (self.cap, self.room)), default=None)
        if cap is None or (self.attempts.cap is None and (client_cap is None or client_cap <= cap)):
            return None
        return cap if cap > (self.thinking_budget or 0) else None

    def budget(self, options: ContextOptions) -> Budget:
        """Room is left for the answer the client asks for, up to a quarter of the window."""
        client_cap = self.requested_cap
        cap = client_cap if client_cap and client_cap > 0 else options.max_tokens
        fixed = round(self.fixed * self.memory.context.calibration.factor(self.model))
        key, last = (self.model, self.window, cap, fixed), self.memory.budget
        if last is None or last[0] != key:
            own = replace(options.for_model(self.model), max_tokens=cap)
            last = self.memory.budget = key, own.budget(self.window, fixed=fixed)
        return last[1]

    def pairs(self) -> list[tuple[Any, str]]:
        return [(element.value, self.sliced.of(element)) for element in self.elements]

    def replacement_values(self, used: Rewrite) -> list[Any]:
        """The messages of a rewrite."""
        return [value for value, _ in replacement_messages(used)]

    def restored(self, length: int) -> dict[int, Any]:
        """Messages behind a rewrite of this length that refer to a file it covers, with what the file held."""
        if length not in self.restored_by_length:
            self.restored_by_length[length] = restore_readings(self.sliced.text, self.elements, length)
        return self.restored_by_length[length]

    def text(self) -> str:
        """The body with the rewrite in place of the messages it covers."""
        if self.used is None:
            return splice_text(self.sliced.text, self._table_changes(0, set())) if self.tables else self.sliced.text
        changes = [replacement_change(self.sliced, self.first, self.used.length, self.used.replacement.decode())]
        note, incoming = RewriteState.load(self.used.state).note, self.incoming
        if note:
            blocks = takes_blocks(incoming.api, self.model, incoming.upstream)
            noted = note_change(incoming.api, self.sliced, self.first, note, blocks=blocks)
            changes += [noted] if noted else []
        changes += recall_changes(self)
        taken = {start for start, _, _ in changes}
        for index, value in self.restored(self.used.length).items():
            element = self.elements[index]
            if element.start not in taken:
                changes.append((element.start, element.end, encode_value(value)))
                taken.add(element.start)
        return splice_text(self.sliced.text, [*changes, *self._table_changes(self.used.length, taken)])

    def _table_changes(self, covered: int, taken: set[int]) -> list[Change]:
        """What puts tables in the place of results behind a rewrite of this length."""
        places = ((self.elements[index], text) for index, text in self.tables.items() if index >= covered)
        return [(one.start, one.end, text) for one, text in places if one.start not in taken]


def _unmanaged_reason(sliced: SlicedBody) -> str:
    fields = sliced.fields
    stated = next((name for name in STATEFUL if fields.get(name) is not None), "")
    if stated:
        return stated
    if _drops_history(fields.get("context_management")):
        return "context_management"
    return TRIGGER if any(_kind(element) == TRIGGER for element in sliced.elements[-1:]) else ""


def _requested_cap(fields: Mapping[str, Any]) -> int | None:
    stated = (fields[name] for name in FIELDS if name in fields)
    return next((value for value in stated if isinstance(value, int) and not isinstance(value, bool)), None)


def _drops_history(edits: Any) -> bool:
    """Whether the provider shall compact or clear: thinking that is all kept changes nothing."""
    if not edits:
        return False
    listed = edits.get("edits") if isinstance(edits, dict) else edits
    if not isinstance(listed, list):
        return True
    return not all(
        isinstance(edit, dict) and str(edit.get("type", "")).startswith("clear_thinking") and edit.get("keep") == "all"
        for edit in listed
    )


def _kind(element: Element) -> str:
    return kind_of(element.value) if isinstance(element.value, dict) else ""


class ThreadMemories:
    def __init__(self) -> None:
        self._memories: OrderedDict[str, ThreadMemory] = OrderedDict()

    def get(self, thread: str) -> ThreadMemory | None:
        memory = self._memories.get(thread)
        if memory is not None:
            self._memories.move_to_end(thread)
        return memory

    def begin(self, thread: str, state: Mapping[str, Any] | None, *, is_stored: bool) -> ThreadMemory:
        """Remember a thread that is new to this process, with its stored state."""
        memory = self._memories[thread] = ThreadMemory(ContextState.load(state), is_stored=is_stored)
        while len(self._memories) > _MOST_THREADS:
            self._memories.popitem(last=False)
        return memory


# Cache marks for Claude clients that set none


def takes_marks(api: Api, model: str, upstream: str) -> bool:
    """Whether marks mean something to the model."""
    if api == "anthropic":
        return "claude" in model.lower()
    return api == "openai_chat" and cache_route(model, base_url=upstream) is not None


def mark_system_field(system: Any, ttl: str) -> str | None:
    """The system field with its mark, as text; None where there is nothing to mark."""
    marked = mark_system(system, ttl=ttl)
    return None if marked is system or marked == system else encode_value(marked)


def mark_messages(
    api: Api, elements: Sequence[Element], ttl: str, previous: int | None, leading: int | None = None
) -> dict[int, str]:
    """The messages that get a mark, as text by their place. `previous`: where the last request had its last one."""
    native = api == "anthropic"
    placed = place_marks(
        Values(elements), ttl=ttl, native_anthropic=native, previous=previous, wordless_results=not native,
        leading=leading,
    )  # fmt: skip
    return {index: encode_value(message) for index, message in placed.items() if _is_on_block(message)}


def _is_on_block(message: Any) -> bool:
    """A mark stands on a block; on the message itself it is none the wire knows."""
    return "cache_control" not in message


# The bytes that go upstream

HOLD_SHARE = 0.70
"""From this share of the window on an overflow is likely."""


def send_untouched(turn: ManagedTurn) -> Outgoing:
    """Send the client's bytes unchanged."""
    if turn.unmanaged_reason:
        turn.headers[NOTICE_HEADER] = f"passed on unmanaged: {turn.unmanaged_reason}"
    return Outgoing(turn.incoming.raw, rewritten=turn.is_expanded, headers=turn.headers)


def receipt_text(used: Rewrite, before: int, after: int, *, recall: bool) -> str:
    """What a compaction that takes effect did, in one line."""
    back = "; the model gets it back with recall" if recall else ""
    return f"compaction {used.depth}: {before} -> {after} tokens, {used.length} messages covered{back}"


def build_outgoing(turn: ManagedTurn, before: int, after: int, *, ttl: str | None) -> Outgoing:
    """The request to send; `before` and `after` are its tokens without and with the rewrite."""
    headers = turn.headers
    depth = turn.used.depth if turn.used else 0
    headers[COMPACTIONS_HEADER] = str(depth)
    headers[TOKENS_HEADER] = f"{before}/{after}"
    if depth >= FADING:
        headers[NOTICE_HEADER] = fading_text(depth)
    if turn.plan:
        headers[PLAN_HEADER] = turn.plan
    text = turn.text()
    if turn.output_cap is not None:
        text = _set_output_cap(turn.incoming.api, turn.incoming.upstream, text, turn.output_cap)
    marks = _mark_changes(turn, text, ttl) if ttl is not None and after >= SHORTEST_CACHED else []
    hold = after > HOLD_SHARE * turn.window
    is_same = text is turn.sliced.text or text == turn.sliced.text
    if is_same and not marks:
        return Outgoing(turn.incoming.raw, headers=headers, compactions=depth, tokens=after, hold=hold)
    original = turn.incoming.body
    plain = is_same and len(text) == len(original)
    body = splice_bytes(original, marks) if plain else splice_text(text, marks).encode()
    return Outgoing(
        body, rewritten=True, headers=headers, compactions=depth, tokens=after, hold=hold,
        notice=turn.notice, recall=turn.recall.offered,
    )  # fmt: skip


def _set_output_cap(api: Api, upstream: str, text: str, cap: int) -> str:
    """The body with this output cap: in the place of the client's, else as a field of its own."""
    sliced = slice_body(text.encode(), api)
    stated = next((name for name in FIELDS if name in sliced.spans), None)
    if stated is not None:
        return splice_text(text, [(*sliced.spans[stated], str(cap))])
    start = text.index("{") + 1
    return splice_text(text, [(start, start, f"{encode_value(cap_field(api, upstream))}:{cap},")])


def _mark_changes(turn: ManagedTurn, text: str, ttl: str) -> list[Change]:
    """What puts cache marks into the text of a client that sets none."""
    api, upstream = turn.incoming.api, turn.incoming.upstream
    has_marks = turn.has_marks if text is turn.sliced.text else '"cache_control"' in text
    if has_marks or not takes_marks(api, turn.model, upstream):  # a mark anywhere is the client's own way
        return []
    if not turn.is_continued:
        return []
    is_same = text is turn.sliced.text
    sliced = turn.sliced if is_same else slice_body(text.encode(), api)
    count = len(sliced.elements)
    begins = blake2b(turn.used.replacement if turn.used else b"", digest_size=8).digest()
    last_marks = turn.memory.cache_marks
    previous = last_marks[1] if last_marks and last_marks[0] == begins and last_marks[1] < count else None
    marked = mark_messages(api, sliced.elements, ttl, previous, turn.first if is_same else None)
    changes = [(sliced.elements[index].start, sliced.elements[index].end, new) for index, new in marked.items()]
    system = (
        mark_system_field(sliced.fields["system"], ttl) if api == "anthropic" and "system" in sliced.fields else None
    )
    if system is not None:
        changes.append((*sliced.spans["system"], system))
    turn.memory.cache_marks = begins, max(marked, default=count - 1)
    return changes


def credential_digest(headers: Mapping[str, str]) -> str:
    """A digest of the credential a client shows; empty where it shows none."""
    shown = next((headers[name] for name in CREDENTIAL_HEADERS if headers.get(name)), "")
    return blake2b(shown.encode("utf-8", "replace"), digest_size=16).hexdigest() if shown else ""


# A client's word that a file is unchanged, where that reading was compacted away: the file in its place

_MARKS = ("unchanged since", "already in your context")
_STUB = re.compile(r"unchanged since (?:your |the |its )?last read|this file is already in your context", re.IGNORECASE)
_LONGEST_STUB = 600
_MOST = 60_000
"""Characters of a file; a longer one is to be read again in parts."""
_PATHS = ("file_path", "path", "filePath", "absolute_path", "filename")
_PARTS = ("offset", "limit")

Reading = tuple[str, str, str]
"""The tool, the file and which part of it: a client says that of the same reading only, not of an edit between."""


def restore_readings(text: str, elements: Sequence[Element], covered: int) -> dict[int, Any]:
    """The messages behind the covered ones that only say that a file is unchanged, with what the file held."""
    behind = text[elements[covered].start :] if 0 < covered < len(elements) else ""
    if not any(mark in behind for mark in _MARKS):
        return {}
    values = [element.value for element in elements]
    readings = {call: reading for value in values for call, reading in _readings(value)}
    contents: dict[Reading, tuple[int, str]] = {}
    restored: dict[int, Any] = {}
    for index, value in enumerate(values):
        new = value
        for call, content in _results(value):
            reading, words = readings.get(call), content_text(content)
            if reading is None:
                continue
            if not is_stub(words):
                contents[reading] = index, words
            elif (
                index >= covered
                and reading in contents
                and contents[reading][0] < covered
                and len(contents[reading][1]) <= _MOST
            ):
                new = _with_result(new, call, contents[reading][1])
        if new is not value:
            restored[index] = new
    return restored


def is_stub(text: str) -> bool:
    return len(text) <= _LONGEST_STUB and _STUB.search(text) is not None


def _readings(value: Any) -> Iterator[tuple[str, Reading]]:
    """The calls in a message or item that name a file: the id and what was to be read."""
    if not isinstance(value, dict):
        return
    content = value.get("content")
    blocks = [part for part in content if kind_of(part) == "tool_use"] if isinstance(content, list) else []
    listed = value.get("tool_calls")
    calls = [*blocks, *(listed if isinstance(listed, list) else ())]
    if kind_of(value) == "function_call":
        calls.append(value)
    for call in calls:
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        named = function if isinstance(function, dict) else call
        raw = call.get("input") or named.get("arguments")
        arguments = json_value(raw) if isinstance(raw, str) else raw
        if not isinstance(arguments, dict):
            continue
        path = next((arguments[key] for key in _PATHS if key in arguments), None)
        if isinstance(path, str):
            part = str([arguments.get(name) for name in _PARTS])
            yield str(call.get("call_id") or call.get("id")), (str(named.get("name")), path, part)


def _results(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        return
    if value.get("role") == "tool":
        yield str(value.get("tool_call_id")), value.get("content")
    elif kind_of(value) == "function_call_output":
        yield str(value.get("call_id")), value.get("output")
    elif isinstance(value.get("content"), list):
        for part in value["content"]:
            if kind_of(part) == "tool_result":
                yield str(part.get("tool_use_id")), part.get("content")


def _with_result(value: Mapping[str, Any], call: str, text: str) -> dict[str, Any]:
    if value.get("role") == "tool":
        return {**value, "content": text}
    if kind_of(value) == "function_call_output":
        return {**value, "output": text}
    return {
        **value,
        "content": [
            {**part, "content": text} if kind_of(part) == "tool_result" and part.get("tool_use_id") == call else part
            for part in value["content"]
        ],
    }
