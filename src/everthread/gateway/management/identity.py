"""By what a client's messages are known: digests of what was said, and how two tellings of it are compared.

A history is a chain of digests over its messages. A second chain, the skeleton, leaves out what clients drop to save
room: thinking and the contents of tool results. Where a client re-worded, shortened or decorated a message, the
messages themselves are compared.
"""

from __future__ import annotations

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, cast

from everthread.core.fingerprints import canonical_form, chain_digest, message_fingerprint
from everthread.core.messages import (
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    calls_of,
    content_text,
    json_value,
    kind_of,
    text_of,
)
from everthread.core.types import Api
from everthread.gateway.body import Element
from everthread.gateway.management.compaction_items import TRIGGER

_CLEARED = re.compile(
    r"\b(?:clear|remov|omit|truncat|prun|elid|compact|trimm|delet|redact|drop|snip|no longer|not shown|old tool)",
    re.IGNORECASE,
)
_LONGEST_PLACEHOLDER = 300
_MOST_KNOWN = 50_000
_SHORT = 12
"""Characters of a result's hash."""
_WORD = re.compile(r"\w+")
_BLANK_LINE = re.compile(r"\n\n+")


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """The hashes by which one message is recognised."""

    fingerprint: str
    skeleton: str
    """Empty where nothing of it is in the skeleton."""
    results: tuple[str, ...] = ()
    """A short hash for each tool result in it."""
    cleared: tuple[bool, ...] = ()
    """Whether that result is a placeholder."""
    key: bytes = b""
    """A hash of its text as it was written."""
    legacy: str = ""
    """The fingerprint by every field, as earlier versions kept it; empty where it is the same."""


@dataclass(frozen=True, slots=True)
class History:
    """The chains of a client's messages: entry `i` is about the first `i + 1` of them."""

    digests: tuple[str, ...]
    skeletons: tuple[str, ...]
    pieces: tuple[MessageIdentity, ...]
    result_hashes: str = ""
    """The hashes of all tool results, in order."""
    has_legacy: bool = False
    """Earlier versions may have known one of the messages otherwise."""

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def legacy_digests(self) -> tuple[str, ...]:
        """The chain as earlier versions kept it; empty where it is the same."""
        if not self.has_legacy:
            return ()
        prints = (piece.legacy or piece.fingerprint for piece in self.pieces)
        return tuple(accumulate(prints, _chain_digest, initial=""))[1:]

    def digest(self, length: int) -> str:
        return self.digests[length - 1] if length else ""

    def skeleton(self, length: int) -> str:
        return self.skeletons[length - 1] if length else ""

    def skeletons_after(self, length: int) -> list[str]:
        """The skeletons of longer beginnings, those that say something."""
        return [skeleton for skeleton in self.skeletons[length:] if skeleton]

    def results(self, start: int, end: int) -> str:
        if start == 0 and end == len(self.pieces):
            return self.result_hashes
        return " ".join(result for piece in self.pieces[start:end] for result in piece.results)

    def drifted_from(self, results: str, length: int) -> bool:
        """Whether the first messages, whose skeleton is known with these results, are the same but for cleared ones."""
        stored_hashes = results.split()
        now = [pair for piece in self.pieces[:length] for pair in zip(piece.results, piece.cleared, strict=True)]
        return len(stored_hashes) == len(now) and all(
            old == new or cleared for old, (new, cleared) in zip(stored_hashes, now, strict=True)
        )

    def until(self, length: int) -> History:
        """The history of the first `length` messages."""
        if length == len(self.pieces):
            return self
        later = sum(len(piece.results) for piece in self.pieces[length:])
        result_hashes = (
            self.result_hashes[: max(0, len(self.result_hashes) - later * (_SHORT + 1))]
            if later
            else self.result_hashes
        )
        pieces = self.pieces[:length]
        legacy = self.has_legacy and any(piece.legacy for piece in pieces)
        return History(self.digests[:length], self.skeletons[:length], pieces, result_hashes, legacy)

    def extend(self, pieces: Sequence[MessageIdentity]) -> History:
        if not pieces:
            return self
        length = len(self.pieces)
        digests = accumulate((piece.fingerprint for piece in pieces), _chain_digest, initial=self.digest(length))
        skeletons = accumulate((piece.skeleton for piece in pieces), _chain_skeleton, initial=self.skeleton(length))
        result_hashes = " ".join(
            filter(None, [self.result_hashes, *(result for piece in pieces for result in piece.results)])
        )
        return History(
            self.digests + tuple(digests)[1:], self.skeletons + tuple(skeletons)[1:], (*self.pieces, *pieces),
            result_hashes, self.has_legacy or any(piece.legacy for piece in pieces),
        )  # fmt: skip


