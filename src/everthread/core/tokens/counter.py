"""Count the tokens of a request.

A counter belongs to one model: it has the tokenizer, the overhead of messages, calls and tools, and a cache.
Messages are immutable, so each is counted once; counting a history again costs one lookup per message.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from everthread.core.json_values import as_list, as_object, json_value
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    IMAGE_BLOCK_KINDS,
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    message_key,
)
from everthread.core.tokens.media import (
    count_audio_tokens,
    count_document_tokens,
    count_image_tokens,
)
from everthread.core.tokens.prompt_formats import find_format
from everthread.core.tokens.tokenizers import tokenizer_for
from everthread.core.tokens.tool_texts import (
    MAX_DEPTH,
    dump_json,
    read_function,
    render_declaration,
)
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
_REPLY_TOKENS = 3
"""Tokens with which every prompt asks for the reply."""
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
        return self.system(system) + self.tools(tools) + self.messages(messages) + _REPLY_TOKENS

    def _find_cached(self, key: Hashable, value: Any) -> int:
        """Return the cached token count of a value, or 0 if it is not cached."""
        entry = self._cache.get(key)
        return entry[1] if entry and entry[0] == value else 0

    def _remember(self, key: Hashable, value: Any, tokens: float) -> int:
        parts = key[1] if isinstance(key, tuple) else None
        size = 4 * round(tokens) + (
            _MEDIA_CHARS * parts.count(None) if isinstance(parts, tuple) else 0
        )
        self._cache_size += size - self._cache.pop(key, (None, 0, 0))[2]
        self._cache[key] = value, round(tokens), size
        while self._cache_size > _MAX_CACHED_CHARS or len(self._cache) > _MAX_CACHED_MESSAGES:
            self._cache_size -= self._cache.pop(next(iter(self._cache)))[2]
        return round(tokens)

    def _count_tokens(self, text: Any) -> float:
        return self._count_text(text) if isinstance(text, str) and text else 0.0

    def _count_message(self, message: Any) -> float:
        if not isinstance(message, Mapping):
            return self._format.message_tokens + self._count_tokens(str(message))
        total = self._format.message_tokens + self._count_content(message.get("content"))
        total += self._count_tokens(message.get("refusal"))
        total += max(
            self._count_tokens(message.get("reasoning_content")),
            self._count_hidden_thoughts(message),
        )
        if message.get("role") != "tool" and message.get("name"):
            total += 1 + self._count_tokens(message["name"])
        calls = message.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        total += self._count_call_overhead(len(calls), has_text=bool(message.get("content")))
        for call in calls:
            holder = (
                call.get("function") or call.get("custom") if isinstance(call, Mapping) else None
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
        if depth > MAX_DEPTH:
            return 0.0
        kinds = [str(part.get("type")) if isinstance(part, Mapping) else "text" for part in content]
        overhead = self._count_call_overhead(
            sum(kind in CALL_BLOCK_KINDS for kind in kinds), has_text="text" in kinds
        )
        return sum(self._count_part(part, depth) for part in content) + overhead

    def _count_call_overhead(self, count: int, *, has_text: bool) -> float:
        """Return the overhead of one message's tool calls in tokens, apart from their names and arguments."""
        if not count:
            return 0.0
        total = self._format.first_call
        total += self._format.parallel_calls if count > 1 else 0.0
        return total + (self._format.text_with_calls if has_text else 0.0)

    def _count_part(self, part: Any, depth: int) -> float:
        if not isinstance(part, Mapping):
            return self._count_tokens(str(part))
        kind = str(part.get("type"))
        if kind in CALL_BLOCK_KINDS:
            return self._count_call(part.get("name"), part.get("input"))
        if kind in RESULT_BLOCK_KINDS:
            return self._count_content(part.get("content"), depth + 1)
        if kind in REASONING_BLOCK_KINDS:
            return self._count_reasoning(part)
        if kind in IMAGE_BLOCK_KINDS:
            return count_image_tokens(part, self.model)
        if kind in _AUDIO_BLOCKS:
            return count_audio_tokens(part, self.model)
        if kind in _DOCUMENT_BLOCKS:
            return self._count_document(part, depth)
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return self._count_tokens(part[key])
        return self._count_tokens(dump_json(_strip_uncounted(part)))

    def _count_reasoning(self, part: Mapping[str, Any]) -> float:
        """Count reasoning as text; if it is encrypted, four bytes are about one token."""
        encrypted_text = part.get("encrypted_content") or part.get("data")
        if isinstance(encrypted_text, str):
            return len(encrypted_text) * 3 / 4 / 4
        summary = [as_object(item).get("text") for item in as_list(part.get("summary"))]
        visible_tokens = sum(
            map(self._count_tokens, [part.get("thinking"), part.get("text"), *summary])
        )
        return max(visible_tokens, self._count_signature(part.get("signature")))

    def _count_hidden_thoughts(self, message: Mapping[str, Any]) -> float:
        """Return the tokens of the thoughts that the signatures in a message from Claude encrypt."""
        value = as_object(as_object(message.get("_native")).get("value"))
        signatures = (as_object(block).get("signature") for block in as_list(value.get("content")))
        return sum(map(self._count_signature, signatures))

    def _count_signature(self, signature: Any) -> float:
        """Estimate the tokens of the thoughts that a signature encrypts. The visible text is only a summary of them."""
        if not isinstance(signature, str):
            return 0.0
        characters = max(0.0, len(signature) * 3 / 4 - _SIGNATURE_OVERHEAD_BYTES)
        return characters / _THOUGHT_CHARS_PER_TOKEN * tokenizer_for(self.model).per_token

    def _count_document(self, part: Mapping[str, Any], depth: int) -> float:
        total = self._count_tokens(part.get("title")) + self._count_tokens(part.get("context"))
        source = as_object(part.get("source"))
        if source.get("type") == "text":
            return total + self._count_tokens(source.get("data"))
        if source.get("type") == "content":
            return total + self._count_content(source.get("content"), depth + 1)
        return total + count_document_tokens(part, self.model)

    def _count_call(self, name: Any, arguments: Any) -> float:
        total = self._format.call_tokens + self._format.name_repeats * self._count_tokens(name)
        value = json_value(arguments) if isinstance(arguments, str) else arguments
        if isinstance(value, Mapping) and self._format.parameter_tokens:
            for key, item in value.items():
                total += self._format.parameter_tokens + self._count_tokens(key)
                total += self._count_tokens(item if isinstance(item, str) else dump_json(item))
            return total
        return total + self._count_tokens(
            arguments if value is None else dump_json(value, is_compact=True)
        )

    def _count_tool(self, tool: Mapping[str, Any]) -> int:
        function = read_function(tool)
        key = "tool", str(function.get("name")), str(function.get("description"))
        cached_tokens = self._find_cached(key, tool)
        if cached_tokens:
            return cached_tokens
        text = render_declaration(function) if self._format.declares_types else dump_json(function)
        return self._remember(key, tool, self._count_tokens(text) * self._format.schema_factor)


def _strip_uncounted(value: Any, depth: int = 0) -> Any:
    """Remove ids, markers, Everthread's own keys and embedded files from a block of an unknown kind."""
    if isinstance(value, Mapping) and depth <= MAX_DEPTH:
        return {
            key: _strip_uncounted(item, depth + 1)
            for key, item in value.items()
            if key not in _UNCOUNTED_FIELDS and not str(key).startswith("_")
        }
    if isinstance(value, list) and depth <= MAX_DEPTH:
        return [_strip_uncounted(item, depth + 1) for item in value]
    return "" if isinstance(value, str) and value.startswith("data:") else value
