"""Make a transcript smaller without a model: replace old tool output, long arguments and old images with a few words.

Only messages in `[start, protect_from)` change, never the latest user message or open calls. No message gets longer, an
unchanged message stays the same object, and pruning again changes nothing. A changed message loses its native form;
its reasoning stays unchanged.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, cast

from everthread.compaction.history.call_lines import (
    CUT_MARK_PATTERN,
    MAX_LINE_CHARS,
    Action,
    find_action,
)
from everthread.compaction.history.compaction_history import CompactionHistory
from everthread.compaction.history.tool_calls import CallWithOutput, describe_call
from everthread.compaction.history.tool_kinds import PATCHED_FILE_PATTERN
from everthread.core.json_values import json_value
from everthread.core.lookup_tools import is_lookup_tool, shorten_answer
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    IMAGE_BLOCK_KINDS,
    Message,
    Messages,
    ToolResult,
    content_text,
    edit_results,
    kind_of,
    part_text,
    with_content,
    with_text,
    without_native_value,
)
from everthread.core.secrets.json_redaction import redact_value
from everthread.core.secrets.redaction import clip_words, redact
from everthread.core.text import clip
from everthread.core.tokens import TokenCounter
from everthread.core.tool_outputs import is_persisted
from everthread.core.turns import CallPosition
from everthread.wire.permanent_parts import loads_tools

CLEARED = "[Old tool output cleared to save context space]"
LONG_TEXT_CHARS = MAX_LINE_CHARS
"""A tool result, or a string in a call's arguments, is long if it has more characters than this."""
_JSON_STRING_PATTERN = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*:)?', re.DOTALL)
_MAX_NAMED_FILES = 8
"""Maximum number of files to name if the text of a patch is cut."""
_LONE_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
"""A lone surrogate, which cannot be encoded."""
_DATA_IMAGE_PATTERN = re.compile(r"data:image/([\w.+-]{1,40});base64,([A-Za-z0-9+/=_-]{100,})")


def prune_messages(
    messages: Messages, *, protect_from: int, start: int = 0, prune_results: bool = True
) -> list[Message]:
    """Return the transcript with old parts in `[start, protect_from)` reduced.

    Tool results are reduced only if `prune_results` is set.
    """
    pruner = Pruner(CompactionHistory(list(messages)), prune_results=prune_results)
    end = min(protect_from, len(messages))
    return [
        *messages[:start],
        *map(pruner.prune_message, range(start, end)),
        *messages[max(start, end) :],
    ]