_NOTHING = History((), (), ())


def build_history(pieces: Iterable[MessageIdentity]) -> History:
    return _NOTHING.extend(tuple(pieces))


def _chain_skeleton(digest: str, skeleton: str) -> str:
    return _chain_digest(digest or "skeleton", skeleton) if skeleton else digest


@functools.lru_cache(maxsize=2 * _MOST_KNOWN)
def _chain_digest(digest: str, fingerprint: str) -> str:
    """The digest of a chain with one more fingerprint, cached: histories come again."""
    return chain_digest(digest, fingerprint)


class IdentityCache:
    """Identities of messages by their text: of a history that comes again, only the new end is read."""

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        self._identities: OrderedDict[bytes, MessageIdentity] = OrderedDict()
        self._most = most

    def read(self, api: Api, element: Element) -> MessageIdentity:
        key = blake2b(element.text.encode(), digest_size=20, person=api.encode()[:16]).digest()
        identity = self._identities.get(key)
        if identity is not None:
            self._identities.move_to_end(key)
            return identity
        identity = self._identities[key] = identify(api, element.value, key)
        if len(self._identities) > self._most:
            self._identities.popitem(last=False)
        return identity


def identify(api: Api, value: Any, key: bytes = b"") -> MessageIdentity:
    """The identity of one wire message. A value that is no object is taken as its content."""
    if not isinstance(value, dict):
        value = {"role": "", "content": [value]}
    if api == "openai_responses":
        value = _item(value)
    fields = _identity_fields(value)
    results, fingerprint = _results(fields), message_fingerprint(fields)
    legacy = fingerprint if fields == value else message_fingerprint(value)
    return MessageIdentity(
        fingerprint,
        _skeleton(fields, fingerprint),
        tuple(_short(content) for content in results),
        tuple(is_cleared(content) for content in results),
        key,
        "" if legacy == fingerprint else legacy,
    )


_MESSAGE_FIELDS = frozenset({"role", "content", "name", "refusal", "tool_calls", "tool_call_id", "function_call"})
_ITEM_FIELDS = {
    "function_call": frozenset({"type", "call_id", "name", "arguments"}),
    "custom_tool_call": frozenset({"type", "call_id", "name", "input"}),
    "function_call_output": frozenset({"type", "call_id", "output"}),
    "custom_tool_call_output": frozenset({"type", "call_id", "output"}),
    "reasoning": frozenset({"type", "summary", "content", "encrypted_content"}),
}
_NO_FIELDS = frozenset({"id", "status", "metadata", "created_at", "timestamp"})
"""Of an item that is not known: these say nothing of what was said."""


