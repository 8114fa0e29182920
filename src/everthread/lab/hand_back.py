"""Writes a conversation as one text of a given length, for agents that compact by themselves and take a text back."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.messages import (
    Message,
    calls_of,
    count_noun,
    iterate_strings,
    results_of,
)
from everthread.core.transcript import is_user_message, user_text
from everthread.errors import EverthreadError
from everthread.factory import compress
from everthread.lab.importers.log import without_reasoning

WINDOWS = tuple(round(256_000 * 0.75**step) for step in range(18))
"""Windows that are tried, 256,000 to about 2,000 tokens: the text grows with the window."""
MESSAGE_SHARE = 0.15
"""Part of the text that the user's first message may take, and the latest."""
MAX_PIECE_CHARS = 300
"""Characters of a result, an argument or an answer in the newest messages."""
HAND_BACK_INTRO = "Kept by Everthread from before the compaction: the user's words, and what was done."


def count_units(text: str) -> int:
    """Return the length of a text as JavaScript counts it, in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def write_hand_back(
    messages: Sequence[Message],
    *,
    max_chars: int,
    model: str | None = None,
    how: str = "",
) -> str:
    """Return the conversation in at most `max_chars` characters, the most useful part first.

    The user's latest and first message come first, then the summary of everything before, then the newest steps. `how`:
    how to recall the rest. The result is empty if there is nothing to compact.
    """
    messages = without_reasoning(messages)
    room = int(max_chars * MESSAGE_SHARE)
    said = [
        user_text(message).strip() for message in messages if is_user_message(message)
    ]
    parts = [f"{HAND_BACK_INTRO} {how}".strip()]
    if said:
        parts.append(f"The user's latest message: {_cut(said[-1], room)}")
    if len(said) > 1:
        parts.append(f"The user's first message: {_cut(said[0], room)}")
    head = "\n\n".join(parts)
    body = _largest_body(messages, max_chars - count_units(head) - 2, model=model)
    return f"{head}\n\n{body}" if body else ""


def _cut(text: str, room: int) -> str:
    """Return the text; of a longer one its beginning, in whole words."""
    if count_units(text) <= room:
        return text
    start = text[: room // 2].rpartition(" ")[0] or text[: room // 2]
    return f"{start} […] ({count_noun(len(text) - len(start), 'further character')})"


def _largest_body(messages: Sequence[Message], room: int, *, model: str | None) -> str:
    """Return the longest body that fits, over windows of different sizes; the shortest is cut if none does."""
    bodies = [
        body
        for window in WINDOWS
        if (body := _write_body(messages, window, model=model))
    ]
    fitting = [body for body in bodies if count_units(body) <= room]
    if fitting or not bodies:
        return max(fitting, key=len, default="")
    shortest = min(bodies, key=len)
    return shortest[: max(room // 2, 0)].rpartition("\n")[0]


def _write_body(messages: Sequence[Message], window: int, *, model: str | None) -> str:
    """Return the summary for a window, and the newest messages; empty if nothing can be compacted for it."""
    try:
        compaction = compress(
            messages, window=window, summarizer="journal", model=model, force=True
        )
    except EverthreadError:
        return ""
    if not compaction.changed or not compaction.summary:
        return ""
    after = max(compaction.covered, default=-1)
    newest = [
        step for message in messages[after + 1 :] if (step := _write_step(message))
    ]
    parts = [compaction.summary]
    if newest:
        parts.append("\n".join(["Directly before the compaction:", *newest]))
    return "\n\n".join(parts)


def _write_step(message: Message) -> str:
    """Return a message in short: the user's words, the words and calls of an answer, the start of a result."""
    lines = []
    said = user_text(message).strip() if message["role"] == "user" else ""
    if said:
        lines.append(f"- user: {_cut(said, 4 * MAX_PIECE_CHARS)}")
    if message["role"] == "assistant":
        words = message.get("content")
        if isinstance(words, str) and words.strip():
            lines.append(f"- answered: {_cut(words.strip(), MAX_PIECE_CHARS)}")
        for call in calls_of(message):
            arguments = ", ".join(
                " ".join(text.split()) for text in iterate_strings(call.parsed)
            )
            lines.append(f"- called {call.name}: {_cut(arguments, MAX_PIECE_CHARS)}")
    results = (" ".join(result.text.split()) for result in results_of(message))
    lines += [f"- result: {_cut(text, MAX_PIECE_CHARS)}" for text in results]
    return "\n".join(lines)
