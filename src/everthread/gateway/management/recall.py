"""The tool `recall`, offered to a proxied model once its thread was compacted, and answered here.

The client never sees its calls. What the model called and was told is kept with the thread and stands again, byte for
byte, in the place of the answer that the client knows, until a compaction covers it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from everthread.agent.tools.conversation import RECALL_SCHEMA, recall_text
from everthread.compaction.composition import reading_tools
from everthread.conversation.lookup import StoreLookup
from everthread.core.messages import Call, Message, calls_of, kind_of, tool_names
from everthread.core.redaction import redact
from everthread.core.types import Api, Reply
from everthread.errors import EverthreadError, InputError
from everthread.gateway.base import encode_messages
from everthread.gateway.body import SlicedBody, encode_value
from everthread.gateway.management.identity import History
from everthread.gateway.management.rounds import RECALL
from everthread.store.store import Store
from everthread.wire import anthropic, openai_responses

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

RECALL_HEADER = "x-everthread-recall"
"""A client's own word on it: `off`."""
MAX_RECALL_ROUNDS = 3
"""So often the model may look something up before it answers without."""
RECALL_SECONDS = 90.0
"""No further round begins after so long."""
_STATE = "recall"
_MOST_KEPT = 100
_NO_ROOM = "There is no room left to look that up; answer with what you have."

Change = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class HiddenRounds:
    """The messages that replace one answer of the client's history: recall calls, results and the answer."""

    start: str
    start_skeleton: str
    """The history before the answer."""
    end: str
    end_skeleton: str
    """The history with it."""
    texts: list[str]
    """The messages that go upstream instead."""
    blocks: str = ""
    """Results that go before the client's own in the message after it."""

    def find_span(self, history: History) -> tuple[int, int] | None:
        """The start and end of the answer in a history; None where the history does not hold it."""
        start = _position(history.digests, self.start) or _position(history.skeletons, self.start_skeleton)
        end = _position(history.digests, self.end)
        if end is None and self.end_skeleton in history.skeletons:
            end = len(history) - history.skeletons[::-1].index(self.end_skeleton)
        return (start, end) if start is not None and end is not None and start < end else None


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
    """The thread's hidden rounds with those of this answer, as they are stored; empty where it has none."""


class RecallService:
    """Offers the tool, answers its calls and puts hidden rounds back."""

    def __init__(self, store: Store, *, enabled: bool = True) -> None:
        self._store = store
        self._enabled = enabled
        self._expected: dict[str, list[dict[str, Any]]] = {}
        """Hidden rounds that are being stored, by thread: a client's next request may come before that is done."""

    def serves(self, turn: ManagedTurn) -> bool:
        """Whether this client gets the tool: not one that has such a tool itself, or wants none."""
        if not self._enabled or turn.incoming.headers.get(RECALL_HEADER, "").lower() in ("off", "false", "0"):
            return False
        return turn.rewritable and not reading_tools(turn.frame.tools) and RECALL not in _names(turn)

    def state_of(self, turn: ManagedTurn) -> list[tuple[str, str]]:
        """Under which scope and key the store has what was hidden in this thread; none where nothing can be."""
        if not turn.match.matched:
            return []
        return [(turn.match.branch_of[0] if turn.match.branch_of else turn.match.thread, _STATE)]

    def expected(self, turn: ManagedTurn) -> list[dict[str, Any]] | None:
        """The thread's hidden rounds that are on their way into the store; None where none are."""
        return next((self._expected.get(thread) for thread, _ in self.state_of(turn)), None)

    def load(self, turn: ManagedTurn, state: Any) -> None:
        """Load the thread's hidden rounds whose answers the rewrite does not cover."""
        if turn.used is None or not turn.match.matched:
            return
        turn.recall.hidden_rounds = []
        for row in state or ():
            hidden = HiddenRounds(**row)
            span = hidden.find_span(turn.history)
            if span is not None and (not hidden.blocks or _takes_blocks(turn, span[1])):
                turn.recall.hidden_rounds.append((*span, hidden))

    def offer(self, turn: ManagedTurn) -> bool:
        """Whether the tool goes with this request: from the first rewrite on, where a model may choose freely."""
        fields = turn.sliced.fields
        turn.recall.offered = (
            turn.has_recall
            and turn.used is not None
            and turn.recall.rounds < MAX_RECALL_ROUNDS
            and _is_free(fields.get("tool_choice"))
            and fields.get("n") in (None, 1)
            and not fields.get("functions")
            and isinstance(fields.get("tools"), list | None)
        )
        return turn.recall.offered

    async def answer(self, turn: ManagedTurn, reply: Reply) -> bool:
        """Answer the calls of a round; whether the model goes on at once, because none is for the client."""
        calls = calls_of(reply.message)
        own = [call for call in calls if call.name == RECALL]
        results = [_result(call, await self._look_up(turn, call)) for call in own]
        api = turn.incoming.api
        values = encode_messages(api, [reply.message, *results], turn.model)
        state = turn.recall
        state.calls += len(own)
        if own and len(own) == len(calls):
            state.texts += map(encode_value, values)
            state.values += values
            state.rounds += 1
            return True
        if own and api == "anthropic":
            state.blocks = ",".join(map(encode_value, values.pop()["content"]))
        state.last = list(map(encode_value, values))
        return False

    def withdraw(self, turn: ManagedTurn, reply: Reply) -> None:
        """Replace the results of the last round, which was too large, by a short refusal."""
        state = turn.recall
        values = encode_messages(
            turn.incoming.api,
            [reply.message, *(_result(call, _NO_ROOM) for call in calls_of(reply.message))],
            turn.model,
        )
        state.texts[len(state.texts) - len(values) :] = map(encode_value, values)
        state.values[len(state.values) - len(values) :] = values
        state.rounds = MAX_RECALL_ROUNDS

    def expect(self, turn: ManagedTurn, after: History) -> None:
        """Expect the hidden rounds of an answer in the store: the request after it is given them from now on."""
        state, history = turn.recall, turn.history
        if not state.calls or not state.last:
            return
        rounds = HiddenRounds(
            history.digest(len(history)), history.skeleton(len(history)), after.digest(len(after)),
            after.skeleton(len(after)), [*state.texts, *state.last], state.blocks,
        )  # fmt: skip
        rows = [asdict(hidden) for start, _, hidden in state.hidden_rounds if start >= _covered_length(turn)]
        state.rows = self._expected[turn.match.thread] = [*rows, asdict(rounds)][-_MOST_KEPT:]

    async def keep(self, turn: ManagedTurn, thread: str) -> None:
        """Store the hidden rounds of an answer with the thread."""
        await self._store.put_state(thread, _STATE, turn.recall.rows)

    def settle(self, turn: ManagedTurn) -> None:
        """They are stored, or could not be: the store alone is asked from now on."""
        for thread in [thread for thread, rows in self._expected.items() if rows is turn.recall.rows]:
            del self._expected[thread]

    async def _look_up(self, turn: ManagedTurn, call: Call) -> str:
        """The text that answers a recall call, or says why it cannot be answered."""
        try:
            arguments = json.loads(call.arguments or "{}")
            if not isinstance(arguments, dict):
                raise InputError("the arguments are no object")
            lookup = StoreLookup(self._store, turn.incoming.tenant, turn.match.thread)
            return await recall_text(lookup, arguments)
        except (EverthreadError, ValueError) as error:
            return redact(f"That could not be looked up: {error}")


