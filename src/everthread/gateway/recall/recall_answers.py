"""Answer the model's calls of the tool `recall`. `thread/caller/recall_rounds.py` keeps the calls and the answers."""

from __future__ import annotations

import json

from everthread.agent.tools.recall import answer_recall
from everthread.core.messages import Message, ToolCall, calls_of
from everthread.core.secrets.redaction import redact
from everthread.core.types import ModelReply
from everthread.errors import EverthreadError, InputError
from everthread.gateway.recall.merged_stream import RECALL
from everthread.store.store import Store
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.wire_messages import encode_messages, encode_value
from everthread.wire.codecs import CODECS

_NO_ROOM_TEXT = "There is no room left to look that up; answer with what you have."
_ALL_IN_CONTEXT_TEXT = (
    "Nothing has left this conversation yet: every message and tool result is in your "
    "context above. These places hold it:"
)


async def answer_recall_calls(store: Store, call: PreparedCall, reply: ModelReply) -> bool:
    """Answer the recall calls of a reply. Return whether all its calls were recall calls, so that a round follows."""
    calls = calls_of(reply.message)
    recalls = [tool_call for tool_call in calls if tool_call.name == RECALL]
    results = [
        _make_result(tool_call, await _look_up(store, call, tool_call)) for tool_call in recalls
    ]
    api = call.settings.api
    wire_messages = encode_messages(api, [reply.message, *results], call.model)
    rounds = call.rounds
    rounds.call_count += len(recalls)
    if recalls and len(recalls) == len(calls):
        rounds.add_round(wire_messages)
        return True
    encoded_blocks = ""
    results_field = CODECS[api].request_fields.results_field
    if recalls and results_field is not None:
        parts = wire_messages.pop()[results_field]
        encoded_blocks = ",".join(map(encode_value, parts))
    rounds.add_last_round(wire_messages, encoded_blocks)
    return False


def refuse_last_round(call: PreparedCall, reply: ModelReply) -> None:
    """Replace the results of the last round, which were too large, with a short refusal."""
    results = [_make_result(tool_call, _NO_ROOM_TEXT) for tool_call in calls_of(reply.message)]
    wire_messages = encode_messages(call.settings.api, [reply.message, *results], call.model)
    call.rounds.refuse_round(wire_messages)


async def _look_up(store: Store, call: PreparedCall, recall: ToolCall) -> str:
    """Return the answer to a recall call, or a text that says why it cannot be answered."""
    lookup = StoreLookup(
        store,
        call.caller_history.client_scope.tenant,
        call.thread_id,
        include_related=True,
        skip_visible=True,
    )
    try:
        arguments = json.loads(recall.arguments or "{}")
        if not isinstance(arguments, dict):
            raise InputError("the arguments are no object")
        answer = await answer_recall(lookup, arguments)
        is_all_in_context = not call.has_left_messages and len(await lookup.threads()) == 1
    except (EverthreadError, ValueError) as error:
        return redact(f"That could not be looked up: {error}")
    return f"{_ALL_IN_CONTEXT_TEXT}\n\n{answer}" if is_all_in_context else answer


def _make_result(tool_call: ToolCall, text: str) -> Message:
    return {"role": "tool", "tool_call_id": tool_call.id, "content": text}
