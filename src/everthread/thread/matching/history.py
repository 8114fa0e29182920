"""Identify messages by digests of their content, chained over a history.

A second chain of loose digests leaves out parts that clients drop to save room: thinking and the contents of tool
results.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple, cast

from everthread.core.fingerprints import (
    canonical_form,
    chain_digest,
    message_fingerprint,
)
from everthread.core.json_values import json_value
from everthread.core.messages import (
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    calls_of,
    content_text,
    kind_of,
    text_of,
)
from everthread.core.types import Api
from everthread.wire.codecs import CODECS

_CLEARED_NOTICE_PATTERN = re.compile(
    r"\b(?:clear|remov|omit|truncat|prun|elid|compact|trimm|delet|redact|drop|snip|no longer|not shown|old tool)",
    re.IGNORECASE,
)
_MAX_PLACEHOLDER_CHARS = 300
_MOVED_NOTICE_PATTERN = re.compile(
    r"\b(?:full|complete|whole|entire|original) (?:tool )?(?:output|result|content|string|text)s? "
    r"(?:\w+ ){0,2}?(?:available|saved|stored|written|kept)\b",
    re.IGNORECASE,
)
_MAX_PREVIEW_CHARS = 4_000
"""Maximum characters of the preview that a client leaves, with a notice, after moving a result into a file."""
MAX_CACHED_DIGESTS = 50_000
"""Maximum entries of the cache of chained digests."""
_HASH_CHARS = 12
"""Characters of a result's hash."""


class MessageIdentity(NamedTuple):
    """The hashes that identify one message.

    A named tuple, because other processes send thousands of them: unpickling a dataclass takes ten times as long.
    """

    fingerprint: str
    loose_fingerprint: str
    """A digest without thinking and the contents of results, or an empty string if the message is only thinking."""
    result_hashes: tuple[str, ...] = ()
    """A short hash of each tool result in it."""
    cleared_flags: tuple[bool, ...] = ()
    """Whether each of these results is a placeholder."""
    key: bytes = b""
    """A hash of the message's original text."""
    has_user_words: bool = False
    """Whether it holds words of the user; a message may also hold only the results of tools."""


@dataclass(frozen=True, slots=True)
class History:
    """The chained digests of a client's messages: entry `i` covers the first `i + 1` messages."""

    digests: tuple[str, ...]
    loose_digests: tuple[str, ...]
    identities: tuple[MessageIdentity, ...]
    result_hashes: str = ""
    """The hashes of all tool results, in order."""

    def __len__(self) -> int:
        return len(self.identities)

    def digest(self, length: int) -> str:
        """Return the digest of the first `length` messages, or an empty string if `length` is 0."""
        return self.digests[length - 1] if length else ""

    def loose_digest(self, length: int) -> str:
        """Return the loose digest of the first `length` messages, or an empty string if `length` is 0."""
        return self.loose_digests[length - 1] if length else ""

    def loose_digests_after(self, length: int) -> list[str]:
        """Return the loose digests of all beginnings longer than `length`, without empty ones."""
        return [loose_digest for loose_digest in self.loose_digests[length:] if loose_digest]

    def join_result_hashes(self, start: int, end: int) -> str:
        """Return the hashes of the tool results in `[start, end)`, separated by spaces."""
        if start == 0 and end == len(self.identities):
            return self.result_hashes
        return " ".join(
            result for identity in self.identities[start:end] for result in identity.result_hashes
        )

    def equals_except_cleared(self, stored_results: str, length: int) -> bool:
        """Return whether the results of the first messages equal the stored ones, except for cleared results."""
        stored_hashes = stored_results.split()
        current_results = [
            pair
            for identity in self.identities[:length]
            for pair in zip(identity.result_hashes, identity.cleared_flags, strict=True)
        ]
        return len(stored_hashes) == len(current_results) and all(
            old == new or cleared
            for old, (new, cleared) in zip(stored_hashes, current_results, strict=True)
        )

    def first_messages(self, length: int) -> History:
        """Return the history of the first `length` messages."""
        if length == len(self.identities):
            return self
        dropped_count = sum(len(identity.result_hashes) for identity in self.identities[length:])
        # Each hash has a space before it, except the first.
        kept_chars = len(self.result_hashes) - dropped_count * (_HASH_CHARS + 1)
        result_hashes = self.result_hashes[: max(0, kept_chars)]
        return History(
            self.digests[:length],
            self.loose_digests[:length],
            self.identities[:length],
            result_hashes,
        )

    def extend(self, new_identities: Sequence[MessageIdentity]) -> History:
        """Return the history with these messages added."""
        if not new_identities:
            return self
        length = len(self.identities)
        digests = accumulate(
            (identity.fingerprint for identity in new_identities),
            _chain_digest,
            initial=self.digest(length),
        )
        loose_digests = accumulate(
            (identity.loose_fingerprint for identity in new_identities),
            _chain_loose_digest,
            initial=self.loose_digest(length),
        )
        result_hashes = [self.result_hashes] if self.result_hashes else []
        for identity in new_identities:
            result_hashes += identity.result_hashes
        return History(
            self.digests + tuple(digests)[1:],
            self.loose_digests + tuple(loose_digests)[1:],
            (*self.identities, *new_identities),
            " ".join(result_hashes),
        )


_EMPTY_HISTORY = History((), (), ())


def build_history(identities: Iterable[MessageIdentity]) -> History:
    return _EMPTY_HISTORY.extend(tuple(identities))


