"""The tool `recall`, offered to a proxied model and answered by the gateway.

A client that sends tools gets it from its first request: added later, it would change
the cached prompt from its beginning (`python -m benchmarks recall_offer`). Other clients
get it once something has left the context.

The client never sees its calls. The calls and their results are kept with the thread,
and replace the answer that the client knows in later requests, byte for byte, until a
compaction covers them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from everthread.agent.tools.conversation_tools import RECALL_SCHEMA, recall_text
from everthread.compaction.summary_message import reading_tools
from everthread.core.messages import Call, Message, calls_of, kind_of, tool_names
from everthread.core.redaction import redact
from everthread.core.types import Api, Reply
from everthread.errors import EverthreadError, InputError
from everthread.gateway.contracts import encode_messages
from everthread.gateway.json_slices import Change, SlicedBody, encode_value
from everthread.gateway.management.thread_match import ThreadMatch
from everthread.gateway.stream_merge import RECALL
from everthread.store.store import Store
from everthread.thread.history import History
from everthread.thread.lookup import StoreLookup
from everthread.wire import anthropic, gemini, openai_responses
from everthread.wire.gemini.fields import name_of, object_of, value_of

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

RECALL_HEADER = "x-everthread-recall"
"""Request header by which a client turns the tool `off`."""
MAX_RECALL_ROUNDS = 3
"""Rounds of lookups for one answer; after these the tool is no longer offered."""
RECALL_SECONDS = 90.0
"""Seconds after which no further round begins."""
_STATE = "recall"
_MAX_KEPT = 100
_NO_ROOM = "There is no room left to look that up; answer with what you have."
_ALL_HERE = (
    "Nothing has left this conversation yet: every message and tool result is in your "
    "context above. These places hold it:"
)

_PARTS: dict[Api, str] = {"anthropic": "content", "gemini": "parts"}
"""The field of a message that holds results, in protocols in which one message holds all of them."""


@dataclass(frozen=True, slots=True)
class HiddenRounds:
    """The messages that replace one answer of the client's history: recall calls, results and the answer."""

    start: str
    start_skeleton: str
    """Digest (`start`) and skeleton of the history before the answer."""
    end: str
    end_skeleton: str
    """Digest (`end`) and skeleton of the history up to the end of the answer."""
    texts: list[str]
    """The messages to send upstream in place of the answer."""
    blocks: str = ""
    """Results to put before the client's own in the message after the answer."""

    def find_span(self, history: History) -> tuple[int, int] | None:
        """Return the start and end of the answer in a history; None if the history does not hold it."""
        start = _position(history.digests, self.start) or _position(
            history.skeletons, self.start_skeleton
        )
        end = _position(history.digests, self.end)
        if end is None and self.end_skeleton in history.skeletons:
            end = len(history) - history.skeletons[::-1].index(self.end_skeleton)
        return (
            (start, end)
            if start is not None and end is not None and start < end
            else None
        )


def _position(chain: Sequence[str], digest: str) -> int | None:
    return chain.index(digest) + 1 if digest and digest in chain else None


@dataclass(slots=True)
class RecallTurn:
    """The state of the recall tool in one request."""

    offered: bool = False
    hidden_rounds: list[tuple[int, int, HiddenRounds]] = field(default_factory=list)
    """Hidden rounds to put back, each with the start and end of the answer it replaces."""
    texts: list[str] = field(default_factory=list)
    """The rounds of this answer so far."""
    values: list[Any] = field(default_factory=list)
    """The same messages, decoded."""
    last: list[str] = field(default_factory=list)
    """The last round, which calls nothing or the client's own tools too."""
    blocks: str = ""
    rounds: int = 0
    calls: int = 0
    started_at: float = 0.0
    """When the first round ended."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The thread's hidden rounds, with those of this answer, in stored form; empty if it has none."""

    @property
    def has_rounds(self) -> bool:
        """Whether rounds of the tool are in the request."""
        return bool(self.texts or self.hidden_rounds)