class Pruner:
    """A pruner that reduces messages of a history on demand, each once."""

    def __init__(self, history: CompactionHistory, *, prune_results: bool = True) -> None:
        self.history = history
        self._prunes_results = prune_results
        self._unanswered_index = _find_unanswered_message(history)
        self._latest_user_index = history.latest_user_index
        self._pruned_messages: dict[int, Message] = {}

    def prune_message(self, index: int) -> Message:
        """Return the message of this index, pruned."""
        if index not in self._pruned_messages:
            self._pruned_messages[index] = self._prune(index)
        return self._pruned_messages[index]

    def _prune(self, index: int) -> Message:
        """Return a message with its results, arguments and images as far as they stay."""
        facts = self.history.facts[index]
        message = facts.message
        if facts.results and self._prunes_results and not loads_tools(message):
            message = self._prune_results(index, message)
        if facts.calls and index != self._unanswered_index:
            message = self._cut_arguments(message)
        if index != self._latest_user_index:
            message = self._drop_images(message)
        return message

    def count_tokens(self, index: int, counter: TokenCounter) -> int:
        """Count the tokens of the pruned message."""
        message = self.prune_message(index)
        if message is self.history.messages[index]:
            return self.history.sizes[index]
        return counter.message(message)

    def _find_later_call(self, index: int, result_number: int, text: str) -> str | None:
        """Return the id of the last call with the same output, or None if this is the last."""
        if len(text) <= LONG_TEXT_CHARS:
            return None
        this_position = CallPosition(index, result_number)
        last_position = self.history.last_output_positions.get(text, this_position)
        if last_position == this_position:
            return None
        results = self.history.facts[last_position.message_index].results
        return results[last_position.number].call_id

    def _prune_results(self, index: int, message: Message) -> Message:
        """Replace long tool results with one line each, and images in them with a placeholder."""
        numbers = itertools.count()
        return edit_results(
            message, lambda *result: self._prune_result(index, next(numbers), *result)
        )

    def _prune_result(
        self, index: int, result_number: int, result: ToolResult, holder: Mapping[str, Any]
    ) -> Any:
        """Return the content of a result as one line; unchanged if it is short or the user typed it."""
        content, removed_count = drop_media(result.content)
        text = content_text(content)
        call = self.history.find_answered_call(index, result_number)
        if index in self.history.typed_words:
            return content  # the user's own words
        if len(text) <= LONG_TEXT_CHARS or (
            text[:1] == "[" and self.history.read_result(index, result_number).is_replacement_line
        ):
            return content
        later_call_id = None if removed_count else self._find_later_call(index, result_number, text)
        write_line: Callable[..., str | None]
        if is_lookup_tool(call.name if call else result.tool_name) and not is_persisted(text):
            write_line = partial(_shorten_answer_to, text)
        elif later_call_id is not None:
            action = find_action(call, name=result.tool_name) or Action("tool")
            write_line = partial(
                action.format_line,
                f"same output as the later call {clip(later_call_id, 40)}".rstrip(),
            )
        elif removed_count:
            write_line = partial(
                describe_call,
                call,
                text,
                name=result.tool_name,
                failed=holder.get("is_error") is True,
            )
        else:
            return with_text(
                content,
                _append_errors(text, self.history.read_result(index, result_number)),
            )
        return with_text(
            content,
            _fit_line(text, write_line, f" [{removed_count} removed]" if removed_count else ""),
        )

    def _cut_arguments(self, message: Message) -> Message:
        """Cut long strings in the arguments of calls; JSON stays JSON."""
        fields: dict[str, Any] = {}
        if message.get("role") == "assistant":
            for name, change in (
                ("tool_calls", _cut_call_arguments),
                ("content", _cut_block_input),
            ):
                items = message.get(name)
                if isinstance(items, list):
                    short_items = [change(item) for item in items]
                    if any(new is not old for new, old in zip(short_items, items, strict=True)):
                        fields[name] = short_items
        if not fields:
            return message
        return cast("Message", {**without_native_value(message), **fields})

    def _drop_images(self, message: Message) -> Message:
        """Replace images outside tool results with a placeholder, including those written into the text."""
        content: Any = message.get("content")
        new_content: Any = content
        if message.get("role") not in ("user", "assistant"):
            return message
        if isinstance(content, str):
            new_content = _drop_data_images(content)
        elif isinstance(content, list):
            new_content = [_replace_images(part) for part in content]
        return message if new_content == content else with_content(message, new_content)


def _find_unanswered_message(history: CompactionHistory) -> int | None:
    """Return the index of the last assistant message if any of its calls has no result."""
    index = history.last_assistant_index
    if index is None:
        return None
    positions = [CallPosition(index, number) for number in range(len(history.facts[index].calls))]
    is_answered = all(position in history.call_pairs.result_by_call for position in positions)
    return None if is_answered else index


def _append_errors(text: str, call_with_output: CallWithOutput) -> str:
    """Return the line for an output, and below it the errors of a failed call, word for word.

    Keep the short output of a failed call unchanged if the line would save little.
    """
    errors = call_with_output.find_errors()
    if is_persisted(text) or sum(map(len, errors)) <= LONG_TEXT_CHARS:
        line = _fit_line(text, call_with_output.describe, "")
        if is_persisted(text) or all(error in line for error in errors):
            return line
    text_with_errors = "\n".join(
        [_fit_line(text, partial(call_with_output.describe, with_error=False), ""), *errors]
    )
    if 4 * len(text_with_errors.encode("utf-8", "surrogatepass")) <= 3 * len(
        text.encode("utf-8", "surrogatepass")
    ):
        return text_with_errors
    return (
        text if len(text) <= 3 * LONG_TEXT_CHARS else _fit_line(text, call_with_output.describe, "")
    )


