"""A prepared call: the caller's own messages by index, and our text in place of some of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.tokens.budget import Budget
from everthread.store.records import Rewrite
from everthread.thread.caller.recall_rounds import RESULT_PARTS, CallRounds
from everthread.thread.caller.replacement import (
    match_unchanged,
    replacement_messages,
    split_messages,
)
from everthread.thread.caller.rewrites import RewriteState
from everthread.thread.caller.sent_history import CallFrame, SentHistory
from everthread.thread.caller.thread_memory import ThreadMemory
from everthread.thread.finding.pending_points import PendingPoint
from everthread.thread.finding.thread_match import ThreadMatch
from everthread.thread.policy import ContextOptions, PolicyDecision
from everthread.thread.recovery import RecoveryAttempts
from everthread.thread.wire_messages import encode_value


@dataclass(frozen=True, slots=True)
class Edit:
    """Our own text in place of the caller's messages from `start` to `end`."""

    start: int
    end: int
    text: str
    """Messages in the form of the protocol, separated by commas."""


@dataclass(slots=True)
class CallLimit:
    """The model's limits, as known for one call."""

    window: int = 0
    learnt_window: int | None = None
    """The window that a refusal taught; prompt and output share it."""
    cap: int | None = None
    """The largest output the provider stated for the model."""
    room: int | None = None
    """The output that fits beside the prompt in the learnt window."""


@dataclass(slots=True)
class CallStorage:
    """The progress of storing the messages of a call."""

    expected: PendingPoint | None = None
    """The point at the end of the history, until it is stored."""
    storing: asyncio.Future[ThreadMatch] | None = None
    """The task that stores the messages; None if storing waits for the answer."""
    delay: asyncio.TimerHandle | None = None
    """The timer that stores the messages if no answer comes in time."""
    is_stored: bool = False
    """The messages are stored, so the match is certain."""


