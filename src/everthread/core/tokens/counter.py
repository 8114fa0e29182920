"""Count the tokens of a request.

A counter belongs to one model: it knows the tokenizer, the provider's wrapping of messages, calls and tools, and its
earlier counts. Messages are immutable, so a message is counted once; a history counted again costs a lookup for each
message, decoded anew or not.
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
from everthread.core.tokens.media import audio_tokens, document_tokens, image_tokens
from everthread.core.tokens.tokenizers import bare_name, tokenizer_for
from everthread.core.types import System

_AUDIO_BLOCKS = frozenset({"input_audio", "audio"})
_DOCUMENT_BLOCKS = frozenset({"file", "document", "input_file"})
_MAX_CACHED_MESSAGES = 50_000
_MAX_CACHED_CHARS = 64_000_000
"""Limits of the cache: messages, and their characters."""
_MEDIA_CHARS = 500_000
"""Characters that an image or a file counts in the cache."""
_MAX_CACHED_TEXT_CHARS = 4_000_000
_SIGNATURE_BYTES = 100
"""Of a signature, besides the thoughts in it."""
_THOUGHT_CHARS = 4.6
"""Characters of thoughts for a token of `o200k_base`."""
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
class Format:
    """The tokens that a provider adds around the text; measured on reported usage.

    `call` includes the wrapping of the call's result; `first_call` is added once to a message with calls, `parallel`
    once to one with several, `text_with_calls` once to one that also has text. `parameter`
    is the price of one argument if arguments are written one by one; if it is 0, they are counted as JSON.
    `name_repeats`: how often a call's name is written, for the call and its result. `tools` is the price of offering
    any, `declared` whether they are written as type declarations or as JSON, `schema` a factor on that JSON: it is
    mostly keys and signs, in which vocabularies differ less than in prose.
    """

    message: float
    call: float
    first_call: float = 0.0
    parallel: float = 0.0
    text_with_calls: float = 0.0
    parameter: float = 0.0
    name_repeats: int = 1
    tools: int = 0
    declared: bool = False
    schema: float = 1.0
    reply: int = 3


OPENAI = Format(message=4, call=5, name_repeats=2, tools=11, declared=True)
OPENAI_REASONING = replace(
    OPENAI, call=10, first_call=2, parallel=16, text_with_calls=7
)
"""OpenAI's models from GPT-5 on."""
CLAUDE = Format(
    message=3, call=55, first_call=-7, parameter=14.5, tools=346, schema=0.91
)
_REASONING_NAME = re.compile(r"gpt-?[5-9]|codex")
TEMPLATE = Format(message=5, call=10, tools=4)
"""Open models: a chat template that writes tools and calls as JSON."""


def format_for(model: str | None) -> Format:
    name = bare_name(model)
    if "claude" in name:
        return CLAUDE
    if tokenizer_for(model).vocabulary in ("o200k_base", "cl100k_base"):
        return OPENAI_REASONING if _REASONING_NAME.search(name) else OPENAI
    return TEMPLATE


def estimate_request_tokens(
    messages: Sequence[Mapping[str, Any]],
    *,
    system: System = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
) -> int:
    """Prompt tokens of a request with these messages, system prompt and tools."""
    return TokenCounter(model).request(messages, system=system, tools=tools)


