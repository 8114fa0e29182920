"""Repair the history of a turn whose process has ended."""

from __future__ import annotations

from typing import Any

from everthread.agent import commands
from everthread.conversation.answer_recorder import INTERRUPTED_ANSWER_TEXT
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.store.records import Lease, NewMessage, StoredMessage
from everthread.store.store import Store
from everthread.store.turn_records import QueuedTurn, TurnState

UNKNOWN_OUTCOME = (
    "[Outcome unknown: the process that ran this tool ended before it told the result. It may have been done; "
    "look before you do it again.]"
)
PROCESS_ENDED = (
    "The process that was answering this message ended. The message was not tried again."
)


async def repair_lost_turn(
    store: Store, turn: QueuedTurn, lease: Lease
) -> tuple[TurnState, dict[str, Any]]:
    """Repair the history of a turn whose process has ended; return the turn's state and result.

    Store its message if that is missing, and a result for each open call. The turn counts as answered if a complete
    answer is stored.
    """
    content = turn.message.get("content")
    interrupted_result: dict[str, Any] = {
        "code": "interrupted",
        "message": PROCESS_ENDED,
    }
    if isinstance(content, str) and commands.parse(content):
        return "interrupted", interrupted_result
    message_event = f"{turn.id}.0"  # as a conversation names the message of this event
    last_session_id = await store.get_compression_tip(turn.thread)
    stored_messages = await store.list_messages(last_session_id)
    is_new = not any(stored_message.event == message_event for stored_message in stored_messages)
    if is_new:  # a compaction may have removed the message from the context
        is_new = not any(
            stored_message.event == message_event
            for stored_message in await store.load_history(last_session_id)
        )
    last_message = stored_messages[-1] if stored_messages and not is_new else None
    if (
        last_message is not None
        and last_message.body["role"] == "assistant"
        and not calls_of(last_message.body)
    ):
        text = text_of(last_message.body)
        if text.endswith(INTERRUPTED_ANSWER_TEXT):  # the interruption is stored already
            return "interrupted", interrupted_result
        return "answered", {
            "text": text,
            "message_id": last_message.id,
            "session": last_session_id,
            "stop": None,
        }
    message_body: Any = dict(turn.message)
    results = [
        NewMessage(
            {"role": "tool", "tool_call_id": call_id, "content": UNKNOWN_OUTCOME},
            event=f"{turn.id}/unknown/{call_id}",
        )
        for call_id in _list_open_call_ids(stored_messages)
    ]
    end_message: Message = {"role": "assistant", "content": INTERRUPTED_ANSWER_TEXT}
    # Open calls come before a message that is not stored yet, and after one that is.
    message = NewMessage(message_body, event=message_event)
    new_messages = [*results, message] if is_new else [message, *results]
    await store.append(
        last_session_id,
        [*new_messages, NewMessage(end_message, event=f"{turn.id}/interrupted")],
        lease=lease,
    )
    return "interrupted", interrupted_result


def _list_open_call_ids(stored_messages: list[StoredMessage]) -> list[str]:
    open_call_ids: dict[str, None] = {}
    for stored_message in stored_messages:
        for result in results_of(stored_message.body):
            open_call_ids.pop(result.call_id, None)
        open_call_ids |= dict.fromkeys(call.id for call in calls_of(stored_message.body))
    return list(open_call_ids)
