"""Compare messages: as the same conversation, or as the same bytes.

The *canonical* form identifies a conversation, however the client formats it. It ignores cache markers, key order,
surrounding whitespace, reminders that clients inject into one request, Everthread's own `_` keys and empty optional
fields. A string equals one text block. An otherwise empty message is identified by its role and ids.

The *byte* form is what a provider's prefix cache compares: key order and every character matter. It leaves out cache
markers, which mark the end of the cached prefix and are not part of it, and Everthread's own `_` keys, which are never
sent. A string equals one text block. To compare the bytes that are really sent, pass messages in wire form.

Digests are stored, so they must stay the same across processes and Python versions. A message's digest hashes its JSON
text, and a link of the chain hashes two digests of fixed length, so that different histories never hash the same input.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from everthread.core.json_values import json_value
from everthread.core.user_words import remove_volatile_elements

OPAQUE_FIELDS = frozenset({"input", "arguments", "parameters", "input_schema"})
"""Fields with a tool's data or schema, in which a `cache_control` or `_id` is content, not protocol."""

CACHE_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Fields that mark the end of a cached prefix and are not part of its content."""

_MAX_DEPTH = 64
"""Deeper nesting is hashed by its size only, so that no input exhausts the stack."""

_DROPPED: Any = object()
_FieldConverter = Callable[[str, Any, int], Any]


def chain_digest(digest: str, fingerprint: str) -> str:
    """Return the digest after one more message, from that message's fingerprint."""
    return _hash(f"{digest}{fingerprint}", b"chain")


def message_fingerprint(message: Any) -> str:
    """Return the identity of one message."""
    return _hash(_SORTED_JSON.encode(canonical_form(message)), b"canonical")


def canonical_form(message: Any) -> Any:
    """Return the canonical form of a message. Texts of the assistant are trimmed, but not cleaned of reminders."""
    role = message.get("role") if isinstance(message, dict) else None
    clean_text = str.strip if role == "assistant" else remove_volatile_elements
    return _rebuild(message, functools.partial(_convert_canonical_field, clean_text), 0)


def byte_form(value: Any) -> Any:
    """Return a message, block or tool as a prefix cache sees it."""
    return _rebuild(value, _convert_byte_field, 0)


def byte_form_text(form: Any) -> str:
    """Return the JSON text of a byte form, its keys in their own order."""
    return _JSON.encode(form)


def _hash(text: str, purpose: bytes) -> str:
    return blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=20, person=purpose
    ).hexdigest()


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=repr)
_SORTED_JSON = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=repr
)


def _rebuild(value: Any, convert_field: _FieldConverter, depth: int) -> Any:
    """Return a copy in which `convert_field(key, value, depth)` converts or drops each field of a dict."""
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth > _MAX_DEPTH:
        return f"{len(value)} items"
    if not isinstance(value, dict):
        return [_rebuild(item, convert_field, depth + 1) for item in value]
    fields = {}
    for key, field_value in value.items():
        converted_value = convert_field(str(key), field_value, depth + 1)
        if converted_value is not _DROPPED:
            fields[str(key)] = converted_value
    return fields


def _convert_data_field(_key: str, value: Any, depth: int) -> Any:
    return _rebuild(value, _convert_data_field, depth)


def _convert_byte_field(key: str, value: Any, depth: int) -> Any:
    if _is_ignored_key(key):
        return _DROPPED
    if key in OPAQUE_FIELDS:
        return _rebuild(value, _convert_data_field, depth)
    if key == "content" and isinstance(value, str):
        return [{"type": "text", "text": value}]
    return _rebuild(value, _convert_byte_field, depth)


def _convert_canonical_field(
    clean_text: Callable[[str], str], key: str, value: Any, depth: int
) -> Any:
    if _is_ignored_key(key):
        return _DROPPED
    if key in OPAQUE_FIELDS:
        # Clients write the JSON of one call with other spaces and key order: arguments are the object they spell.
        if key == "arguments" and isinstance(value, str):
            arguments = json_value(value)
            value = arguments if isinstance(arguments, dict) else value
        return _rebuild(value, _convert_data_field, depth)
    if key == "content":
        value = _convert_canonical_parts(clean_text, value)
    if isinstance(value, str):
        return value or _DROPPED
    canonical_value = _rebuild(
        value, functools.partial(_convert_canonical_field, clean_text), depth
    )
    return _DROPPED if canonical_value in (None, "", [], {}) else canonical_value


def _convert_canonical_parts(clean_text: Callable[[str], str], content: Any) -> Any:
    """Return the content with every text cleaned, without empty parts."""
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return content
    canonical_parts: list[Any] = []
    for part in parts:
        block = {"type": "text", "text": part} if isinstance(part, str) else part
        if not (
            isinstance(block, dict)
            and block.get("type") == "text"
            and isinstance(block.get("text"), str)
        ):
            canonical_parts.append(block)
        elif text := clean_text(block["text"]):
            canonical_parts.append({**block, "text": text})
    return canonical_parts


def _is_ignored_key(key: str) -> bool:
    return key in CACHE_MARKS or key.startswith("_")
