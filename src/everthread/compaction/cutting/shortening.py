"""Cut a result or a message to a number of tokens: its start and end stay, and the whole is stored."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import (
    Message,
    Result,
    content_text,
    edit_results,
    kind_of,
    text_of,
    with_content,
    with_text,
)
from everthread.core.outputs import (
    OutputToStore,
    cut_middle,
    is_persisted,
    make_persisted_block,
    output_id,
    parse_persisted,
)
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import is_lookup_answer, without_summary
from everthread.wire.definitions import has_tool_reference, loads_tools

MIN_RESULT_TOKENS = 24
"""The minimum tokens of a cut result."""
MIN_BLOCK_TOKENS = 160
"""With less room than this a cut text cites the stored whole in one bracket, not in a block of four lines."""
_BLOCK_TOKENS = 96
"""Tokens of a block without its preview."""
_NOTE_TOKENS = 28
"""Tokens of the bracket; without the id of the stored whole about a third."""
MIN_CITED_TOKENS = 64
"""With less room than this the bracket does not name the id: the text itself says more."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """A message that was cut, and the texts to store for it."""

    message: Message
    stored: tuple[OutputToStore, ...] = ()


def equal_share(sizes: Sequence[int], room: int) -> int:
    """Return the largest size to which each may be cut so that all together take at most `room`."""
    remaining = room
    ascending = sorted(sizes)
    for position, size in enumerate(ascending):
        share = remaining // (len(ascending) - position)
        if size > share:
            return share
        remaining -= size
    return max(ascending, default=0)


def cut_results(  # noqa: PLR0913 - every input of the cut
    index: int,
    message: Message,
    share: int,
    *,
    counter: TokenCounter,
    tools: Mapping[str, str],
    lookups: bool = True,
) -> Shortened:
    """Cut each result of a message that has more than `share` tokens. `tools` gives the tool of each call id.

    The answer of a lookup is only cut with `lookups`, and never stored: the lookup can be repeated.
    """
    if message.get("role") == "tool" and loads_tools(message):
        return Shortened(message)
    outputs: list[OutputToStore] = []
    room = max(share, MIN_RESULT_TOKENS)

    def edit(result: Result, _: Mapping[str, Any]) -> Any:
        text = result.text
        tokens = counter.text(text) if len(text) > room else 0
        if tokens <= room or has_tool_reference(result.content):
            return result.content
        answers_lookup = is_lookup_answer(
            result.name or tools.get(result.call_id, ""), text
        )
        if answers_lookup and not lookups:
            return result.content
        must_store = not answers_lookup and not is_persisted(text)
        short_text = shorten(text, tokens, room, cite=must_store)
        excess = counter.text(short_text) - room
        # Its start and end have more tokens than the average of the text.
        if excess > 0:
            short_text = shorten(
                text, tokens, max(room - excess - excess // 2, 1), cite=must_store
            )
        if len(short_text) >= len(text):
            return result.content
        if must_store:
            outputs.append(
                OutputToStore(index, result.call_id, output_id(text), text, short_text)
            )
        return with_text(result.content, short_text)

    return Shortened(edit_results(message, edit), tuple(outputs))


def shorten(text: str, tokens: int, room: int, *, cite: bool = True) -> str:
    """Cut a text of `tokens` tokens to about `room`. With `cite` the result says where the whole text is stored."""
    chars_per_token = len(text) / max(tokens, 1)
    if cite and room >= MIN_BLOCK_TOKENS:
        return make_persisted_block(
            text, preview_chars=int((room - _BLOCK_TOKENS) * chars_per_token)
        )
    persisted = parse_persisted(text)
    length = persisted.chars if persisted else len(text)
    cited_id = (
        persisted.id
        if persisted
        else output_id(text)
        if cite and room >= MIN_CITED_TOKENS
        else ""
    )
    kept_chars = max(
        int(
            (room - (_NOTE_TOKENS if cited_id else _NOTE_TOKENS // 3)) * chars_per_token
        ),
        0,
    )
    end_chars = kept_chars // 3
    text = persisted.preview if persisted else text
    note = f"[… cut: {length:,} characters in all{', stored as ' if cited_id else ''}{cited_id} …]"
    start = text[: kept_chars - end_chars].rstrip()
    end = text[len(text) - end_chars :].lstrip() if end_chars else ""
    return "\n".join(part for part in (start, note, end) if part)


def cut_text(
    index: int, message: Message, room: int, counter: TokenCounter
) -> Shortened:
    """Cut the texts of a message to about `room` tokens in all; unchanged if it is not larger.

    The first and last words of each text stay; its middle is stored.
    """
    own_message = without_summary(message) or message
    texts = [content_text([part]) for part in _text_parts(own_message)] or [
        text_of(own_message)
    ]
    sizes = [counter.text(text) for text in texts]
    share = equal_share(
        sizes, max(room - _BLOCK_TOKENS * sum(size > room for size in sizes), 1)
    )
    outputs: list[OutputToStore] = []
    positions = itertools.count()

    def shorter(text: str) -> str:
        size = sizes[next(positions)]
        keep = int(share * len(text) / max(size, 1)) // 2
        replacement, middle = cut_middle(text, keep_chars=keep)
        if size <= share or len(replacement) >= len(text):
            return text
        outputs.append(OutputToStore(index, "", output_id(middle), middle, replacement))
        return replacement

    content: Any = own_message.get("content")
    if isinstance(content, list):
        content = [
            {**part, "text": shorter(part["text"])} if _is_text(part) else part
            for part in content
        ]
    elif isinstance(content, str):
        content = shorter(content)
    return (
        Shortened(with_content(own_message, content), tuple(outputs))
        if outputs
        else Shortened(message)
    )


def _text_parts(message: Message) -> list[Any]:
    content = message.get("content")
    return (
        [part for part in content if _is_text(part)]
        if isinstance(content, list)
        else []
    )


def _is_text(part: Any) -> bool:
    return kind_of(part) == "text" and isinstance(part.get("text"), str)