def _identity_fields(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that identify a message, without ids, metadata, states and annotations."""
    fields = _MESSAGE_FIELDS if "role" in value else _ITEM_FIELDS.get(kind_of(value))
    if fields is None:
        message = {key: part for key, part in value.items() if key not in _NO_FIELDS}
    else:
        message = {key: part for key, part in value.items() if key in fields}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_identity_call(call) for call in calls]
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_identity_part(part) for part in content]
    return value if message == value else message


def _identity_call(call: Any) -> Any:
    names = ("id", "type", "function", "custom")
    return {name: call[name] for name in names if name in call} if isinstance(call, dict) else call


def _identity_part(part: Any) -> Any:
    if kind_of(part) != "text":
        return part
    return {key: value for key, value in part.items() if key in ("type", "text", "cache_control")}


def leading_system(elements: Sequence[Element]) -> int:
    """How many messages at the start are the system prompt: no part of the conversation's identity."""
    for count in range(len(elements)):
        value = elements[count].value
        if not isinstance(value, dict) or value.get("role") not in SYSTEM_ROLES:
            return count
    return len(elements)


def trailing_system(elements: Sequence[Element], first: int) -> int:
    """How many messages at the end are reminders of the system's: clients renew them, and nobody answers them."""
    count = 0
    while len(elements) - count > first + 1:
        value = elements[len(elements) - 1 - count].value
        if not isinstance(value, dict) or not (value.get("role") in SYSTEM_ROLES or kind_of(value) == TRIGGER):
            break
        count += 1
    return count


def is_cleared(content: Any) -> bool:
    """Whether a tool result is nothing but a placeholder."""
    text = content_text(content).strip()
    return not text or (len(text) <= _LONGEST_PLACEHOLDER and bool(_CLEARED.search(text)))


def _item(value: dict[str, Any]) -> dict[str, Any]:
    """An item of the Responses protocol with its words as in the other two; a message may leave out its type."""
    content = value.get("content")
    item = {key: part for key, part in value.items() if key != "status" and (key != "id" or "role" not in value)}
    if item.get("type") == "message":
        del item["type"]
    if isinstance(content, list) and "role" in item:
        item["content"] = [
            {**part, "type": "text"} if kind_of(part) in ("input_text", "output_text") else part for part in content
        ]
    return item


def _results(value: dict[str, Any]) -> list[Any]:
    """The contents of the tool results in a message."""
    if value.get("role") in ("tool", "function"):
        return [value.get("content")]
    if "output" in value and kind_of(value).endswith("_output"):
        return [value["output"]]
    content = value.get("content")
    return [part.get("content") for part in content if _is_result(part)] if isinstance(content, list) else []


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and kind_of(part) in RESULT_BLOCKS


def _skeleton(value: dict[str, Any], fingerprint: str) -> str:
    if kind_of(value) in REASONING_BLOCKS:
        return ""
    if value.get("role") == "assistant":
        calls = [[call.id, call.name, _arguments(call.arguments)] for call in calls_of(value)]
        text = text_of(value).strip() or str(value.get("refusal") or "").strip()
        return _hash(["assistant", text, calls]) if text or calls else ""
    rest = _without_results(value)
    return fingerprint if rest is value else message_fingerprint(rest)


def _without_results(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("role") in ("tool", "function"):
        return {**value, "content": None}
    if "output" in value and kind_of(value).endswith("_output"):
        return {**value, "output": None}
    content = value.get("content")
    if not isinstance(content, list) or not any(map(_is_result, content)):
        return value
    return {**value, "content": [{**part, "content": None} if _is_result(part) else part for part in content]}


def _arguments(text: str) -> Any:
    parsed = json_value(text)
    return text if parsed is None else parsed


def _short(content: Any) -> str:
    form = cast("dict[str, Any]", canonical_form({"role": "tool", "content": content}))
    return _hash(form.get("content"))[:_SHORT]


_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _hash(value: Any) -> str:
    text = _JSON.encode(value).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=20, person=b"skeleton").hexdigest()


# The same in other words

_FEWEST_WORDS = 5
_MARKER_WORDS = 8
"""A shortened message begins as the stored one, with at least so many words, and ends with a marker of so few."""


def align(api: Api, values: Sequence[Any], stored: Sequence[Any]) -> tuple[int, int]:
    """How many of a client's messages, and of the stored ones, say the same from their beginning on.

    Reasoning and reminders that only one side has are passed over.
    """
    mine = theirs = 0
    while True:
        while mine < len(values) and _is_passed_over(api, values[mine]):
            mine += 1
        while theirs < len(stored) and _is_passed_over(api, stored[theirs]):
            theirs += 1
        if mine == len(values) or theirs == len(stored) or not _agree(api, values[mine], stored[theirs]):
            return mine, theirs
        mine, theirs = mine + 1, theirs + 1


def _is_passed_over(api: Api, value: Any) -> bool:
    if isinstance(value, dict) and value.get("role") in SYSTEM_ROLES:
        return True
    return not identify(api, value).skeleton


def _agree(api: Api, mine: Any, stored: Any) -> bool:
    one, other = identify(api, mine), identify(api, stored)
    if one.fingerprint == other.fingerprint:
        return True
    if one.skeleton == other.skeleton and len(one.results) == len(other.results):
        pairs = zip(one.results, other.results, one.cleared, strict=True)
        return all(new == old or cleared for new, old, cleared in pairs)
    return _is_reworded(mine, stored)


def _is_reworded(mine: Any, stored: Any) -> bool:
    """Whether an assistant's message is the stored one in other words: around the same calls, its calls as text, or
    shortened. Another answer to the same question is none of these."""
    if not all(isinstance(value, dict) and value.get("role") == "assistant" for value in (mine, stored)):
        return False
    calls, stored_calls = calls_of(mine), calls_of(stored)
    if calls:
        return [(call.name, _arguments(call.arguments)) for call in calls] == [
            (call.name, _arguments(call.arguments)) for call in stored_calls
        ]
    words, stored_words = _WORD.findall(text_of(mine)), _WORD.findall(text_of(stored))
    if stored_calls:
        named = set(words)
        return all(named.issuperset(_WORD.findall(f"{call.name} {call.arguments}")) for call in stored_calls)
    alike = next((index for index, (a, b) in enumerate(zip(words, stored_words, strict=False)) if a != b), len(words))
    if len(words) < _FEWEST_WORDS or len(words) >= len(stored_words):
        return False
    remaining = iter(stored_words)  # each word behind the one before: thoughts or marks were taken out
    return (alike >= _FEWEST_WORDS and len(words) - alike <= _MARKER_WORDS) or all(word in remaining for word in words)


Reminder = tuple[str, Sequence[dict[str, Any]]]
"""What hangs on the newest user message: behind its text, and blocks of its own."""


def last_spoken(values: Sequence[Any], first: int, end: int) -> int:
    """The last place from `first` on, before `end`, where the user says something; -1 where there is none."""
    return next((at for at in range(end - 1, first - 1, -1) if _is_spoken(values[at])), -1)


def _is_spoken(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") == "user" and bool(text_of(value).strip())


def list_reminders(value: dict[str, Any]) -> Iterator[Reminder]:
    """What of a message may be a reminder: its end from a blank line or a new block on, the shortest first."""
    parts = _content_parts(value)
    text = str(parts[-1].get("text") or "")
    yield from ((text[gap.start() :], ()) for gap in reversed(list(_BLANK_LINE.finditer(text))))
    yield from (("", parts[index:]) for index in range(len(parts) - 1, 0, -1))


def with_reminder(value: dict[str, Any], reminder: Reminder) -> dict[str, Any]:
    """A user message as it was when it was the newest."""
    behind, blocks = reminder
    parts = _content_parts(value)
    parts[-1] = {**parts[-1], "text": f"{parts[-1].get('text') or ''}{behind}"} if behind else parts[-1]
    return {**value, "content": [*parts, *blocks]}


def _content_parts(value: dict[str, Any]) -> list[dict[str, Any]]:
    content = value["content"]
    parts = content if isinstance(content, list) else [content]
    return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in parts]
