"""A client's request, as read. Its values never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from everthread.core.cache_breakpoints import OPTIONS
from everthread.core.messages import kind_of
from everthread.core.types import Request
from everthread.gateway.contracts import CREDENTIAL_HEADERS, Incoming, Replacement
from everthread.gateway.identify import ClientSession, read_client, thread_kind
from everthread.gateway.json_slices import Element, SlicedBody, Values
from everthread.gateway.management.compaction_items import TRIGGER
from everthread.gateway.management.replacement import is_compaction
from everthread.gateway.management.request_reader import (
    BREAKPOINT_MARK,
    COMPACTION_MARK,
    MARK,
    ParsedRequest,
)
from everthread.gateway.management.thread_match import WireMessages
from everthread.providers.catalog import BETA_HEADER, FIELDS, window_headers
from everthread.thread.history import History
from everthread.thread.model_limits import LimitKey
from everthread.wire.gemini.fields import object_of, value_of

SUMMARIZE = "compaction"
"""The field by which a client asks Anthropic for a summary of the conversation."""
STATEFUL_FIELDS = (
    "previous_response_id",
    "conversation",
    "cachedContent",
    "cached_content",
)
"""Fields by which the provider keeps the history itself: such a request is never rewritten."""


@dataclass(slots=True)
class ClientRequest:
    """A client's request, and the facts read from it."""

    incoming: Incoming
    read: ParsedRequest
    elements: Sequence[Element] = field(init=False)
    """The client's messages, without the system prompt and reminders at the end."""
    client: ClientSession = field(init=False)
    """The client's program and session, as it names them."""
    limit_key: LimitKey = field(init=False)
    """The key under which the model's learnt limits are stored."""
    requested_cap: int | None = field(init=False)
    """The output cap the client set."""
    unmanaged_reason: str = field(init=False)
    """Why the request is left alone: the provider keeps or changes the history itself; empty if it does not."""
    size: int = field(init=False)
    """Tokens of the client's messages, as estimated."""

    def __post_init__(self) -> None:
        incoming = self.incoming
        read = self.read
        elements = read.sliced.elements
        if read.first or read.trailing:
            elements = elements[read.first : len(elements) - read.trailing]
        self.elements = elements
        headers = (
            window_headers(incoming.headers) if BETA_HEADER in incoming.headers else ""
        )
        self.limit_key = LimitKey(
            incoming.tenant,
            incoming.upstream,
            self.model,
            headers=headers,
            credential=credential_digest(incoming.headers),
        )
        self.client = read_client(incoming.headers, self.sliced.fields)
        self.requested_cap = _requested_cap(self.sliced.fields)
        self.unmanaged_reason = find_unmanaged_reason(self.sliced)
        self.size = sum(read.sizes)

    @property
    def sliced(self) -> SlicedBody:
        return self.read.sliced

    @property
    def first(self) -> int:
        """How many messages at the start are the system prompt."""
        return self.read.first

    @property
    def history(self) -> History:
        return self.read.history

    @property
    def frame(self) -> Request:
        """Model, system prompt and tools."""
        return self.read.frame

    @property
    def model(self) -> str:
        return self.read.frame.model

    @property
    def sizes(self) -> list[int]:
        """Tokens of each message."""
        return self.read.sizes

    @property
    def fixed(self) -> int:
        """Tokens of system prompt and tools."""
        return self.read.fixed

    @property
    def has_marks(self) -> bool:
        """Whether the client may have set cache marks."""
        return MARK in self.read.holds

    @property
    def has_breakpoints(self) -> bool:
        """Whether the client may have set cache breakpoints, or chose how they are set."""
        return BREAKPOINT_MARK in self.read.holds or OPTIONS in self.sliced.fields

    @property
    def is_rewritable(self) -> bool:
        return self.incoming.mode == "managed" and not self.unmanaged_reason

    @property
    def wire_messages(self) -> WireMessages:
        """The client's messages, to be compared with stored ones."""
        kind = thread_kind(self.client, has_tools=bool(self.frame.tools))
        return WireMessages(
            self.incoming.api,
            self.model,
            Values(self.elements),
            is_conversation=kind == "main",
            frame=self.frame,
            replacement=self.replacement,
        )

    @property
    def asks_compaction(self) -> bool:
        """Whether the client asks the provider for a compaction."""
        return self.unmanaged_reason in (SUMMARIZE, TRIGGER)

    @property
    def replacement(self) -> Replacement | None:
        """The compaction that replaces earlier messages: made by the provider or by a gateway."""
        ours = self.incoming.replacement
        if ours is not None:
            return replace(ours, end=min(ours.end - self.first, len(self.elements)))
        if COMPACTION_MARK not in self.read.holds:
            return None
        for index in range(len(self.elements) - 1, -1, -1):
            if is_compaction(self.elements[index].value):
                piece = self.history.pieces[index]
                return Replacement(piece.fingerprint, index + 1)
        return None

    @property
    def thinking_budget(self) -> int | None:
        """The tokens that the client set aside for thinking: the output cap must exceed them."""
        fields = self.sliced.fields
        stated = fields.get("thinking")
        tokens = stated.get("budget_tokens") if isinstance(stated, dict) else None
        if self.incoming.api == "gemini":
            thinking = object_of(
                object_of(fields, "generationConfig") or {}, "thinkingConfig"
            )
            tokens = value_of(thinking or {}, "thinkingBudget")
        return (
            tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
        )

    @property
    def has_answer(self) -> bool:
        """Whether an assistant's turn is among the messages."""
        return any(
            isinstance(value, dict) and value.get("role") == "assistant"
            for value in Values(self.elements)
        )

    def pairs(self) -> list[tuple[Any, str]]:
        """The client's messages with their text."""
        return [(element.value, element.text) for element in self.elements]


def credential_digest(headers: Mapping[str, str]) -> str:
    """Return a digest of the credential that a client shows; empty if it shows none."""
    shown = next(
        (headers[name] for name in CREDENTIAL_HEADERS if headers.get(name)), ""
    )
    return (
        blake2b(shown.encode("utf-8", "replace"), digest_size=16).hexdigest()
        if shown
        else ""
    )


def find_unmanaged_reason(sliced: SlicedBody) -> str:
    """Return why a request is left alone; empty if it is not."""
    fields = sliced.fields
    stated = next(
        (name for name in STATEFUL_FIELDS if fields.get(name) is not None), ""
    )
    if stated:
        return stated
    if _drops_history(fields.get("context_management")):
        return "context_management"
    if isinstance(fields.get(SUMMARIZE), dict):
        return SUMMARIZE
    return (
        TRIGGER
        if any(_kind(element) == TRIGGER for element in sliced.elements[-1:])
        else ""
    )


def _requested_cap(fields: Mapping[str, Any]) -> int | None:
    settings = object_of(fields, "generationConfig") or {}
    stated = [
        *(fields[name] for name in FIELDS if name in fields),
        value_of(settings, "maxOutputTokens"),
    ]
    return next(
        (
            value
            for value in stated
            if isinstance(value, int) and not isinstance(value, bool)
        ),
        None,
    )


def _drops_history(edits: Any) -> bool:
    """Return whether the client asks the provider to compact or clear; keeping all thinking changes nothing."""
    if not edits:
        return False
    listed = edits.get("edits") if isinstance(edits, dict) else edits
    if not isinstance(listed, list):
        return True
    return not all(
        isinstance(edit, dict)
        and str(edit.get("type", "")).startswith("clear_thinking")
        and edit.get("keep") == "all"
        for edit in listed
    )


def _kind(element: Element) -> str:
    return kind_of(element.value) if isinstance(element.value, dict) else ""
