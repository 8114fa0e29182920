"""Make a request that has too many bytes smaller, without losing text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.compaction.cutting.pruning import drop_media, prune_messages
from everthread.core.messages import (
    Message,
    edit_results,
    kind_of,
    results_of,
    with_content,
    with_text,
)
from everthread.core.tool_outputs import OutputToStore, make_output_to_store
from everthread.core.turns import find_latest_user_index
from everthread.wire.permanent_parts import loads_tools

LARGE_RESULT_CHARS = 4_000
"""If a request has too many bytes, results with more characters than this are stored and cited."""
DOCUMENT_BLOCKS = frozenset({"document", "file", "input_file"})


def shrink_messages(
    bodies: Sequence[Message], preview_chars: int
) -> tuple[list[Message], list[OutputToStore]]:
    """Return the messages with fewer bytes and attachments, and the texts to store first.

    Images and documents stay in the latest user message and in the latest results.
    """
    latest_user = find_latest_user_index(bodies)
    smaller_bodies = prune_messages(
        bodies,
        protect_from=len(bodies) if latest_user is None else latest_user,
        prune_results=False,
    )
    last_answer = max(
        (index for index, message in enumerate(bodies) if message.get("role") == "assistant"),
        default=0,
    )
    smaller_bodies[:last_answer] = [
        _drop_attachments(message, is_latest=index == latest_user)
        for index, message in enumerate(smaller_bodies[:last_answer])
    ]
    outputs: list[OutputToStore] = []
    return [
        _cite_results(position, message, preview_chars, outputs)
        for position, message in enumerate(smaller_bodies)
    ], outputs


def _drop_attachments(message: Message, *, is_latest: bool) -> Message:
    """Replace the documents of a message, and the images in its tool results, by placeholders."""
    message = edit_results(message, lambda result, _holder: drop_media(result.content)[0])
    parts = message.get("content")
    if is_latest or not isinstance(parts, list):
        return message
    if not any(kind_of(part) in DOCUMENT_BLOCKS for part in parts):
        return message
    return with_content(
        message,
        [_describe_document(part) if kind_of(part) in DOCUMENT_BLOCKS else part for part in parts],
    )


def _describe_document(part: Mapping[str, Any]) -> dict[str, str]:
    """Return a placeholder that names a document."""
    file = part.get("file")
    names = file if isinstance(file, Mapping) else part
    name = next(
        (names[key] for key in ("title", "filename") if isinstance(names.get(key), str)),
        "",
    )
    text = f"[document removed: {name[:100]}]" if name else "[document removed]"
    return {"type": "text", "text": text}


def _cite_results(
    index: int, message: Message, preview_chars: int, outputs: list[OutputToStore]
) -> Message:
    """Return the message with large results cited, and add the outputs to store."""
    if loads_tools(message) or not any(
        len(result.text) > LARGE_RESULT_CHARS for result in results_of(message)
    ):
        return message

    def replace_content(result: Any, _holder: object) -> Any:
        if len(result.text) <= LARGE_RESULT_CHARS:
            return result.content
        item = make_output_to_store(index, result.call_id, result.text, preview_chars=preview_chars)
        if item is None:
            return result.content
        outputs.append(item)
        return with_text(result.content, item.replacement)

    return edit_results(message, replace_content)