# The request with the tool and with what was hidden


def recall_changes(turn: ManagedTurn) -> list[Change]:
    """What puts the tool and the hidden rounds into a request's text."""
    changes = _restore_rounds(turn)
    state = turn.recall
    if state.texts:
        last = turn.sliced.elements[-1]
        changes.append((last.end, last.end, "".join(f",{text}" for text in state.texts)))
    if state.offered:
        changes.append(_tool_change(turn.incoming.api, turn.sliced))
    elif state.texts and not turn.sliced.fields.get("tools"):  # calls in a history need a tool that is described
        changes.append(_tool_change(turn.incoming.api, turn.sliced, final=True))
    return changes


def hidden_values(turn: ManagedTurn, length: int) -> tuple[list[str], list[Any], list[tuple[int, int]]]:
    """Of what is put back behind a rewrite of this length: its texts, the same read, and whose places it takes."""
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
    elements = turn.elements
    for start, end, hidden in turn.recall.hidden_rounds:
        if start < _covered_length(turn):
            continue
        changes.append((elements[start].start, elements[end - 1].end, ",".join(hidden.texts)))
        if hidden.blocks:
            value = elements[end].value
            content = ",".join([hidden.blocks, *map(encode_value, value["content"])])
            rest = {**value, "content": None}
            text = encode_value(rest).replace('"content":null', f'"content":[{content}]', 1)
            changes.append((elements[end].start, elements[end].end, text))
    return changes


def _covered_length(turn: ManagedTurn) -> int:
    return turn.used.length if turn.used is not None else 0


def _takes_blocks(turn: ManagedTurn, index: int) -> bool:
    """Whether the message there holds the client's results, and ours can go before them."""
    value = turn.elements[index].value if index < len(turn.elements) else None
    content = value.get("content") if isinstance(value, dict) and value.get("role") == "user" else None
    return isinstance(content, list) and any(kind_of(part) == "tool_result" for part in content)


def _tool_change(api: Api, sliced: SlicedBody, *, final: bool = False) -> Change:
    """The tool as the last one. `final`: described, and not to be called."""
    tool = encode_value(_tool(api))
    span, tools = sliced.spans.get("tools"), sliced.fields.get("tools")
    if span is not None and tools:
        return span[1] - 1, span[1] - 1, f",{tool}"
    forbidden = {"anthropic": ',"tool_choice":{"type":"none"}'}.get(api, ',"tool_choice":"none"') if final else ""
    if span is not None:
        return (*span, f"[{tool}]{forbidden}")
    start = sliced.text.index("{") + 1
    return start, start, f'"tools":[{tool}]{forbidden},'


def _tool(api: Api) -> dict[str, Any]:
    if api == "anthropic":
        return anthropic.encode_tools([RECALL_SCHEMA])[0]
    return openai_responses.encode_tools([RECALL_SCHEMA])[0] if api == "openai_responses" else RECALL_SCHEMA


def _is_free(choice: Any) -> bool:
    return choice in (None, "auto") or (isinstance(choice, Mapping) and choice.get("type") == "auto")


def _names(turn: ManagedTurn) -> set[str]:
    tools = turn.sliced.fields.get("tools")
    listed = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else ()
    return {name for tool in listed for name in tool_names(tool)}


def _result(call: Call, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": text}
