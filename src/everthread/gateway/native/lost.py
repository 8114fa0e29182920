"""A turn whose process vanished: what is known of it is written down, and it is not begun again."""

from __future__ import annotations

from typing import Any

from everthread.agent import commands
from everthread.conversation.responses import INTERRUPTED
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.store.models import Lease, NewMessage, QueuedTurn, StoredMessage, TurnState
from everthread.store.store import Store

UNKNOWN = (
    "[Outcome unknown: the process that ran this tool ended before it told the result. It may have been done; "
    "look before you do it again.]"
)
ENDED = "The process that answered it ended in the middle; it was not begun again."


async def settle(store: Store, turn: QueuedTurn, lease: Lease) -> tuple[TurnState, dict[str, Any]]:
    """Make the history whole: the message stays, open calls get a result. An answer that is whole counts."""
    said = turn.message.get("content")
    interrupted: dict[str, Any] = {"code": "interrupted", "message": ENDED}
    if isinstance(said, str) and commands.parse(said):
        return "interrupted", interrupted
    own = f"{turn.id}.0"  # as a conversation names the message of this event
    tip = await store.get_compression_tip(turn.thread)
    stored = await store.messages(tip)
    is_new = not any(item.event == own for item in stored)
    if is_new:  # in view; a compaction may have covered it since
        is_new = not any(item.event == own for item in await store.history(tip))
    last = stored[-1] if stored and not is_new else None
    if last is not None and last.body["role"] == "assistant" and not calls_of(last.body):
        text = text_of(last.body)
        if text.endswith(INTERRUPTED):  # somebody has written it down already
            return "interrupted", interrupted
        return "answered", {"text": text, "message_id": last.id, "session": tip, "stop": None}
    body: Any = dict(turn.message)
    results = [
        NewMessage({"role": "tool", "tool_call_id": call, "content": UNKNOWN}, event=f"{turn.id}/unknown/{call}")
        for call in _open_calls(stored)
    ]
    end: Message = {"role": "assistant", "content": INTERRUPTED}
    # Calls that are open came before a message that is new, and after one that was stored.
    message = NewMessage(body, event=own)
    new = [*results, message] if is_new else [message, *results]
    await store.append(tip, [*new, NewMessage(end, event=f"{turn.id}/interrupted")], lease=lease)
    return "interrupted", interrupted


def _open_calls(stored: list[StoredMessage]) -> list[str]:
    calls: dict[str, None] = {}
    for item in stored:
        for result in results_of(item.body):
            calls.pop(result.call_id, None)
        calls |= dict.fromkeys(call.id for call in calls_of(item.body))
    return list(calls)
