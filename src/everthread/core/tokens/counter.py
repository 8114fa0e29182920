"""Count the tokens of a request.

A counter belongs to one model: it has the tokenizer, the overhead of messages, calls and tools, and a cache.
Messages are immutable, so each is counted once; counting a history again costs one lookup per message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.core.messages import (
    CALL_BLOCKS,
    IMAGE_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    json_value,
    message_key,
)
from everthread.core.tokens.media import (
    count_audio_tokens,
    count_document_tokens,
    count_image_tokens,
)
from everthread.core.tokens.tokenizers import bare_name, tokenizer_for
from everthread.core.types import System

_AUDIO_BLOCKS = frozenset({"input_audio", "audio"})
_DOCUMENT_BLOCKS = frozenset({"file", "document", "input_file"})
_MAX_CACHED_MESSAGES = 50_000
_MAX_CACHED_CHARS = 64_000_000
"""Maximum characters of the cached messages."""
_MEDIA_CHARS = 500_000
"""Characters that an image or a file counts in the cache."""
_MAX_CACHED_TEXT_CHARS = 4_000_000
_SIGNATURE_OVERHEAD_BYTES = 100
"""Bytes of a signature besides the thoughts in it."""
_THOUGHT_CHARS_PER_TOKEN = 4.6
"""Characters of thoughts per token of `o200k_base`."""
_MAX_DEPTH = 8  # results within documents within results: nothing real nests deeper
_UNCOUNTED_FIELDS = frozenset(
    {
        "type",
        "id",
        "tool_use_id",
        "call_id",
        "cache_control",
        "prompt_cache_breakpoint",
        "signature",
        "data",
        "encrypted_content",
    }
)


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """The tokens that a provider adds around the text, measured on reported usage.

    `call_tokens` includes the wrapping of the call's result. A message with calls adds `first_call` once,
    `parallel_calls` if there are several, `text_with_calls` if it also has text. `parameter_tokens` is the price of one
    argument if arguments are written one by one; if it is 0, they are counted as JSON. `name_repeats`: how often the
    name is written. `tools_tokens` is the price of offering any tool; `declares_types`: tools are written as type
    declarations, not as JSON. `schema_factor` corrects that JSON, in which vocabularies differ less than in prose.
    """

    message_tokens: float
    call_tokens: float
    first_call: float = 0.0
    parallel_calls: float = 0.0
    text_with_calls: float = 0.0
    parameter_tokens: float = 0.0
    name_repeats: int = 1
    tools_tokens: int = 0
    declares_types: bool = False
    schema_factor: float = 1.0
    reply_tokens: int = 3


OPENAI_FORMAT = PromptFormat(
    message_tokens=4,
    call_tokens=5,
    name_repeats=2,
    tools_tokens=11,
    declares_types=True,
)
OPENAI_REASONING_FORMAT = replace(
    OPENAI_FORMAT, call_tokens=10, first_call=2, parallel_calls=16, text_with_calls=7
)
"""OpenAI's models from GPT-5 on."""
CLAUDE_FORMAT = PromptFormat(
    message_tokens=3,
    call_tokens=55,
    first_call=-7,
    parameter_tokens=14.5,
    tools_tokens=346,
    schema_factor=0.91,
)
_REASONING_NAME = re.compile(r"gpt-?[5-9]|codex")
CHAT_TEMPLATE_FORMAT = PromptFormat(message_tokens=5, call_tokens=10, tools_tokens=4)
"""Open models: a chat template that writes tools and calls as JSON."""


def find_format(model: str | None) -> PromptFormat:
    name = bare_name(model)
    if "claude" in name:
        return CLAUDE_FORMAT
    if tokenizer_for(model).vocabulary in ("o200k_base", "cl100k_base"):
        return (
            OPENAI_REASONING_FORMAT if _REASONING_NAME.search(name) else OPENAI_FORMAT
        )
    return CHAT_TEMPLATE_FORMAT