class RecallService:
    """Offer the tool, answer its calls and put hidden rounds back."""

    def __init__(self, store: Store, *, enabled: bool = True) -> None:
        self._store = store
        self._enabled = enabled
        self._expected: dict[str, list[dict[str, Any]]] = {}
        """Hidden rounds that are being stored, by thread: a client's next request may come before that is done."""

    def serves(self, turn: ManagedTurn) -> bool:
        """Return whether this client gets the tool; False if it has such a tool itself or turned this one off."""
        if not self._enabled or turn.request.incoming.headers.get(
            RECALL_HEADER, ""
        ).lower() in ("off", "false", "0"):
            return False
        return turn.request.is_rewritable and _lacks_recall(turn)

    async def has_rounds(self, match: ThreadMatch) -> bool:
        """Return whether a stored thread has hidden rounds."""
        if not match.matched:
            return False
        return bool(await self._store.get_state(match.source, _STATE))

    def state_of(self, turn: ManagedTurn) -> list[tuple[str, str]]:
        """Return the scope and key of the thread's hidden rounds in the store; empty if it can have none."""
        if not turn.match.matched:
            return []
        return [
            (
                turn.match.source,
                _STATE,
            )
        ]

    def expected(self, turn: ManagedTurn) -> list[dict[str, Any]] | None:
        """Return the thread's hidden rounds that are being stored; None if there are none."""
        return next(
            (self._expected.get(thread) for thread, _ in self.state_of(turn)), None
        )

    def load(self, turn: ManagedTurn, state: Any) -> None:
        """Load the thread's hidden rounds whose answers are in the request's history."""
        if not turn.match.matched:
            return
        turn.recall.hidden_rounds = []
        for row in state or ():
            hidden = HiddenRounds(**row)
            span = hidden.find_span(turn.request.history)
            if span is not None and (not hidden.blocks or _takes_blocks(turn, span[1])):
                turn.recall.hidden_rounds.append((*span, hidden))

    def offer(self, turn: ManagedTurn) -> bool:
        """Decide whether to offer the tool with this request; only if the model may choose its tools freely."""
        fields = turn.request.sliced.fields
        turn.recall.offered = (
            turn.has_recall
            and (_has_past(turn) or bool(turn.request.frame.tools))
            and turn.recall.rounds < MAX_RECALL_ROUNDS
            and _is_free(fields.get("tool_choice"))
            and _gemini_may_call(turn)
            and fields.get("n") in (None, 1)
            and not fields.get("functions")
            and isinstance(fields.get("tools"), list | None)
        )
        return turn.recall.offered

    async def answer(self, turn: ManagedTurn, reply: Reply) -> bool:
        """Answer the calls of a round; return whether the model continues at once, since no call is for the client."""
        calls = calls_of(reply.message)
        own = [call for call in calls if call.name == RECALL]
        results = [_result(call, await self._look_up(turn, call)) for call in own]
        api = turn.request.incoming.api
        values = encode_messages(api, [reply.message, *results], turn.request.model)
        state = turn.recall
        state.calls += len(own)
        if own and len(own) == len(calls):
            state.texts += map(encode_value, values)
            state.values += values
            state.rounds += 1
            return True
        if own and api in _PARTS:
            state.blocks = ",".join(map(encode_value, values.pop()[_PARTS[api]]))
        state.last = list(map(encode_value, values))
        return False

    def refuse_last_round(self, turn: ManagedTurn, reply: Reply) -> None:
        """Replace the results of the last round, which was too large, by a short refusal."""
        state = turn.recall
        values = encode_messages(
            turn.request.incoming.api,
            [
                reply.message,
                *(_result(call, _NO_ROOM) for call in calls_of(reply.message)),
            ],
            turn.request.model,
        )
        state.texts[len(state.texts) - len(values) :] = map(encode_value, values)
        state.values[len(state.values) - len(values) :] = values
        state.rounds = MAX_RECALL_ROUNDS

    def expect(self, turn: ManagedTurn, after: History) -> None:
        """Expect the hidden rounds of an answer in the store: the next request uses them from now on."""
        state = turn.recall
        history = turn.request.history
        if not state.calls or not state.last:
            return
        rounds = HiddenRounds(
            history.digest(len(history)),
            history.skeleton(len(history)),
            end=after.digest(len(after)),
            end_skeleton=after.skeleton(len(after)),
            texts=[*state.texts, *state.last],
            blocks=state.blocks,
        )
        rows = [
            asdict(hidden)
            for start, _, hidden in state.hidden_rounds
            if start >= _covered_length(turn)
        ]
        turn.memory.has_hidden_rounds = True
        state.rows = self._expected[turn.match.thread] = [*rows, asdict(rounds)][
            -_MAX_KEPT:
        ]

    async def keep(self, turn: ManagedTurn, thread: str) -> None:
        """Store the hidden rounds of an answer with the thread."""
        await self._store.put_state(thread, _STATE, turn.recall.rows)

    def settle(self, turn: ManagedTurn) -> None:
        """Stop expecting them, whether they were stored or not: later requests read the store alone."""
        for thread in [
            thread
            for thread, rows in self._expected.items()
            if rows is turn.recall.rows
        ]:
            del self._expected[thread]

    async def _look_up(self, turn: ManagedTurn, call: Call) -> str:
        """Return the text that answers a recall call, or says why it cannot be answered."""
        lookup = StoreLookup(
            self._store,
            turn.request.incoming.tenant,
            turn.match.thread,
            family=True,
        )
        try:
            arguments = json.loads(call.arguments or "{}")
            if not isinstance(arguments, dict):
                raise InputError("the arguments are no object")
            found = await recall_text(lookup, arguments)
            is_all_here = not _has_past(turn) and len(await lookup.threads()) == 1
        except (EverthreadError, ValueError) as error:
            return redact(f"That could not be looked up: {error}")
        return f"{_ALL_HERE}\n\n{found}" if is_all_here else found


