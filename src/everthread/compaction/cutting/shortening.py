"""Cut a result or a message to a number of tokens: its start and end stay, and the full text is stored."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everthread.core.equal_shares import find_largest_equal_share
from everthread.core.lookup_tools import is_lookup_answer
from everthread.core.messages import (
    Message,
    ToolResult,
    content_text,
    edit_results,
    kind_of,
    text_of,
    with_content,
    with_text,
)
from everthread.core.summary_marks import without_summary
from everthread.core.tokens import TokenCounter
from everthread.core.tool_outputs import (
    OutputToStore,
    cut_middle,
    is_persisted,
    make_persisted_block,
    output_id,
    parse_persisted,
)
from everthread.wire.permanent_parts import has_tool_reference, loads_tools

MIN_RESULT_TOKENS = 24
"""A result is never cut to fewer tokens."""
MIN_BLOCK_TOKENS = 160
"""With fewer tokens, a cut text cites the stored text in one bracket instead of a block of four lines."""
_BLOCK_TOKENS = 96
"""Tokens of a block without its preview."""
_NOTE_TOKENS = 28
"""Tokens of the bracket with an id. Without an id, the bracket takes about a third of them."""
MIN_CITED_TOKENS = 64
"""With fewer tokens, the bracket does not name the id, because the tokens are better spent on the text."""


@dataclass(frozen=True, slots=True)
class ShortenedMessage:
    """A message that was cut, and the texts to store for it."""

    message: Message
    outputs_to_store: tuple[OutputToStore, ...] = ()


def cut_results(  # noqa: PLR0913 - every input of the cut
    index: int,
    message: Message,
    max_tokens: int,
    *,
    counter: TokenCounter,
    tool_names: Mapping[str, str],
    cut_lookups: bool,
) -> ShortenedMessage:
    """Cut each result of a message to `max_tokens`. `tool_names`: the name of the tool, by call id.

    The answer of a lookup tool is only cut if `cut_lookups` is set, and never stored, because the model can look it up
    again.
    """
    if message.get("role") == "tool" and loads_tools(message):
        return ShortenedMessage(message)
    outputs_to_store: list[OutputToStore] = []
    room = max(max_tokens, MIN_RESULT_TOKENS)

    def edit(result: ToolResult, _: Mapping[str, Any]) -> Any:
        text = result.text
        tokens = counter.text(text) if len(text) > room else 0
        if tokens <= room or has_tool_reference(result.content):
            return result.content
        answers_lookup = is_lookup_answer(
            result.tool_name or tool_names.get(result.call_id, ""), text
        )
        if answers_lookup and not cut_lookups:
            return result.content
        must_store = not answers_lookup and not is_persisted(text)
        short_text = shorten_result(text, tokens, room, cite=must_store)
        excess = counter.text(short_text) - room
        # Its start and end have more tokens than the average of the text.
        if excess > 0:
            short_text = shorten_result(
                text, tokens, max(room - excess - excess // 2, 1), cite=must_store
            )
        if len(short_text) >= len(text):
            return result.content
        if must_store:
            outputs_to_store.append(
                OutputToStore(index, result.call_id, output_id(text), text, short_text)
            )
        return with_text(result.content, short_text)

    return ShortenedMessage(edit_results(message, edit), tuple(outputs_to_store))


def shorten_result(text: str, tokens: int, max_tokens: int, *, cite: bool = True) -> str:
    """Cut a text of `tokens` tokens to about `max_tokens`. If `cite` is set, add the id of the stored text."""
    chars_per_token = len(text) / max(tokens, 1)
    if cite and max_tokens >= MIN_BLOCK_TOKENS:
        return make_persisted_block(
            text, preview_chars=int((max_tokens - _BLOCK_TOKENS) * chars_per_token)
        )
    persisted = parse_persisted(text)
    length = persisted.chars if persisted else len(text)
    if persisted:
        cited_id = persisted.id
    elif cite and max_tokens >= MIN_CITED_TOKENS:
        cited_id = output_id(text)
    else:
        cited_id = ""
    kept_chars = max(
        int((max_tokens - (_NOTE_TOKENS if cited_id else _NOTE_TOKENS // 3)) * chars_per_token),
        0,
    )
    end_chars = kept_chars // 3
    text = persisted.preview if persisted else text
    note = f"[… cut: {length:,} characters in all{', stored as ' if cited_id else ''}{cited_id} …]"
    start = text[: kept_chars - end_chars].rstrip()
    end = text[len(text) - end_chars :].lstrip() if end_chars else ""
    return "\n".join(part for part in (start, note, end) if part)


def cut_text(
    index: int, message: Message, max_tokens: int, counter: TokenCounter
) -> ShortenedMessage:
    """Cut the texts of a message to about `max_tokens` in all; return a smaller message unchanged.

    The beginning and the end of each text stay; the middle is stored.
    """
    message_without_summary = without_summary(message) or message
    texts = [content_text([part]) for part in _list_text_parts(message_without_summary)] or [
        text_of(message_without_summary)
    ]
    sizes = [counter.text(text) for text in texts]
    share = find_largest_equal_share(
        sizes,
        max(max_tokens - _BLOCK_TOKENS * sum(size > max_tokens for size in sizes), 1),
    )
    outputs_to_store: list[OutputToStore] = []
    part_numbers = itertools.count()

    def shorten_part(text: str) -> str:
        size = sizes[next(part_numbers)]
        kept_chars = int(share * len(text) / max(size, 1)) // 2
        replacement, middle = cut_middle(text, keep_chars=kept_chars)
        if size <= share or len(replacement) >= len(text):
            return text
        outputs_to_store.append(OutputToStore(index, "", output_id(middle), middle, replacement))
        return replacement

    content: Any = message_without_summary.get("content")
    if isinstance(content, list):
        content = [
            {**part, "text": shorten_part(part["text"])} if _is_text(part) else part
            for part in content
        ]
    elif isinstance(content, str):
        content = shorten_part(content)
    if outputs_to_store:
        return ShortenedMessage(
            with_content(message_without_summary, content), tuple(outputs_to_store)
        )
    return ShortenedMessage(message)


def _list_text_parts(message: Message) -> list[Any]:
    content = message.get("content")
    return [part for part in content if _is_text(part)] if isinstance(content, list) else []


def _is_text(part: Any) -> bool:
    return kind_of(part) == "text" and isinstance(part.get("text"), str)