def estimate_request_tokens(
    messages: Sequence[Mapping[str, Any]],
    *,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
) -> int:
    """Return the prompt tokens of a request with these messages, system prompt and tools."""
    return TokenCounter(model).request(messages, system=system, tools=tools)


class TokenCounter:
    """Counts the tokens of requests to one model.

    Messages may be in OpenAI's form or hold Anthropic's blocks; keys that begin with `_` are private and never sent.
    """

    def __init__(self, model: str | None = None) -> None:
        self.model = model
        self._count_text = tokenizer_for(model).count
        self._format = find_format(model)
        # Counted values, the oldest first. The key narrows the search; the value must be equal.
        self._cache: dict[Hashable, tuple[Any, int, int]] = {}
        self._cache_size = 0
        self._text_counts: dict[str, int] = {}
        self._cached_chars = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model only: the caches are not worth their bytes."""
        return TokenCounter, (self.model,)

    def text(self, text: str) -> int:
        """Count the tokens of a text by itself. Counts of some megabytes of text are cached."""
        tokens = self._text_counts.get(text)
        if tokens is None:
            tokens = round(self._count_tokens(text))
            self._cached_chars += len(text)
            if self._cached_chars > _MAX_CACHED_TEXT_CHARS:
                self._text_counts.clear()
                self._cached_chars = len(text)
            self._text_counts[text] = tokens
        return tokens

    def message(self, message: Mapping[str, Any]) -> int:
        """Count the tokens that a message adds to a prompt, its wrapping included."""
        key = message_key(message)
        return self._find_cached(key, message) or self._remember(
            key, message, self._count_message(message)
        )

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> int:
        return sum(map(self.message, messages)) if messages else 0

    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> int:
        """Count the tokens of the offered tools, in OpenAI's or Anthropic's form."""
        if not tools or not isinstance(tools, list | tuple):
            return 0
        return self._format.tools_tokens + sum(map(self._count_tool, tools))

    def system(self, system: System) -> int:
        if not system:
            return 0
        key = system if isinstance(system, str) else message_key({"content": system})
        return self._find_cached(key, system) or self._remember(
            key, system, self._format.message_tokens + self._count_content(system)
        )

    def request(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Count the prompt tokens of the whole request."""
        return (
            self.system(system)
            + self.tools(tools)
            + self.messages(messages)
            + self._format.reply_tokens
        )

    def _find_cached(self, key: Hashable, value: Any) -> int:
        """Return the cached token count of a value; 0 if it is not cached."""
        entry = self._cache.get(key)
        return entry[1] if entry and entry[0] == value else 0

    def _remember(self, key: Hashable, value: Any, tokens: float) -> int:
        parts = key[1] if isinstance(key, tuple) else None
        size = 4 * round(tokens) + (
            _MEDIA_CHARS * parts.count(None) if isinstance(parts, tuple) else 0
        )
        self._cache_size += size - self._cache.pop(key, (None, 0, 0))[2]
        self._cache[key] = value, round(tokens), size
        while (
            self._cache_size > _MAX_CACHED_CHARS
            or len(self._cache) > _MAX_CACHED_MESSAGES
        ):
            self._cache_size -= self._cache.pop(next(iter(self._cache)))[2]
        return round(tokens)

    def _count_tokens(self, text: Any) -> float:
        return self._count_text(text) if isinstance(text, str) and text else 0.0

    def _count_message(self, message: Any) -> float:
        if not isinstance(message, Mapping):
            return self._format.message_tokens + self._count_tokens(str(message))
        total = self._format.message_tokens + self._count_content(
            message.get("content")
        )
        total += self._count_tokens(message.get("refusal"))
        total += max(
            self._count_tokens(message.get("reasoning_content")),
            self._count_hidden_thoughts(message),
        )
        if message.get("role") != "tool" and message.get("name"):
            total += 1 + self._count_tokens(message["name"])
        calls = message.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        total += self._count_call_overhead(
            len(calls), has_text=bool(message.get("content"))
        )
        for call in calls:
            holder = (
                call.get("function") or call.get("custom")
                if isinstance(call, Mapping)
                else None
            )
            if isinstance(holder, Mapping):
                total += self._count_call(
                    holder.get("name"), holder.get("arguments", holder.get("input"))
                )
            else:
                total += self._format.call_tokens
        return total

    def _count_content(self, content: Any, depth: int = 0) -> float:
        if not isinstance(content, list):
            return self._count_tokens(
                content if isinstance(content, str) or content is None else str(content)
            )
        if depth > _MAX_DEPTH:
            return 0.0
        kinds = [
            str(part.get("type")) if isinstance(part, Mapping) else "text"
            for part in content
        ]
        overhead = self._count_call_overhead(
            sum(kind in CALL_BLOCKS for kind in kinds), has_text="text" in kinds
        )
        return sum(self._count_part(part, depth) for part in content) + overhead

    def _count_call_overhead(self, count: int, *, has_text: bool) -> float:
        """Return the tokens around the calls of one message."""
        if not count:
            return 0.0
        total = self._format.first_call
        total += self._format.parallel_calls if count > 1 else 0.0
        return total + (self._format.text_with_calls if has_text else 0.0)

    def _count_part(self, part: Any, depth: int) -> float:
        if not isinstance(part, Mapping):
            return self._count_tokens(str(part))
        kind = str(part.get("type"))
        if kind in CALL_BLOCKS:
            return self._count_call(part.get("name"), part.get("input"))
        if kind in RESULT_BLOCKS:
            return self._count_content(part.get("content"), depth + 1)
        if kind in REASONING_BLOCKS:
            return self._count_reasoning(part)
        if kind in IMAGE_BLOCKS:
            return count_image_tokens(part, self.model)
        if kind in _AUDIO_BLOCKS:
            return count_audio_tokens(part, self.model)
        if kind in _DOCUMENT_BLOCKS:
            return self._count_document(part, depth)
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return self._count_tokens(part[key])
        return self._count_tokens(_dump(_strip_uncounted(part)))

    def _count_reasoning(self, part: Mapping[str, Any]) -> float:
        """Count reasoning as text; if it is encrypted, four bytes are about one token."""
        encrypted_text = part.get("encrypted_content") or part.get("data")
        if isinstance(encrypted_text, str):
            return len(encrypted_text) * 3 / 4 / 4
        summary = part.get("summary")
        texts = (
            [item.get("text") for item in summary if isinstance(item, Mapping)]
            if isinstance(summary, list)
            else []
        )
        visible_tokens = sum(
            map(self._count_tokens, [part.get("thinking"), part.get("text"), *texts])
        )
        return max(visible_tokens, self._count_signature(part.get("signature")))

    def _count_hidden_thoughts(self, message: Mapping[str, Any]) -> float:
        """Return the tokens of the thoughts that the signatures of a message of Claude's hold."""
        native = message.get("_native")
        value = native.get("value") if isinstance(native, Mapping) else None
        blocks = value.get("content") if isinstance(value, Mapping) else None
        if not isinstance(blocks, list):
            return 0.0
        return sum(
            self._count_signature(block.get("signature"))
            for block in blocks
            if isinstance(block, Mapping)
        )

    def _count_signature(self, signature: Any) -> float:
        """Estimate the tokens of the thoughts that a signature encrypts. The visible text is only a summary of them."""
        if not isinstance(signature, str):
            return 0.0
        characters = max(0.0, len(signature) * 3 / 4 - _SIGNATURE_OVERHEAD_BYTES)
        return (
            characters / _THOUGHT_CHARS_PER_TOKEN * tokenizer_for(self.model).per_token
        )

    def _count_document(self, part: Mapping[str, Any], depth: int) -> float:
        total = self._count_tokens(part.get("title")) + self._count_tokens(
            part.get("context")
        )
        source = part.get("source")
        kind = source.get("type") if isinstance(source, Mapping) else None
        if isinstance(source, Mapping) and kind == "text":
            return total + self._count_tokens(source.get("data"))
        if isinstance(source, Mapping) and kind == "content":
            return total + self._count_content(source.get("content"), depth + 1)
        return total + count_document_tokens(part, self.model)

    def _count_call(self, name: Any, arguments: Any) -> float:
        total = (
            self._format.call_tokens
            + self._format.name_repeats * self._count_tokens(name)
        )
        value = json_value(arguments) if isinstance(arguments, str) else arguments
        if isinstance(value, Mapping) and self._format.parameter_tokens:
            for key, item in value.items():
                total += self._format.parameter_tokens + self._count_tokens(key)
                total += self._count_tokens(
                    item if isinstance(item, str) else _dump(item)
                )
            return total
        return total + self._count_tokens(
            arguments if value is None else _dump(value, is_compact=True)
        )

    def _count_tool(self, tool: Mapping[str, Any]) -> int:
        function = _read_function(tool)
        key = "tool", str(function.get("name")), str(function.get("description"))
        cached_tokens = self._find_cached(key, tool)
        if cached_tokens:
            return cached_tokens
        text = (
            _write_declaration(function)
            if self._format.declares_types
            else _dump(function)
        )
        return self._remember(
            key, tool, self._count_tokens(text) * self._format.schema_factor
        )