# The request with the tool and the hidden rounds


def recall_changes(turn: ManagedTurn) -> list[Change]:
    """Return the changes that put the tool and the hidden rounds into a request's text."""
    changes = _restore_rounds(turn)
    state = turn.recall
    if state.texts:
        last = turn.request.sliced.elements[-1]
        changes.append(
            (last.end, last.end, "".join(f",{text}" for text in state.texts))
        )
    if state.offered:
        changes.append(tool_change(turn.request.incoming.api, turn.request.sliced))
    elif state.texts and not turn.request.sliced.fields.get("tools"):
        # Calls in a history need a tool that is described.
        changes.append(
            tool_change(turn.request.incoming.api, turn.request.sliced, final=True)
        )
    return changes


def hidden_values(
    turn: ManagedTurn, length: int
) -> tuple[list[str], list[Any], list[tuple[int, int]]]:
    """Return the hidden rounds to put back after a rewrite of this length: texts, values and replaced spans."""
    texts: list[str] = []
    values: list[Any] = []
    places = []
    for start, end, hidden in turn.recall.hidden_rounds:
        if start >= length:
            texts += hidden.texts
            values += [json.loads(text) for text in hidden.texts]
            places.append((start, end))
    return texts + turn.recall.texts, values + turn.recall.values, places


def _restore_rounds(turn: ManagedTurn) -> list[Change]:
    changes: list[Change] = []
    elements = turn.request.elements
    for start, end, hidden in turn.recall.hidden_rounds:
        if start < _covered_length(turn):
            continue
        changes.append(
            (elements[start].start, elements[end - 1].end, ",".join(hidden.texts))
        )
        if hidden.blocks:
            value = elements[end].value
            name = _PARTS[turn.request.incoming.api]
            content = ",".join([hidden.blocks, *map(encode_value, value[name])])
            rest = {**value, name: None}
            text = encode_value(rest).replace(
                f'"{name}":null', f'"{name}":[{content}]', 1
            )
            changes.append((elements[end].start, elements[end].end, text))
    return changes


def _has_past(turn: ManagedTurn) -> bool:
    """Return whether messages have left the context: compacted by the gateway or by the client."""
    return turn.used is not None or turn.memory.continues_other


def _covered_length(turn: ManagedTurn) -> int:
    return turn.used.length if turn.used is not None else 0


def _takes_blocks(turn: ManagedTurn, index: int) -> bool:
    """Return whether the message at `index` holds the client's results, so that hidden ones can go before them."""
    value = (
        turn.request.elements[index].value
        if index < len(turn.request.elements)
        else None
    )
    if (
        not isinstance(value, dict)
        or value.get("role") == "assistant"
        or turn.request.incoming.api not in _PARTS
    ):
        return False
    parts = value.get(_PARTS[turn.request.incoming.api])
    return isinstance(parts, list) and any(_is_result(part) for part in parts)


