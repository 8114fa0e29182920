"""Keep the rounds of our own recall tool, which the caller does not see, with their thread.

In later prompts, the calls and their results replace the answer that the caller knows, byte for byte, until a
compaction covers them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api
from everthread.store.store import Store
from everthread.thread.caller.caller_request import CallerHistory
from everthread.thread.matching.history import History
from everthread.thread.matching.thread_match import ThreadMatch
from everthread.thread.wire_messages import encode_value
from everthread.wire.codecs import CODECS
from everthread.wire.gemini.field_names import get_object_field

MAX_RECALL_ROUNDS = 3
"""Maximum rounds of lookups for one answer. After these the tool is no longer offered."""
RECALL_TIMEOUT_SECONDS = 90.0
"""Seconds after the first round from which on no further round begins."""
ROUNDS_STATE = "recall"
_MAX_KEPT_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class RecallRounds:
    """The messages that replace one answer of the history: recall calls, results and the answer."""

    start: str
    start_loose_digest: str
    """Digest (`start`) and loose digest of the history before the answer."""
    end: str
    end_loose_digest: str
    """Digest (`end`) and loose digest of the history up to the end of the answer."""
    texts: list[str]
    """The messages to send upstream in place of the answer."""
    blocks: str = ""
    """Results to put before the caller's own in the message after the answer."""

    def find_span(self, history: History) -> tuple[int, int] | None:
        """Return the start and end of the answer in a history, or None if the history does not hold it."""
        start = _find_position(history.digests, self.start) or _find_position(
            history.loose_digests, self.start_loose_digest
        )
        end = _find_position(history.digests, self.end)
        if end is None and self.end_loose_digest in history.loose_digests:
            end = len(history) - history.loose_digests[::-1].index(self.end_loose_digest)
        return (start, end) if start is not None and end is not None and start < end else None


def _find_position(chain: Sequence[str], digest: str) -> int | None:
    return chain.index(digest) + 1 if digest and digest in chain else None


@dataclass(slots=True)
class CallRounds:
    """The recall rounds of one call: those of earlier answers, and those of its own answer."""

    earlier_rounds: list[tuple[int, int, RecallRounds]] = field(default_factory=list)
    """Rounds to put back, each with the start and end of the answer it replaces."""
    texts: list[str] = field(default_factory=list)
    """The rounds of this answer so far."""
    wire_messages: list[Any] = field(default_factory=list)
    """The same messages, decoded."""
    last_round_texts: list[str] = field(default_factory=list)
    """The messages of the last round. The caller gets its answer, because not all of its calls are of our tool."""
    blocks: str = ""
    round_count: int = 0
    call_count: int = 0
    is_refused: bool = False
    """Whether the provider refused the results of the last round."""
    started_at: float = 0.0
    """When the first round ended."""
    stored_rounds: list[dict[str, Any]] = field(default_factory=list)
    """The thread's recall rounds, with those of this answer, in stored form, or an empty list if it has none."""

    @property
    def is_empty(self) -> bool:
        """Whether no round is in the prompt."""
        return not self.texts and not self.earlier_rounds

    def add_round(self, wire_messages: Sequence[Any]) -> None:
        """Add a round of this answer, whose calls are all of our tool."""
        self.texts += map(encode_value, wire_messages)
        self.wire_messages += wire_messages
        self.round_count += 1

    def add_last_round(self, wire_messages: Sequence[Any], encoded_blocks: str) -> None:
        """Add the round whose answer the caller gets. `encoded_blocks`: results to put before the caller's own."""
        self.last_round_texts = [encode_value(value) for value in wire_messages]
        self.blocks = encoded_blocks

    def refuse_round(self, wire_messages: Sequence[Any]) -> None:
        """Replace the newest round, which the provider refused, with these messages, and allow no further round."""
        start = len(self.texts) - len(wire_messages)
        self.texts[start:] = map(encode_value, wire_messages)
        self.wire_messages[start:] = wire_messages
        self.round_count = MAX_RECALL_ROUNDS
        self.is_refused = True

    def limit_time(self, now: float) -> None:
        """Allow no further round if the first one ended too long ago."""
        self.started_at = self.started_at or now
        if now - self.started_at > RECALL_TIMEOUT_SECONDS:
            self.round_count = MAX_RECALL_ROUNDS

    def drop(self) -> None:
        """Remove all rounds, also those of earlier answers, so that the prompt is the caller's own."""
        self.earlier_rounds = []
        self.texts = []
        self.wire_messages = []
        self.call_count = 0

    def load(
        self, stored_rounds: Sequence[Mapping[str, Any]], caller_history: CallerHistory, api: Api
    ) -> None:
        """Load the thread's stored rounds whose answers are in the history."""
        self.earlier_rounds = []
        for fields in stored_rounds:
            rounds = RecallRounds(**fields)
            span = rounds.find_span(caller_history.history)
            if span is None:
                continue
            if not rounds.blocks or _can_take_blocks(caller_history, span[1], api):
                self.earlier_rounds.append((*span, rounds))

    def list_rounds_after(self, length: int) -> list[tuple[int, int, RecallRounds]]:
        """Return the rounds to put back after a rewrite of this length, each with the span that it replaces."""
        return [entry for entry in self.earlier_rounds if entry[0] >= length]

    def list_added_messages(self, length: int) -> tuple[list[str], list[Any]]:
        """Return the texts and values that are added after a rewrite of this length."""
        texts: list[str] = []
        for _, _, rounds in self.list_rounds_after(length):
            texts += rounds.texts
        wire_messages = [json.loads(text) for text in texts]
        return texts + self.texts, wire_messages + self.wire_messages

    def collect_stored_rounds(
        self, caller_history: CallerHistory, answered_history: History, covered_count: int
    ) -> list[dict[str, Any]]:
        """Return the rounds that later prompts need, in stored form, or an empty list if this answer had none.

        `answered_history`: the history that ends with the answer. `covered_count`: the length of the rewrite in use.
        """
        if not self.call_count or not self.last_round_texts:
            return []
        history = caller_history.history
        rounds = RecallRounds(
            history.digest(len(history)),
            history.loose_digest(len(history)),
            end=answered_history.digest(len(answered_history)),
            end_loose_digest=answered_history.loose_digest(len(answered_history)),
            texts=[*self.texts, *self.last_round_texts],
            blocks=self.blocks,
        )
        earlier_rounds = [
            asdict(earlier) for _, _, earlier in self.list_rounds_after(covered_count)
        ]
        return [*earlier_rounds, asdict(rounds)][-_MAX_KEPT_ROUNDS:]


