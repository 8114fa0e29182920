"""A context engine that keeps the first request and the last turns, and says how much it left out."""

from collections.abc import Mapping
from typing import Any

from everthread import CanonicalUsage, ConfigError
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.summary import Compaction
from everthread.core.messages import Message, Messages
from everthread.core.transcript import SUMMARY_END, SUMMARY_START, spans, turns

NOTE = f"{SUMMARY_START}]\n{{}} earlier messages were left out here, unsummarised. Ask, do not guess.\n{SUMMARY_END}"


class RecentTurns(ContextEngine):
    name = "recent_turns"

    def __init__(self, services: Services, keep_turns: int) -> None:
        self.services, self.keep_turns, self.prompt_tokens, self.left_out = services, keep_turns, 0, 0

    def update_model(self, services: Services) -> None:
        self.services = services

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self.prompt_tokens = usage.prompt_tokens

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return (self.prompt_tokens if prompt_tokens is None else prompt_tokens) >= self.services.budget.threshold

    async def compress(self, messages: Messages, **asked: Any) -> Compaction:
        beside = {key: asked.get(key) for key in ("system", "tools")}
        before = self.services.counter.request(messages, **beside)
        unchanged = Compaction([*messages], "", before, before, changed=False, reason="there are no older turns")
        whole = {span.start for span in spans(messages)}  # a cut elsewhere would part a call from its result
        starts = [turn.start for turn in turns(messages) if turn.user is not None and turn.start in whole]
        keep = max(self.keep_turns >> asked.get("level", 0), 1)  # fewer at each attempt after an overflow
        head, tail = (starts[0] + 1, starts[-keep]) if len(starts) > keep else (0, 0)
        own = NOTE.format(self.left_out)  # the note of the compaction before
        covered = tuple(index for index in range(head, tail) if messages[index].get("content") != own)
        text = NOTE.format(self.left_out + len(covered))
        result: list[Message] = [*messages[:head], {"role": "assistant", "content": text}, *messages[tail:]]
        after = self.services.counter.request(result, **beside)
        kept = (*range(head), None, *range(tail, len(messages)))
        return Compaction(result, text, before, after, covered, kept) if after < before else unchanged

    def on_compacted(self, compaction: Compaction) -> None:
        self.prompt_tokens, self.left_out = compaction.tokens_after, self.left_out + len(compaction.covered)

    def dump_state(self) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "left_out": self.left_out}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.prompt_tokens, self.left_out = state["prompt_tokens"], state["left_out"]


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    if set(options) - {"keep_turns"} or not isinstance(keep := options.get("keep_turns", 6), int) or keep < 1:
        raise ConfigError(f"engines.recent_turns = {dict(options)}: keep_turns alone, a whole number from 1 on")
    return RecentTurns(services, keep)