def _is_result(part: Any) -> bool:
    is_response = (
        isinstance(part, Mapping) and object_of(part, "functionResponse") is not None
    )
    return is_response or kind_of(part) == "tool_result"


def tool_change(api: Api, sliced: SlicedBody, *, final: bool = False) -> Change:
    """Return the change that adds the tool as the last one. `final`: describe it, but forbid calls."""
    if api == "gemini":
        return _gemini_tool_change(sliced, final=final)
    tool = _tool_text(api)
    span = sliced.spans.get("tools")
    tools = sliced.fields.get("tools")
    if span is not None and tools:
        return span[1] - 1, span[1] - 1, f",{tool}"
    forbidden = (
        {"anthropic": ',"tool_choice":{"type":"none"}'}.get(
            api, ',"tool_choice":"none"'
        )
        if final
        else ""
    )
    if span is not None:
        return (*span, f"[{tool}]{forbidden}")
    start = sliced.body.index(b"{") + 1
    return start, start, f'"tools":[{tool}]{forbidden},'


def _gemini_tool_change(sliced: SlicedBody, *, final: bool) -> Change:
    """Return the change that adds the tool to the first group of function declarations."""
    [declaration] = gemini.encode_tools([RECALL_SCHEMA])[0]["functionDeclarations"]
    tools = [dict(tool) for tool in sliced.fields.get("tools") or ()]
    if not tools:
        tools = [{"functionDeclarations": []}]
    name = name_of(tools[0], "functionDeclarations")
    tools[0][name] = [*(tools[0].get(name) or ()), declaration]
    forbidden = (
        ',"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}' if final else ""
    )
    span = sliced.spans.get("tools")
    if span is not None:
        return (*span, f"{encode_value(tools)}{forbidden}")
    start = sliced.body.index(b"{") + 1
    return start, start, f'"tools":{encode_value(tools)}{forbidden},'


def _gemini_may_call(turn: ManagedTurn) -> bool:
    """Return whether a Gemini model may choose functions freely and has only function tools; True for other APIs."""
    if turn.request.incoming.api != "gemini":
        return True
    fields = turn.request.sliced.fields
    config = (
        object_of(object_of(fields, "toolConfig") or {}, "functionCallingConfig") or {}
    )
    tools = fields.get("tools") or []
    has_only_functions = all(
        isinstance(tool, dict) and set(tool) == {name_of(tool, "functionDeclarations")}
        for tool in tools
    )
    return has_only_functions and value_of(config, "mode") in (
        None,
        "AUTO",
        "MODE_UNSPECIFIED",
    )


@functools.cache
def _tool_text(api: Api) -> str:
    """Return the tool in the form of a protocol."""
    if api == "anthropic":
        return encode_value(anthropic.encode_tools([RECALL_SCHEMA])[0])
    if api == "openai_responses":
        return encode_value(openai_responses.encode_tools([RECALL_SCHEMA])[0])
    return encode_value(RECALL_SCHEMA)


def _is_free(choice: Any) -> bool:
    return choice in (None, "auto") or (
        isinstance(choice, Mapping) and choice.get("type") == "auto"
    )


def _lacks_recall(turn: ManagedTurn) -> bool:
    """Return whether the client has no such tool itself; tools that did not change are not read again."""
    frame = turn.request.frame
    last = turn.memory.lacks_recall
    if last is None or last[0] is not frame:
        lacks = not reading_tools(frame.tools) and RECALL not in _names(turn)
        last = (frame, lacks)
        turn.memory.lacks_recall = last
    return last[1]


def _names(turn: ManagedTurn) -> set[str]:
    tools = (
        turn.request.frame.tools
        if turn.request.incoming.api == "gemini"
        else turn.request.sliced.fields.get("tools")
    )
    listed = (
        [tool for tool in tools if isinstance(tool, dict)]
        if isinstance(tools, list)
        else ()
    )
    return {name for tool in listed for name in tool_names(tool)}


def _result(call: Call, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": text}
