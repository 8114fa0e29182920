"""A prepared call: the caller's own messages by index, and our text in place of some of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.tokens.budget import Budget
from everthread.store.rewrite_records import Rewrite
from everthread.thread.caller.caller_request import CallerHistory, CallSettings
from everthread.thread.caller.recall_rounds import CallRounds
from everthread.thread.caller.recorder import CallRecorder
from everthread.thread.caller.start_replacement import (
    match_unchanged,
    parse_replacement,
    split_messages,
)
from everthread.thread.caller.thread_memory import ThreadMemory
from everthread.thread.matching.thread_match import ThreadMatch
from everthread.thread.model_limits import CallLimits
from everthread.thread.policy.context_options import ContextOptions
from everthread.thread.recovery import RecoveryAttempts
from everthread.thread.wire_messages import encode_value
from everthread.wire.codecs import CODECS


@dataclass(frozen=True, slots=True)
class MessageEdit:
    """Our own text in place of the caller's messages from `start` to `end`."""

    start: int
    end: int
    text: str
    """Messages in the form of the protocol, separated by commas."""


@dataclass(slots=True)
class PreparedCall:
    """One call of a managed thread, and the prompt to send for it.

    `CallerPrompt` chooses the rewrite and learns limits. `CallerThreads` sets the estimate and the largest output when
    the prompt is about to be sent. The history, the settings, the memory and the recorder stay the same.
    """

    caller_history: CallerHistory
    settings: CallSettings
    memory: ThreadMemory
    recorder: CallRecorder
    """Stores the call in its thread."""
    limits: CallLimits
    estimate: int
    """Estimated tokens of the prompt that was sent."""
    rounds: CallRounds = field(default_factory=CallRounds)
    attempts: RecoveryAttempts = field(default_factory=RecoveryAttempts)
    """The attempts to recover from refusals."""
    rewrite: Rewrite | None = None
    """The rewrite that replaces the beginning of the history, or None if the history has none."""
    max_output: int | None = None
    """The largest output that fits beside the prompt in a learnt window."""
    is_compaction_undone: bool = False
    """Whether the user undid the thread's last compaction and no other is due yet."""

    @property
    def match(self) -> ThreadMatch:
        return self.recorder.match

    @property
    def thread_id(self) -> str:
        return self.recorder.match.thread_id

    @property
    def model(self) -> str:
        return self.settings.model

    @property
    def covered_count(self) -> int:
        """The number of messages that the rewrite in use covers."""
        return self.rewrite.replaced_count if self.rewrite else 0

    @property
    def note(self) -> str:
        """The note to put after the system prompt, or an empty string if the rewrite has none."""
        return self.rewrite.state.note if self.rewrite else ""

    @property
    def has_left_messages(self) -> bool:
        """Whether messages have left the context, compacted here or by the caller."""
        return self.rewrite is not None or self.memory.continues_other

    @property
    def expects_more_calls(self) -> bool:
        """Whether a further call is likely, so that caching this prompt pays. It does not pay for a one-shot prompt."""
        return (
            bool(self.settings.request.tools)
            or bool(self.match.matched_count)
            or self.caller_history.has_answer
        )

    @property
    def output_cap(self) -> int | None:
        """The output cap to send: below the caller's, above its thinking budget. None: send the caller's own."""
        caller_cap = self.settings.output_cap
        thinking_budget = self.settings.thinking_budget or 0
        known_caps = (self.attempts.cap, self.limits.output_cap, self.max_output)
        usable_caps = [cap for cap in known_caps if cap and cap > thinking_budget]
        cap = min(usable_caps, default=None)
        is_caller_cap_fine = caller_cap is None or (cap is not None and caller_cap <= cap)
        return None if self.attempts.cap is None and is_caller_cap_fine else cap

    def compute_budget(self, options: ContextOptions) -> Budget:
        """Return the budget of the call, with room for the answer it asks for, up to a quarter of the window."""
        caller_cap = self.settings.output_cap
        cap = caller_cap if caller_cap and caller_cap > 0 else options.max_tokens
        factor = self.memory.learnt_usage.calibration.factor(self.model)
        fixed_tokens = round(self.settings.tokens * factor)
        key = (self.model, self.limits.window, cap, fixed_tokens)
        cached_budget = self.memory.last_budget
        if cached_budget is None or cached_budget[0] != key:
            adapted = replace(options.for_model(self.model), max_tokens=cap)
            cached_budget = (
                key,
                adapted.budget(self.limits.window, fixed_tokens=fixed_tokens),
            )
            self.memory.last_budget = cached_budget
        return cached_budget[1]

    def list_messages_to_send(self) -> list[Any]:
        """List the messages to send: those of the rewrite, if there is one, then the caller's."""
        caller_messages = [
            message.value for message in self.caller_history.messages[self.covered_count :]
        ]
        if self.rewrite is None:
            return caller_messages
        return [
            *(value for value, _ in parse_replacement(self.rewrite)),
            *caller_messages,
        ]

    def list_edits(self) -> list[MessageEdit]:
        """Return our changes of the caller's messages. They do not overlap."""
        edits = []
        if self.rewrite is not None:
            edits.append(
                MessageEdit(0, self.rewrite.replaced_count, self.rewrite.replacement.decode())
            )
        for start, end, recall_rounds in self.rounds.list_rounds_after(self.covered_count):
            edits.append(MessageEdit(start, end, ",".join(recall_rounds.texts)))
            if recall_rounds.blocks:
                wire_message = self.caller_history.wire_messages[end]
                text = self._add_blocks(wire_message, recall_rounds.blocks)
                edits.append(MessageEdit(end, end + 1, text))
        edited_indexes = {edit.start for edit in edits}
        restored_messages = self.caller_history.restore_messages(self.covered_count)
        for index, value in restored_messages.items():
            if index not in edited_indexes:
                edits.append(MessageEdit(index, index + 1, encode_value(value)))
        return edits

    def list_items(self) -> list[int | dict[str, Any]]:
        """Return the messages to send: the index of each unchanged caller's message, else a message in JSON form."""
        items: list[int | dict[str, Any]] = []
        index = 0
        for edit in sorted(self.list_edits(), key=lambda edit: edit.start):
            items += range(index, edit.start)
            items += self._list_edit_items(edit)
            index = edit.end
        items += range(index, len(self.caller_history))
        return items

    def _list_edit_items(self, edit: MessageEdit) -> list[int | dict[str, Any]]:
        """Return the messages of an edit, with the index in place of each message that it leaves unchanged."""
        messages = split_messages(edit.text)
        covered_texts = [
            message.text for message in self.caller_history.messages[edit.start : edit.end]
        ]
        indexes = match_unchanged([text for _, text in messages], covered_texts)
        return [
            value if index is None else edit.start + index
            for (value, _), index in zip(messages, indexes, strict=True)
        ]

    def _add_blocks(self, wire_message: Any, encoded_blocks: str) -> str:
        """Return a message as text, with the results of recall calls before its own content."""
        name = CODECS[self.settings.api].request_fields.results_field
        content = ",".join([encoded_blocks, *map(encode_value, wire_message[name])])
        text_without_content = encode_value({**wire_message, name: None})
        return text_without_content.replace(f'"{name}":null', f'"{name}":[{content}]', 1)