@dataclass(slots=True)
class PreparedCall:
    """One call of a managed thread and the decisions about it."""

    sent: SentHistory
    frame: CallFrame
    match: ThreadMatch
    memory: ThreadMemory
    limit: CallLimit = field(default_factory=CallLimit)
    storage: CallStorage = field(default_factory=CallStorage)
    rounds: CallRounds = field(default_factory=CallRounds)
    attempts: RecoveryAttempts = field(default_factory=RecoveryAttempts)
    """Attempts after refusals."""
    used: Rewrite | None = None
    """The rewrite that replaces the beginning of the history; None if there is none."""
    estimate: int = 0
    """Estimated tokens of the prompt that was sent."""
    decision: PolicyDecision | None = None
    """Whether to compact before this call, and why; None if the policy was not asked."""
    is_undone: bool = False
    """The user undid the thread's last compaction, and no other is due yet."""
    _restored: dict[int, dict[int, Any]] = field(default_factory=dict)

    @property
    def thread(self) -> str:
        return self.match.thread

    @property
    def model(self) -> str:
        return self.frame.model

    @property
    def covered(self) -> int:
        """How many messages the rewrite in use covers."""
        return self.used.length if self.used else 0

    @property
    def note(self) -> str:
        """The note to put after the system prompt; empty if there is none."""
        return RewriteState.load(self.used.state).note if self.used else ""

    @property
    def has_past(self) -> bool:
        """Whether messages have left the context: compacted here or by the caller."""
        return self.used is not None or self.memory.continues_other

    @property
    def plan(self) -> str:
        """Whether compacting pays now, in one line; empty if that was not weighed."""
        cost_decision = (
            self.decision.cost_decision if self.decision is not None else None
        )
        return "" if cost_decision is None else str(cost_decision)

    @property
    def is_continued(self) -> bool:
        """Whether a further call, which would read this one's cache entry, is likely; not after a one-shot prompt."""
        return (
            bool(self.frame.request.tools)
            or bool(self.match.matched_count)
            or self.sent.has_answer
        )

    @property
    def output_cap(self) -> int | None:
        """An output cap below the caller's and above its thinking budget; None if the caller's own is sent."""
        caller_cap = self.frame.output_cap
        thinking_budget = self.frame.thinking_budget or 0
        limits = (self.attempts.cap, self.limit.cap, self.limit.room)
        usable_limits = [limit for limit in limits if limit and limit > thinking_budget]
        cap = min(usable_limits, default=None)
        is_caller_cap_fine = caller_cap is None or (
            cap is not None and caller_cap <= cap
        )
        return None if self.attempts.cap is None and is_caller_cap_fine else cap

    def budget(self, options: ContextOptions) -> Budget:
        """Leave room for the answer that the caller asks for, up to a quarter of the window."""
        caller_cap = self.frame.output_cap
        cap = caller_cap if caller_cap and caller_cap > 0 else options.max_tokens
        factor = self.memory.context.calibration.factor(self.model)
        frame_tokens = round(self.frame.tokens * factor)
        key = (self.model, self.limit.window, cap, frame_tokens)
        cached_budget = self.memory.budget
        if cached_budget is None or cached_budget[0] != key:
            adapted = replace(options.for_model(self.model), max_tokens=cap)
            cached_budget = (
                key,
                adapted.budget(self.limit.window, fixed_tokens=frame_tokens),
            )
            self.memory.budget = cached_budget
        return cached_budget[1]

    def compacted_values(self) -> list[Any]:
        """Return the messages to send: the rewrite, if there is one, then the caller's."""
        caller_values = [
            message.value for message in self.sent.messages[self.covered :]
        ]
        if self.used is None:
            return caller_values
        return [
            *(value for value, _ in replacement_messages(self.used)),
            *caller_values,
        ]

    def restored(self, length: int) -> dict[int, Any]:
        """Return the messages that need another form after a rewrite of this length."""
        if length not in self._restored:
            self._restored[length] = dict(self.sent.restore(length))
        return self._restored[length]

    def edits(self) -> list[Edit]:
        """Return our changes of the caller's messages; those of one message do not overlap."""
        edits = []
        if self.used is not None:
            edits.append(Edit(0, self.used.length, self.used.replacement.decode()))
        for start, end, hidden in self.rounds.after(self.covered):
            edits.append(Edit(start, end, ",".join(hidden.texts)))
            if hidden.blocks:
                text = self._with_blocks(self.sent.values[end], hidden.blocks)
                edits.append(Edit(end, end + 1, text))
        edited_indexes = {edit.start for edit in edits}
        restored = self.restored(self.covered) if self.used is not None else {}
        for index, value in restored.items():
            if index not in edited_indexes:
                edits.append(Edit(index, index + 1, encode_value(value)))
        return edits

    def items(self) -> list[int | dict[str, Any]]:
        """Return the messages to send: the index of each of the caller's own, and ours in the form of the protocol."""
        items: list[int | dict[str, Any]] = []
        index = 0
        for edit in sorted(self.edits(), key=lambda edit: edit.start):
            items += range(index, edit.start)
            items += self._edit_items(edit)
            index = edit.end
        items += range(index, len(self.sent))
        return items

    def _edit_items(self, edit: Edit) -> list[int | dict[str, Any]]:
        """Return the messages of an edit; those that it leaves unchanged by their index."""
        messages = split_messages(edit.text)
        covered_texts = [
            message.text for message in self.sent.messages[edit.start : edit.end]
        ]
        indexes = match_unchanged([text for _, text in messages], covered_texts)
        return [
            value if index is None else edit.start + index
            for (value, _), index in zip(messages, indexes, strict=True)
        ]

    def _with_blocks(self, value: Any, blocks: str) -> str:
        """Return a message as text, with hidden results before its own."""
        name = RESULT_PARTS[self.frame.api]
        content = ",".join([blocks, *map(encode_value, value[name])])
        text_without_content = encode_value({**value, name: None})
        return text_without_content.replace(
            f'"{name}":null', f'"{name}":[{content}]', 1
        )
