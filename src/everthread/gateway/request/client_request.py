"""A client's request and the facts read from it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from everthread.core.messages import kind_of
from everthread.gateway.access.quotas import make_spending_check
from everthread.gateway.compaction_items import COMPACTION_TRIGGER
from everthread.gateway.contracts import CREDENTIAL_HEADERS, IncomingRequest
from everthread.gateway.identify import choose_thread_kind, read_client
from everthread.gateway.request.json_slices import BodySlices, DecodedMessages, MessageSlice
from everthread.gateway.request.request_reader import (
    LocatedBody,
    ParsedRequest,
)
from everthread.gateway.request.unchanged_files import restore_unchanged_files
from everthread.providers.catalog import (
    BETA_HEADER,
    read_window_betas,
)
from everthread.store.records import LimitKey
from everthread.thread.caller.caller_request import (
    CallerHistory,
    CallSettings,
    LeadingCompaction,
)
from everthread.thread.caller.provider_compactions import COMPACTION_MARK, is_compaction
from everthread.thread.matching.thread_match import ClientScope
from everthread.wire.codecs import CODECS

ANTHROPIC_COMPACTION_FIELD = "compaction"
"""The field with which a client asks Anthropic for a summary of the conversation."""
STATEFUL_FIELDS = (
    "previous_response_id",
    "conversation",
    "cachedContent",
    "cached_content",
)
"""Fields that show that the provider keeps the history itself. Such a request is never rewritten."""


@dataclass(slots=True)
class ClientRequest:
    """A client's request, and the facts read from it."""

    incoming: IncomingRequest
    located_body: LocatedBody
    parsed_request: ParsedRequest
    client_scope: ClientScope
    recall_tool: Mapping[str, Any] | None
    """Our own tool, if this client accepts it."""
    caller_history: CallerHistory = field(init=False)
    settings: CallSettings = field(init=False)
    unmanaged_reason: str = field(init=False)
    """The field that shows that the provider keeps or changes the history, so that the request is forwarded unchanged.

    An empty string if the request may be rewritten."""

    def __post_init__(self) -> None:
        self.unmanaged_reason = find_unmanaged_reason(self.slices)
        self.settings = self._make_settings()
        self.caller_history = self._read_history()

    @property
    def history_messages(self) -> Sequence[MessageSlice]:
        """The client's messages, without the system prompt and reminders at the end."""
        return self.located_body.history_messages

    @property
    def slices(self) -> BodySlices:
        return self.located_body.slices

    @property
    def system_count(self) -> int:
        """Number of messages at the start that are the system prompt."""
        return self.located_body.system_count

    @property
    def model(self) -> str:
        return self.parsed_request.settings.model

    @property
    def asks_for_compaction(self) -> bool:
        """Whether the client asks the provider for a compaction."""
        return self.unmanaged_reason in (ANTHROPIC_COMPACTION_FIELD, COMPACTION_TRIGGER)

    def _read_history(self) -> CallerHistory:
        client = read_client(self.incoming.head.headers, self.slices.fields)
        has_tools = bool(self.parsed_request.settings.tools)
        body = self.slices.body
        messages = self.history_messages

        @functools.cache
        def restore(covered_count: int) -> Mapping[int, Any]:
            return restore_unchanged_files(body, messages, covered_count)

        return CallerHistory(
            self.client_scope,
            self.parsed_request.history,
            messages=messages,
            wire_messages=DecodedMessages(messages),
            sizes=self.parsed_request.sizes,
            client=client,
            kind=choose_thread_kind(client, has_tools=has_tools),
            leading_compaction=self._find_leading_compaction(),
            is_single_text=self.slices.is_single_text,
            restore_messages=restore,
        )

    def _make_settings(self) -> CallSettings:
        incoming = self.incoming
        fields = self.slices.fields
        request_fields = CODECS[incoming.api].request_fields
        head = incoming.head
        headers = read_window_betas(head.headers) if BETA_HEADER in head.headers else ""
        limit_key = LimitKey(
            incoming.upstream_url,
            self.model,
            tenant=head.caller.tenant,
            headers=headers,
            credential=make_credential_digest(head.headers),
        )
        is_rewritable = incoming.mode == "managed" and not self.unmanaged_reason
        account = head.caller.account
        return CallSettings(
            incoming.api,
            self.parsed_request.settings,
            tokens=self.parsed_request.fixed_tokens,
            upstream=incoming.upstream_url,
            limit_key=limit_key,
            output_cap=request_fields.read_output_cap(fields),
            thinking_budget=request_fields.read_thinking_budget(fields),
            recall_tool=self.recall_tool if is_rewritable else None,
            is_rewritable=is_rewritable,
            charge=None if account is None else account.spend,
            check_permission=make_spending_check(head.caller.authorize),
        )

    def _find_leading_compaction(self) -> LeadingCompaction | None:
        """Return the compaction that replaces earlier messages: made by the provider or by a gateway."""
        own_compaction = self.incoming.leading_compaction
        if own_compaction is not None:
            return replace(
                own_compaction,
                message_count=min(
                    own_compaction.message_count - self.system_count, len(self.history_messages)
                ),
            )
        if COMPACTION_MARK not in self.located_body.watched_words:
            return None
        messages = self.history_messages
        for index in range(len(messages) - 1, -1, -1):
            if is_compaction(messages[index].value):
                identity = self.parsed_request.history.identities[index]
                return LeadingCompaction(identity.fingerprint, index + 1)
        return None


def make_credential_digest(headers: Mapping[str, str]) -> str:
    """Return a digest of a client's credential, or an empty string if it sends none."""
    credential = next((headers[name] for name in CREDENTIAL_HEADERS if headers.get(name)), "")
    if not credential:
        return ""
    return blake2b(credential.encode("utf-8", "replace"), digest_size=16).hexdigest()


def find_unmanaged_reason(slices: BodySlices) -> str:
    """Return the field that forbids rewriting a request, or an empty string if it may be rewritten."""
    fields = slices.fields
    stateful_field = next((name for name in STATEFUL_FIELDS if fields.get(name) is not None), "")
    if stateful_field:
        return stateful_field
    if _drops_history(fields.get("context_management")):
        return "context_management"
    if isinstance(fields.get(ANTHROPIC_COMPACTION_FIELD), dict):
        return ANTHROPIC_COMPACTION_FIELD
    last_message = slices.messages[-1].value if len(slices.messages) else None
    if isinstance(last_message, dict) and kind_of(last_message) == COMPACTION_TRIGGER:
        return COMPACTION_TRIGGER
    return ""


def _drops_history(setting: Any) -> bool:
    """Return whether the client asks the provider to compact or clear the history; keeping all thinking does not."""
    if not setting:
        return False
    requested_edits = setting.get("edits") if isinstance(setting, dict) else setting
    if not isinstance(requested_edits, list):
        return True
    for edit in requested_edits:
        if not isinstance(edit, dict) or edit.get("keep") != "all":
            return True
        if not str(edit.get("type", "")).startswith("clear_thinking"):
            return True
    return False