def _read_function(tool: Any) -> dict[str, Any]:
    """Return name, description and schema of a tool in any form; other kinds of tools unchanged."""
    if not isinstance(tool, Mapping):
        return {}
    function = tool.get("function")
    holder = function if isinstance(function, Mapping) else tool
    tool_fields = {
        key: holder[key] for key in ("name", "description") if holder.get(key)
    }
    schema = holder.get("parameters") or holder.get("input_schema")
    return {**tool_fields, "parameters": schema} if schema else tool_fields


def _write_declaration(function: Mapping[str, Any]) -> str:
    """Return a tool as OpenAI shows it to its models: a commented type declaration."""
    schema = function.get("parameters")
    body = (
        _write_type(schema)
        if isinstance(schema, Mapping) and schema.get("properties")
        else ""
    )
    return f"{_write_comment(function)}type {function.get('name')} = ({f'_: {body}' if body else ''}) => any;\n\n"


def _write_comment(value: Mapping[str, Any]) -> str:
    return "".join(
        f"// {line}\n" for line in str(value.get("description") or "").splitlines()
    )


def _write_type(schema: Any, depth: int = 0) -> str:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return "any"
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(_write_type(option, depth + 1) for option in options)
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(_dump, schema["enum"]))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        lines = (
            _write_property(key, value, schema, depth)
            for key, value in properties.items()
        )
        return "{\n" + "".join(lines) + "}"
    kind = schema.get("type")
    return (
        f"{_write_type(schema.get('items'), depth + 1)}[]"
        if kind == "array"
        else str(kind or "any")
    )


def _write_property(key: Any, value: Any, owner: Mapping[str, Any], depth: int) -> str:
    required = owner.get("required")
    optional = "" if isinstance(required, list) and key in required else "?"
    comment = _write_comment(value) if isinstance(value, Mapping) else ""
    return f"{comment}{key}{optional}: {_write_type(value, depth + 1)},\n"


def _strip_uncounted(value: Any, depth: int = 0) -> Any:
    """Return a block of an unknown kind without ids, markers, our own keys and embedded files."""
    if isinstance(value, Mapping) and depth <= _MAX_DEPTH:
        return {
            key: _strip_uncounted(item, depth + 1)
            for key, item in value.items()
            if key not in _UNCOUNTED_FIELDS and not str(key).startswith("_")
        }
    if isinstance(value, list) and depth <= _MAX_DEPTH:
        return [_strip_uncounted(item, depth + 1) for item in value]
    return "" if isinstance(value, str) and value.startswith("data:") else value


def _dump(value: Any, *, is_compact: bool = False) -> str:
    try:
        return json.dumps(
            value,
            ensure_ascii=False,
            default=str,
            skipkeys=True,
            separators=(",", ":") if is_compact else None,
        )
    except (ValueError, RecursionError):
        return ""