def _shorten_answer_to(answer: str, *, limit: int) -> str:
    """Return the start of an answer's first line in at most `limit` characters."""
    return clip(shorten_answer(answer), limit)


def _fit_line(text: str, write_line: Callable[..., str | None], suffix: str) -> str:
    """Return the line for an output in at most half of its bytes, so that it is shorter by any measure.

    Keep a citation of stored output whole, whatever its size.
    """
    if is_persisted(text):
        return write_line(limit=LONG_TEXT_CHARS) or CLEARED
    max_bytes = len(text) // 2
    if len(text) <= 10 * LONG_TEXT_CHARS:
        max_bytes = len(text.encode("utf-8", "surrogatepass")) // 2
    for limit in (LONG_TEXT_CHARS, LONG_TEXT_CHARS // 2, LONG_TEXT_CHARS // 4):
        line = write_line(limit=limit - len(suffix))
        if line and len(f"{line}{suffix}".encode("utf-8", "surrogatepass")) <= max_bytes:
            return line + suffix
    return CLEARED


def drop_media(content: Any) -> tuple[Any, int]:
    """Replace images and large parts without text by placeholders; return the content and how many were replaced."""
    if not isinstance(content, list):
        return content, 0
    new_parts = [part if part_text(part) else _replace_media(part) for part in content]
    changed_count = sum(new is not old for new, old in zip(new_parts, content, strict=True))
    return (new_parts if changed_count else content), changed_count


def _replace_media(part: Any) -> Any:
    """Return a placeholder for an image or a large part without text; any other part unchanged."""
    kind = kind_of(part)
    if kind in IMAGE_BLOCK_KINDS:
        return _replace_images(part)
    if kind and len(str(part)) > LONG_TEXT_CHARS:
        return {"type": "text", "text": f"[{clip(kind, 40)} removed]"}
    return part


def _replace_images(part: Any) -> Any:
    """Return a content part without images.

    An image becomes a placeholder if that is shorter, an image in the text of a part is removed from the text, and any
    other part is unchanged.
    """
    if kind_of(part) in IMAGE_BLOCK_KINDS:
        placeholder = {"type": "text", "text": describe_image(part)}
        return placeholder if len(str(placeholder)) < len(str(part)) else part
    if kind_of(part) == "text" and isinstance(part.get("text"), str):
        text = _drop_data_images(part["text"])
        return part if text == part["text"] else {**part, "text": text}
    return part


def describe_image(part: Mapping[str, Any]) -> str:
    """Return a placeholder that names an image: by its link, or by its format and size."""
    source = part.get("image_url") or part.get("source")
    fields = source if isinstance(source, dict) else {"url": source}
    url, data, media = (fields.get(key) for key in ("url", "data", "media_type"))
    if isinstance(url, str) and not url.startswith("data:"):
        return f"[image removed: {clip(url, 100)}]"
    if isinstance(data, str):
        return _describe_image_data(str(media).rpartition("/")[2], data)
    match = _DATA_IMAGE_PATTERN.match(url) if isinstance(url, str) else None
    return _describe_image_data(match[1], match[2]) if match else "[image removed]"


def _describe_image_data(image_format: str, data: str) -> str:
    """Return a placeholder for base64 image data, with its format and size."""
    return f"[image removed: {clip(image_format, 20)}, {len(data) * 3 // 4096} KB]"


def _drop_data_images(text: str) -> str:
    """Replace `data:` images in a text by placeholders."""
    if "data:image/" not in text:
        return text
    return _DATA_IMAGE_PATTERN.sub(lambda match: _describe_image_data(match[1], match[2]), text)


def _cut_call_arguments(call: Any) -> Any:
    """Cut long strings in the arguments of an OpenAI tool call."""
    if not isinstance(call, dict):
        return call
    for wrapper_key, key in (("function", "arguments"), ("custom", "input")):
        wrapper = call.get(wrapper_key)
        if isinstance(wrapper, dict):
            value: Any = wrapper.get(key)
            is_json = wrapper_key == "function" and isinstance(value, str)
            short_value = _cut_json_strings(value) if is_json else _cut_value(value)
            if short_value is not value:
                return {**call, wrapper_key: {**wrapper, key: short_value}}
    return call


def _cut_block_input(part: Any) -> Any:
    """Cut long strings in the input of an Anthropic `tool_use` block."""
    if kind_of(part) not in CALL_BLOCK_KINDS:
        return part
    short_value = _cut_value(part.get("input"))
    return part if short_value is part.get("input") else {**part, "input": short_value}


def _cut_value(value: Any, depth: int = 100) -> Any:
    """Cut long strings in a JSON value, down to this depth. Return the same object if it has none."""
    if isinstance(value, str):
        return _cut_text(value)
    if not depth or not isinstance(value, dict | list):
        return value
    items = value.items() if isinstance(value, dict) else enumerate(value)
    short_items = {key: _cut_value(item, depth - 1) for key, item in items}
    if all(
        short_items[key] is item
        for key, item in (value.items() if isinstance(value, dict) else enumerate(value))
    ):
        return value
    return short_items if isinstance(value, dict) else list(short_items.values())


def _cut_json_strings(text: str) -> str:
    """Cut long strings in JSON text, and keep everything else unchanged. Wrap a text that is not JSON in an object."""
    if len(text) <= LONG_TEXT_CHARS:
        return text
    if json_value(text) is None:
        short_text = json.dumps({"unreadable_arguments": _cut_text(text)}, ensure_ascii=False)
    else:
        short_text = _JSON_STRING_PATTERN.sub(_cut_json_literal, text)
    return short_text if len(short_text) < len(text) else text


def _cut_json_literal(match: re.Match[str]) -> str:
    """Return a JSON string literal with its text cut, unless it is a key or not long."""
    if match[2] or len(match[1]) <= LONG_TEXT_CHARS:
        return match[0]
    short_text = _cut_text(json_value(match[0]))
    literal = json.dumps(
        short_text, ensure_ascii=_LONE_SURROGATE_PATTERN.search(short_text) is not None
    )
    return literal if len(literal) < len(match[0]) else match[0]


def _cut_text(text: str) -> str:
    """Cut a long text to its beginning; keep the file names of a patch too."""
    # The text is short, or was cut before.
    if len(text) <= LONG_TEXT_CHARS or (
        len(text) <= 2_000 and CUT_MARK_PATTERN.search(text, 0, 2 * LONG_TEXT_CHARS)
    ):
        return text
    names = []
    if " File: " in text:
        names = [
            match[0] for match in islice(PATCHED_FILE_PATTERN.finditer(text, 150), _MAX_NAMED_FILES)
        ]
    return "\n".join([f"{clip_words(text, 151)} [cut: {len(text):,} characters in all]", *names])


def redact_message(message: Message) -> Message:
    """Redact every secret in a message's text, arguments and results. Return the same object if it has none."""
    changes: dict[str, Any] = {}
    for name in ("content", "reasoning_content", "refusal"):
        value: Any = message.get(name)
        redacted_value = value
        if isinstance(value, str):
            redacted_value = redact(value)
        elif isinstance(value, list):
            redacted_value = redact_value(value)
        if redacted_value is not value:
            changes[name] = redacted_value
    old_calls = message.get("tool_calls")
    if isinstance(old_calls, list):
        calls = [_redact_call(call) for call in old_calls]
        if any(new is not old for new, old in zip(calls, old_calls, strict=True)):
            changes["tool_calls"] = calls
    return cast("Message", {**without_native_value(message), **changes}) if changes else message


def _redact_call(call: Any) -> Any:
    """Redact every secret in an OpenAI tool call."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return redact_value(call)
    redacted_arguments = redact(arguments)
    if redacted_arguments is arguments:
        return call
    return {**call, "function": {**function, "arguments": redacted_arguments}}
