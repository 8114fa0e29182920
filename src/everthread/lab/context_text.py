"""Write a conversation as one text of a given length, for agents that compact by themselves and accept such a text."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message, calls_of, results_of
from everthread.core.text import count_noun
from everthread.core.turns import is_user_message, user_text
from everthread.errors import EverthreadError
from everthread.factory import compress
from everthread.lab.importers.log import without_reasoning

CANDIDATE_WINDOWS = tuple(round(256_000 * 0.75**step) for step in range(18))
"""Windows that are tried, from 256,000 to about 2,000 tokens, because the text grows with the window."""
MAX_USER_MESSAGE_SHARE = 0.15
"""Maximum share of the text for the user's first message, and as much for the latest."""
MAX_EXCERPT_CHARS = 300
"""Characters of a result, an argument or an answer in the newest messages."""
CONTEXT_TEXT_INTRO = (
    "Kept by Everthread from before the compaction: the user's words, and what was done."
)


def count_utf16_units(text: str) -> int:
    """Return the length of a text as JavaScript counts it, in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def compose_context_text(
    messages: Sequence[Message],
    *,
    max_chars: int,
    model: str | None = None,
    recall_hint: str = "",
) -> str:
    """Return the conversation in at most `max_chars` characters, the most useful part first.

    The user's latest and first message come first, then the summary of everything before, then the newest steps.
    `recall_hint` tells the model how to recall the rest. The result is empty if there is nothing to compact.
    """
    messages = without_reasoning(messages)
    max_message_chars = int(max_chars * MAX_USER_MESSAGE_SHARE)
    user_messages = [user_text(message).strip() for message in messages if is_user_message(message)]
    parts = [f"{CONTEXT_TEXT_INTRO} {recall_hint}".strip()]
    if user_messages:
        parts.append(
            f"The user's latest message: {_cut_text(user_messages[-1], max_message_chars)}"
        )
    if len(user_messages) > 1:
        parts.append(f"The user's first message: {_cut_text(user_messages[0], max_message_chars)}")
    heading = "\n\n".join(parts)
    body = _find_largest_body(messages, max_chars - count_utf16_units(heading) - 2, model=model)
    return f"{heading}\n\n{body}" if body else ""


def _cut_text(text: str, max_units: int) -> str:
    """Return the text, or the beginning of a longer text, in whole words."""
    if count_utf16_units(text) <= max_units:
        return text
    start = text[: max_units // 2].rpartition(" ")[0] or text[: max_units // 2]
    return f"{start} […] ({count_noun(len(text) - len(start), 'further character')})"


def _find_largest_body(messages: Sequence[Message], max_units: int, *, model: str | None) -> str:
    """Write the body for windows of different sizes; return the longest that fits. If none fits, cut the shortest."""
    bodies = [
        body
        for window in CANDIDATE_WINDOWS
        if (body := _compose_body(messages, window, model=model))
    ]
    fitting_bodies = [body for body in bodies if count_utf16_units(body) <= max_units]
    if fitting_bodies or not bodies:
        return max(fitting_bodies, key=len, default="")
    shortest_body = min(bodies, key=len)
    return shortest_body[: max(max_units // 2, 0)].rpartition("\n")[0]


def _compose_body(messages: Sequence[Message], window: int, *, model: str | None) -> str:
    """Return the summary for a window and the newest messages, or an empty string if nothing can be compacted."""
    try:
        compaction = compress(
            messages, window=window, summarizer="journal", model=model, force=True
        )
    except EverthreadError:
        return ""
    if not compaction.changed or not compaction.summary:
        return ""
    last_covered = max(compaction.covered, default=-1)
    newest_steps = [
        step for message in messages[last_covered + 1 :] if (step := _describe_step(message))
    ]
    parts = [compaction.summary]
    if newest_steps:
        parts.append("\n".join(["Directly before the compaction:", *newest_steps]))
    return "\n\n".join(parts)


def _describe_step(message: Message) -> str:
    """Shorten a message to a few lines about its words, calls and results."""
    lines = []
    user_words = user_text(message).strip() if message["role"] == "user" else ""
    if user_words:
        lines.append(f"- user: {_cut_text(user_words, 4 * MAX_EXCERPT_CHARS)}")
    if message["role"] == "assistant":
        words = message.get("content")
        if isinstance(words, str) and words.strip():
            lines.append(f"- answered: {_cut_text(words.strip(), MAX_EXCERPT_CHARS)}")
        for call in calls_of(message):
            arguments = ", ".join(" ".join(text.split()) for text in iterate_strings(call.parsed))
            lines.append(f"- called {call.name}: {_cut_text(arguments, MAX_EXCERPT_CHARS)}")
    results = (" ".join(result.text.split()) for result in results_of(message))
    lines += [f"- result: {_cut_text(text, MAX_EXCERPT_CHARS)}" for text in results]
    return "\n".join(lines)
