"""A context engine that keeps the first request and the last turns, and says how much it left out."""

from collections.abc import Mapping
from typing import Any

from everthread import CanonicalUsage, ConfigError
from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, Services
from everthread.core.messages import Message, Messages
from everthread.core.summary_marks import SUMMARY_END, SUMMARY_START
from everthread.core.turns import split_into_spans, split_into_turns

NOTE = (
    f"{SUMMARY_START}]\n"
    "{} earlier messages were left out here, unsummarised. Ask, do not guess.\n"
    f"{SUMMARY_END}"
)


class RecentTurns(ContextEngine):
    name = "recent_turns"

    def __init__(self, services: Services, keep_turns: int) -> None:
        self.services = services
        self.keep_turns = keep_turns
        self.prompt_tokens = 0
        self.left_out = 0

    def update_model(self, services: Services) -> None:
        self.services = services

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self.prompt_tokens = usage.prompt_tokens

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        if prompt_tokens is None:
            prompt_tokens = self.prompt_tokens
        return prompt_tokens >= self.services.budget.threshold

    async def compress(self, messages: Messages, **asked: Any) -> Compaction:
        frame = {key: asked.get(key) for key in ("system", "tools")}
        before = self.services.counter.request(messages, **frame)
        # Each overflow attempt keeps fewer turns.
        keep = max(self.keep_turns >> asked.get("level", 0), 1)
        starts = turn_starts(messages)
        head = tail = 0
        if len(starts) > keep:
            head = starts[0] + 1
            tail = starts[-keep]
        previous_note = NOTE.format(self.left_out)
        covered = tuple(
            index for index in range(head, tail) if messages[index].get("content") != previous_note
        )
        note = NOTE.format(self.left_out + len(covered))
        result: list[Message] = [
            *messages[:head],
            {"role": "assistant", "content": note},
            *messages[tail:],
        ]
        after = self.services.counter.request(result, **frame)
        if after >= before:
            return Compaction(
                [*messages],
                summary="",
                tokens_before=before,
                tokens_after=before,
                changed=False,
                reason="there are no older turns",
            )
        return Compaction(
            result,
            summary=note,
            tokens_before=before,
            tokens_after=after,
            covered=covered,
            kept=(*range(head), None, *range(tail, len(messages))),
        )

    def on_compacted(self, compaction: Compaction) -> None:
        self.prompt_tokens = compaction.tokens_after
        self.left_out += len(compaction.covered)

    def dump_state(self) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "left_out": self.left_out}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.prompt_tokens = state["prompt_tokens"]
        self.left_out = state["left_out"]


def turn_starts(messages: Messages) -> list[int]:
    """Return where users' turns begin; a cut elsewhere would part a call from its result."""
    whole = {span.start for span in split_into_spans(messages)}
    return [
        turn.start
        for turn in split_into_turns(messages)
        if turn.user_index is not None and turn.start in whole
    ]


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    keep = options.get("keep_turns", 6)
    if set(options) - {"keep_turns"} or not isinstance(keep, int) or keep < 1:
        raise ConfigError(
            f"engines.recent_turns = {dict(options)}: "
            "the only option is keep_turns, a whole number from 1"
        )
    return RecentTurns(services, keep)