def _can_take_blocks(caller_history: CallerHistory, index: int, api: Api) -> bool:
    """Return whether the message at `index` holds results of the caller's calls, so that others can go before them."""
    results_field = CODECS[api].request_fields.results_field
    if results_field is None or index >= len(caller_history.wire_messages):
        return False
    wire_message = caller_history.wire_messages[index]
    if not isinstance(wire_message, dict) or wire_message.get("role") == "assistant":
        return False
    parts = wire_message.get(results_field)
    return isinstance(parts, list) and any(_is_result(part) for part in parts)


def _is_result(part: Any) -> bool:
    """Return whether a part is a tool result."""
    is_response = (
        isinstance(part, Mapping) and get_object_field(part, "functionResponse") is not None
    )
    return is_response or kind_of(part) == "tool_result"


class RecallRoundsStore:
    """The recall rounds of threads, in the store or about to be stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._expected: dict[str, list[dict[str, Any]]] = {}
        """Rounds that are being stored, by thread: the next call may come before that is done."""

    async def has_any(self, match: ThreadMatch) -> bool:
        """Return whether a stored thread has recall rounds."""
        if not match.matched_count:
            return False
        return bool(await self._store.state.get_state(match.source, ROUNDS_STATE))

    def find_expected(self, thread_id: str) -> list[dict[str, Any]] | None:
        """Return a thread's rounds that are being stored, or None if there are none."""
        return self._expected.get(thread_id)

    def expect(self, thread_id: str, stored_rounds: list[dict[str, Any]]) -> None:
        """Announce a thread's rounds before they are stored, so that the next call uses them."""
        self._expected[thread_id] = stored_rounds

    async def store_rounds(self, thread_id: str, stored_rounds: list[dict[str, Any]]) -> None:
        """Store the rounds of a thread."""
        await self._store.state.put_state(thread_id, ROUNDS_STATE, stored_rounds)

    def stop_expecting(self, stored_rounds: list[dict[str, Any]]) -> None:
        """Stop expecting rounds, whether they were stored or not. Later calls read the store only."""
        thread_ids = [
            thread_id
            for thread_id, expected_rounds in self._expected.items()
            if expected_rounds is stored_rounds
        ]
        for thread_id in thread_ids:
            del self._expected[thread_id]