class TokenCounter:
    """Counts the tokens of requests to one model.

    Messages may be in OpenAI's form or hold Anthropic's blocks; keys that begin with `_` are private and never sent.
    """

    def __init__(self, model: str | None = None) -> None:
        self.model = model
        self._tokens = tokenizer_for(model).count
        self._format = format_for(model)
        # Counted values, the oldest first. The key narrows the search; the value must be equal.
        self._cache: dict[Hashable, tuple[Any, int, int]] = {}
        self._cache_size = 0
        self._texts: dict[str, int] = {}
        self._characters = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model only: the caches are not worth their bytes."""
        return TokenCounter, (self.model,)

    def text(self, text: str) -> int:
        """Count the tokens of a text by itself. Counts of some megabytes of text are cached."""
        tokens = self._texts.get(text)
        if tokens is None:
            tokens = round(self._text(text))
            self._characters += len(text)
            if self._characters > _MAX_CACHED_TEXT_CHARS:
                self._texts.clear()
                self._characters = len(text)
            self._texts[text] = tokens
        return tokens

    def message(self, message: Mapping[str, Any]) -> int:
        """Count the tokens that a message adds to a prompt, its wrapping included."""
        key = message_key(message)
        return self._cached(key, message) or self._remember(
            key, message, self._message(message)
        )

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> int:
        return sum(map(self.message, messages)) if messages else 0

    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> int:
        """Count the tokens of the offered tools, in OpenAI's or Anthropic's form."""
        if not tools or not isinstance(tools, list | tuple):
            return 0
        return self._format.tools + sum(map(self._tool, tools))

    def system(self, system: System) -> int:
        if not system:
            return 0
        key = system if isinstance(system, str) else message_key({"content": system})
        return self._cached(key, system) or self._remember(
            key, system, self._format.message + self._content(system)
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
            + self._format.reply
        )

    def _cached(self, key: Hashable, value: Any) -> int:
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

    def _text(self, text: Any) -> float:
        return self._tokens(text) if isinstance(text, str) and text else 0.0

    def _message(self, message: Any) -> float:
        if not isinstance(message, Mapping):
            return self._format.message + self._text(str(message))
        total = self._format.message + self._content(message.get("content"))
        total += self._text(message.get("refusal"))
        total += max(
            self._text(message.get("reasoning_content")), self._hidden_thoughts(message)
        )
        if message.get("role") != "tool" and message.get("name"):
            total += 1 + self._text(message["name"])
        calls = message.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        total += self._around_calls(len(calls), has_text=bool(message.get("content")))
        for call in calls:
            holder = (
                call.get("function") or call.get("custom")
                if isinstance(call, Mapping)
                else None
            )
            if isinstance(holder, Mapping):
                total += self._call(
                    holder.get("name"), holder.get("arguments", holder.get("input"))
                )
            else:
                total += self._format.call
        return total

    def _content(self, content: Any, depth: int = 0) -> float:
        if not isinstance(content, list):
            return self._text(
                content if isinstance(content, str) or content is None else str(content)
            )
        if depth > _MAX_DEPTH:
            return 0.0
        kinds = [
            str(part.get("type")) if isinstance(part, Mapping) else "text"
            for part in content
        ]
        around = self._around_calls(
            sum(kind in CALL_BLOCKS for kind in kinds), has_text="text" in kinds
        )
        return sum(self._part(part, depth) for part in content) + around

    def _around_calls(self, count: int, *, has_text: bool) -> float:
        """Return the tokens around the calls of one message."""
        if not count:
            return 0.0
        total = self._format.first_call
        total += self._format.parallel if count > 1 else 0.0
        return total + (self._format.text_with_calls if has_text else 0.0)

    def _part(self, part: Any, depth: int) -> float:
        if not isinstance(part, Mapping):
            return self._text(str(part))
        kind = str(part.get("type"))
        if kind in CALL_BLOCKS:
            return self._call(part.get("name"), part.get("input"))
        if kind in RESULT_BLOCKS:
            return self._content(part.get("content"), depth + 1)
        if kind in REASONING_BLOCKS:
            return self._reasoning(part)
        if kind in IMAGE_BLOCKS:
            return image_tokens(part, self.model)
        if kind in _AUDIO_BLOCKS:
            return audio_tokens(part, self.model)
        if kind in _DOCUMENT_BLOCKS:
            return self._document(part, depth)
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return self._text(part[key])
        return self._text(_dump(_strip_uncounted(part)))

    def _reasoning(self, part: Mapping[str, Any]) -> float:
        """Count reasoning as text; if it is encrypted, four bytes are about one token."""
        secret = part.get("encrypted_content") or part.get("data")
        if isinstance(secret, str):
            return len(secret) * 3 / 4 / 4
        summary = part.get("summary")
        texts = (
            [item.get("text") for item in summary if isinstance(item, Mapping)]
            if isinstance(summary, list)
            else []
        )
        shown = sum(map(self._text, [part.get("thinking"), part.get("text"), *texts]))
        return max(shown, self._signed(part.get("signature")))

    def _hidden_thoughts(self, message: Mapping[str, Any]) -> float:
        """Return the tokens of the thoughts that the signatures of a message of Claude's hold."""
        native = message.get("_native")
        value = native.get("value") if isinstance(native, Mapping) else None
        blocks = value.get("content") if isinstance(value, Mapping) else None
        if not isinstance(blocks, list):
            return 0.0
        return sum(
            self._signed(block.get("signature"))
            for block in blocks
            if isinstance(block, Mapping)
        )

    def _signed(self, signature: Any) -> float:
        """Return the tokens of the thoughts in a signature: it holds all of them, the text beside it a summary."""
        if not isinstance(signature, str):
            return 0.0
        characters = max(0.0, len(signature) * 3 / 4 - _SIGNATURE_BYTES)
        return characters / _THOUGHT_CHARS * tokenizer_for(self.model).per_token

    def _document(self, part: Mapping[str, Any], depth: int) -> float:
        total = self._text(part.get("title")) + self._text(part.get("context"))
        source = part.get("source")
        kind = source.get("type") if isinstance(source, Mapping) else None
        if isinstance(source, Mapping) and kind == "text":
            return total + self._text(source.get("data"))
        if isinstance(source, Mapping) and kind == "content":
            return total + self._content(source.get("content"), depth + 1)
        return total + document_tokens(part, self.model)

    def _call(self, name: Any, arguments: Any) -> float:
        total = self._format.call + self._format.name_repeats * self._text(name)
        value = json_value(arguments) if isinstance(arguments, str) else arguments
        if isinstance(value, Mapping) and self._format.parameter:
            for key, item in value.items():
                total += self._format.parameter + self._text(key)
                total += self._text(item if isinstance(item, str) else _dump(item))
            return total
        return total + self._text(
            arguments if value is None else _dump(value, compact=True)
        )

    def _tool(self, tool: Mapping[str, Any]) -> int:
        function = _function(tool)
        key = "tool", str(function.get("name")), str(function.get("description"))
        counted = self._cached(key, tool)
        if counted:
            return counted
        text = _declaration(function) if self._format.declared else _dump(function)
        return self._remember(key, tool, self._text(text) * self._format.schema)


