"""Whose history is this? Two chains of digests over the client's messages, and what of them may change unnoticed.

The canonical chain is identity: it changes with every word somebody said. The skeleton leaves out what clients drop
to save room, thinking and the contents of tool results. A history whose skeleton is known but whose words are not is
the same one only if each result that changed is a placeholder now; another result is another conversation.
"""

from __future__ import annotations

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, cast

from everthread.core.exchange import Api
from everthread.core.fingerprints import canonical_form, chained, message_fingerprint
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
from everthread.gateway.slicing import Element

SESSION_HEADER = "x-everthread-session"
SCOPE_HEADERS = (
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
    "session_id",
    "session-id",
    "x-conversation-id",
    "conversation_id",
)
"""What clients name their own sessions with. One session may hold several conversations: subagents, titles."""
_CLEARED = re.compile(
    r"\b(?:clear|remov|omit|truncat|prun|elid|compact|trimm|delet|redact|drop|snip|no longer|not shown|old tool)",
    re.IGNORECASE,
)
_LONGEST_PLACEHOLDER = 300
_MOST_KNOWN = 50_000
_SHORT = 12
"""Characters of a result's hash."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is known of one message."""

    fingerprint: str
    skeleton: str
    """Empty where nothing of it is in the skeleton."""
    results: tuple[str, ...] = ()
    """A short hash for each tool result in it."""
    cleared: tuple[bool, ...] = ()
    """Whether that result is a placeholder."""
    key: bytes = b""
    """A hash of its text as it was written."""


@dataclass(frozen=True, slots=True)
class History:
    """The chains of a client's messages: entry `i` is about the first `i + 1` of them."""

    digests: tuple[str, ...]
    skeletons: tuple[str, ...]
    pieces: tuple[Piece, ...]
    told: str = ""
    """The results of all messages."""

    def __len__(self) -> int:
        return len(self.pieces)

    def digest(self, length: int) -> str:
        return self.digests[length - 1] if length else ""

    def skeleton(self, length: int) -> str:
        return self.skeletons[length - 1] if length else ""

    def skeletons_after(self, length: int) -> list[str]:
        """The skeletons of longer beginnings, those that say something."""
        return [skeleton for skeleton in self.skeletons[length:] if skeleton]

    def results(self, start: int, end: int) -> str:
        if start == 0 and end == len(self.pieces):
            return self.told
        return " ".join(result for piece in self.pieces[start:end] for result in piece.results)

    def drifted_from(self, results: str, length: int) -> bool:
        """Whether the first messages, whose skeleton is known with these results, are the same but for cleared ones."""
        known = results.split()
        now = [pair for piece in self.pieces[:length] for pair in zip(piece.results, piece.cleared, strict=True)]
        return len(known) == len(now) and all(
            old == new or cleared for old, (new, cleared) in zip(known, now, strict=True)
        )

    def until(self, length: int) -> History:
        """Of the first messages alone."""
        if length == len(self.pieces):
            return self
        later = sum(len(piece.results) for piece in self.pieces[length:])
        told = self.told[: max(0, len(self.told) - later * (_SHORT + 1))] if later else self.told
        return History(self.digests[:length], self.skeletons[:length], self.pieces[:length], told)

    def extended(self, pieces: Sequence[Piece]) -> History:
        if not pieces:
            return self
        length = len(self.pieces)
        digests = accumulate((piece.fingerprint for piece in pieces), _chained, initial=self.digest(length))
        skeletons = accumulate((piece.skeleton for piece in pieces), _linked, initial=self.skeleton(length))
        told = " ".join(filter(None, [self.told, *(result for piece in pieces for result in piece.results)]))
        return History(
            self.digests + tuple(digests)[1:], self.skeletons + tuple(skeletons)[1:], (*self.pieces, *pieces), told
        )


_NOTHING = History((), (), ())


def history(pieces: Iterable[Piece]) -> History:
    return _NOTHING.extended(tuple(pieces))


def _linked(digest: str, skeleton: str) -> str:
    return _chained(digest or "skeleton", skeleton) if skeleton else digest


@functools.lru_cache(maxsize=2 * _MOST_KNOWN)
def _chained(digest: str, fingerprint: str) -> str:
    """The next digest: that of a history which comes again is known."""
    return chained(digest, fingerprint)


class Pieces:
    """What was read of messages, kept by their text: of a history that comes again only the new end is read."""

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        self._known: OrderedDict[bytes, Piece] = OrderedDict()
        self._most = most

    def read(self, api: Api, element: Element) -> Piece:
        key = blake2b(element.text.encode(), digest_size=20, person=api.encode()[:16]).digest()
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        made = self._known[key] = piece_of(api, element.value, key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return made


def piece_of(api: Api, value: Any, key: bytes = b"") -> Piece:
    """One message of the wire. Anything that is no object counts as it is."""
    if not isinstance(value, dict):
        value = {"role": "", "content": [value]}
    if api == "openai_responses":
        value = _item(value)
    found = _results(value)
    return Piece(
        message_fingerprint(value),
        _skeleton(value),
        tuple(_short(content) for content in found),
        tuple(is_cleared(content) for content in found),
        key,
    )


def leading_system(elements: Sequence[Element]) -> int:
    """How many messages at the start are the system prompt: no part of the conversation's identity."""
    for count in range(len(elements)):
        value = elements[count].value
        if not isinstance(value, dict) or value.get("role") not in SYSTEM_ROLES:
            return count
    return len(elements)


def scope_of(headers: Mapping[str, str]) -> str:
    """The client's own session, where it names one; an explicit session of ours before any other."""
    if headers.get(SESSION_HEADER):
        return f"{SESSION_HEADER}:{headers[SESSION_HEADER]}"
    return next((f"{name}:{headers[name]}" for name in SCOPE_HEADERS if headers.get(name)), "")


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


def _skeleton(value: dict[str, Any]) -> str:
    if kind_of(value) in REASONING_BLOCKS:
        return ""
    if value.get("role") == "assistant":
        calls = [[call.id, call.name, _arguments(call.arguments)] for call in calls_of(value)]
        text = text_of(value).strip() or str(value.get("refusal") or "").strip()
        return _hash(["assistant", text, calls]) if text or calls else ""
    return message_fingerprint(_without_results(value))


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


def _hash(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20, person=b"skeleton").hexdigest()