def _chain_loose_digest(digest: str, loose_fingerprint: str) -> str:
    return (
        _chain_digest(digest or "loose digest", loose_fingerprint) if loose_fingerprint else digest
    )


@functools.lru_cache(maxsize=2 * MAX_CACHED_DIGESTS)
def _chain_digest(digest: str, fingerprint: str) -> str:
    """Return the digest of a chain with one more fingerprint; cached, because histories repeat."""
    return chain_digest(digest, fingerprint)


def identify_message(api: Api, value: Any, key: bytes = b"") -> MessageIdentity:
    """Return the identity of one wire message. Treat a value that is not an object as its content."""
    has_user_words = (
        isinstance(value, dict) and value.get("role") == "user" and bool(text_of(value).strip())
    )
    if not isinstance(value, dict):
        value = {"role": "", "content": [value]}
    fields = _identity_fields(CODECS[api].make_comparable_message(value))
    results = _list_result_contents(fields)
    fingerprint = message_fingerprint(fields)
    return MessageIdentity(
        fingerprint,
        _make_loose_fingerprint(fields, fingerprint),
        result_hashes=tuple(_hash_result(content) for content in results),
        cleared_flags=tuple(is_cleared(content) for content in results),
        key=key,
        has_user_words=has_user_words,
    )


_MESSAGE_FIELDS = frozenset(
    {
        "role",
        "content",
        "name",
        "refusal",
        "tool_calls",
        "tool_call_id",
        "function_call",
    }
)
_IDENTITY_FIELDS_BY_ITEM_TYPE = {
    "function_call": frozenset({"type", "call_id", "name", "arguments"}),
    "custom_tool_call": frozenset({"type", "call_id", "name", "input"}),
    "function_call_output": frozenset({"type", "call_id", "output"}),
    "custom_tool_call_output": frozenset({"type", "call_id", "output"}),
    "reasoning": frozenset({"type", "summary", "content", "encrypted_content"}),
}
_IGNORED_FIELDS = frozenset({"id", "status", "metadata", "created_at", "timestamp"})
"""Fields of an unknown item that are not part of its content."""


def _identity_fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that identify a message, without ids, metadata, states and annotations."""
    fields = (
        _MESSAGE_FIELDS if "role" in value else _IDENTITY_FIELDS_BY_ITEM_TYPE.get(kind_of(value))
    )
    if fields is None:
        message = {key: part for key, part in value.items() if key not in _IGNORED_FIELDS}
    else:
        message = {key: part for key, part in value.items() if key in fields}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_reduce_call_to_identity(call) for call in calls]
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_reduce_part_to_identity(part) for part in content]
    return value if message == value else message


def _reduce_call_to_identity(call: Any) -> Any:
    """Return the parts of a tool call that identify it."""
    names = ("id", "type", "function", "custom")
    return {name: call[name] for name in names if name in call} if isinstance(call, dict) else call


def _reduce_part_to_identity(part: Any) -> Any:
    """Return a content part without the fields that do not identify it."""
    if kind_of(part) != "text":
        return part
    return {key: value for key, value in part.items() if key in ("type", "text", "cache_control")}


def is_cleared(content: Any) -> bool:
    """Return whether a tool result is a placeholder, or a preview of one that the client keeps elsewhere."""
    text = content_text(content).strip()
    if not text or (len(text) <= _MAX_PLACEHOLDER_CHARS and _CLEARED_NOTICE_PATTERN.search(text)):
        return True
    return len(text) <= _MAX_PREVIEW_CHARS and _MOVED_NOTICE_PATTERN.search(text) is not None


def _list_result_contents(value: dict[str, Any]) -> list[Any]:
    """Return the contents of the tool results in a message."""
    if value.get("role") in ("tool", "function"):
        return [value.get("content")]
    if "output" in value and kind_of(value).endswith("_output"):
        return [value["output"]]
    content = value.get("content")
    if not isinstance(content, list):
        return []
    return [part.get("content") for part in content if _is_result(part)]


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and kind_of(part) in RESULT_BLOCK_KINDS


def _make_loose_fingerprint(value: dict[str, Any], fingerprint: str) -> str:
    """Return the loose fingerprint of a message: its hash without thinking and the contents of results."""
    if kind_of(value) in REASONING_BLOCK_KINDS:
        return ""
    if value.get("role") == "assistant":
        calls = [[call.id, call.name, parse_arguments(call.arguments)] for call in calls_of(value)]
        text = text_of(value).strip() or str(value.get("refusal") or "").strip()
        return _hash(["assistant", text, calls]) if text or calls else ""
    value_without_results = _without_results(value)
    if value_without_results is value:
        return fingerprint
    return message_fingerprint(value_without_results)


def _without_results(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("role") in ("tool", "function"):
        return {**value, "content": None}
    if "output" in value and kind_of(value).endswith("_output"):
        return {**value, "output": None}
    content = value.get("content")
    if not isinstance(content, list) or not any(map(_is_result, content)):
        return value
    return {
        **value,
        "content": [{**part, "content": None} if _is_result(part) else part for part in content],
    }


def parse_arguments(text: str) -> Any:
    """Return a call's arguments as a JSON value, or as text if they are not JSON."""
    parsed = json_value(text)
    return text if parsed is None else parsed


def _hash_result(content: Any) -> str:
    canonical_message = cast("dict[str, Any]", canonical_form({"role": "tool", "content": content}))
    return _hash(canonical_message.get("content"))[:_HASH_CHARS]


_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _hash(value: Any) -> str:
    text = _JSON.encode(value).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=20, person=b"loose digest").hexdigest()