def _function(tool: Any) -> dict[str, Any]:
    """Return name, description and schema of a tool in any form; other kinds of tools unchanged."""
    if not isinstance(tool, Mapping):
        return {}
    function = tool.get("function")
    holder = function if isinstance(function, Mapping) else tool
    named = {key: holder[key] for key in ("name", "description") if holder.get(key)}
    schema = holder.get("parameters") or holder.get("input_schema")
    return {**named, "parameters": schema} if schema else named


def _declaration(function: Mapping[str, Any]) -> str:
    """Return a tool as OpenAI shows it to its models: a commented type declaration."""
    schema = function.get("parameters")
    body = (
        _type(schema)
        if isinstance(schema, Mapping) and schema.get("properties")
        else ""
    )
    return f"{_comment(function)}type {function.get('name')} = ({f'_: {body}' if body else ''}) => any;\n\n"


def _comment(value: Mapping[str, Any]) -> str:
    return "".join(
        f"// {line}\n" for line in str(value.get("description") or "").splitlines()
    )


def _type(schema: Any, depth: int = 0) -> str:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return "any"
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(_type(option, depth + 1) for option in options)
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(_dump, schema["enum"]))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        lines = (
            _property(key, value, schema, depth) for key, value in properties.items()
        )
        return "{\n" + "".join(lines) + "}"
    kind = schema.get("type")
    return (
        f"{_type(schema.get('items'), depth + 1)}[]"
        if kind == "array"
        else str(kind or "any")
    )


def _property(key: Any, value: Any, owner: Mapping[str, Any], depth: int) -> str:
    required = owner.get("required")
    optional = "" if isinstance(required, list) and key in required else "?"
    comment = _comment(value) if isinstance(value, Mapping) else ""
    return f"{comment}{key}{optional}: {_type(value, depth + 1)},\n"


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


def _dump(value: Any, *, compact: bool = False) -> str:
    try:
        return json.dumps(
            value,
            ensure_ascii=False,
            default=str,
            skipkeys=True,
            separators=(",", ":") if compact else None,
        )
    except (ValueError, RecursionError):
        return ""
