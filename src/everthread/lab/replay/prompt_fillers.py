"""Replace the parts of prompts that a log does not hold (system prompt, tools, reasoning) by texts of their size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, parts_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import System
from everthread.lab.importers.log import Log
from everthread.lab.importers.log_fields import make_injected_message
from everthread.lab.replay.replay_plan import PlannedCall

MAX_FIXED_TOKENS = 40_000
"""The most tokens of the first prompt that count as system prompt and tools; the others are earlier conversation."""
MIN_NEW_SHARE = 0.1
"""If a smaller share of the first prompt was new, the log continues an earlier session, and the tokens that were read
from the cache are not only the system prompt."""
DEFAULT_LASTING_SHARE = 0.4
"""Share of system prompt and tools that stays cached when the conversation changes, unless the first call shows it."""
EARLIER_MESSAGE_TOKENS = 4_000
"""Size of each message that represents earlier conversation."""
FILLER_START = "[Part of the prompt that the log does not hold.]"


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """Filler text for the parts of the first prompt that the log lacks, with the same number of tokens."""

    system: System
    earlier_messages: Sequence[Message] = ()
    """Messages before the first of the log, if the session continues another one."""
    lasting_tokens: int = 0
    """Tokens of the filler that stay cached when the conversation changes."""


def complete_prompt(log: Log, calls: Sequence[PlannedCall], counter: TokenCounter) -> FirstPrompt:
    """Make the first prompt as large as the log states.

    The log has neither the system prompt nor the tools of the client. A filler takes their place, in which the part
    that stays in the cache is a block of its own.
    """
    usage = calls[0].usage
    if usage is None or not usage.prompt_tokens:
        return FirstPrompt(log.system)
    known_tokens = counter.request(calls[0].inputs, system=log.system, tools=log.tools)
    missing_tokens = usage.prompt_tokens - known_tokens
    if missing_tokens <= 0:
        return FirstPrompt(log.system)
    earlier_tokens = max(missing_tokens - MAX_FIXED_TOKENS, 0)
    fixed_tokens = missing_tokens - earlier_tokens
    lasting_tokens = min(
        _find_lasting_tokens(usage) or int(DEFAULT_LASTING_SHARE * fixed_tokens),
        fixed_tokens,
    )
    blocks: list[Any] = []
    for size in (lasting_tokens, fixed_tokens - lasting_tokens):
        if size > 0:
            text = fill_text(size, lambda text: counter.system([{"type": "text", "text": text}]))
            blocks.append({"type": "text", "text": text})
    system: System = [*blocks, *parts_of({"content": log.system})]
    return FirstPrompt(system, _make_earlier_messages(earlier_tokens, counter), lasting_tokens)


def _find_lasting_tokens(usage: CanonicalUsage) -> int:
    """Return how many tokens of the system prompt other sessions keep cached, or 0 if the first call cannot tell."""
    continues_session = usage.cache_read_tokens >= (1 - MIN_NEW_SHARE) * usage.prompt_tokens
    return 0 if continues_session else usage.cache_read_tokens


def _make_earlier_messages(tokens: int, counter: TokenCounter) -> list[Message]:
    """Return fillers of this many tokens for the earlier conversation, marked as not written by the user."""
    messages: list[Message] = []
    while tokens > 0:
        size = min(tokens, EARLIER_MESSAGE_TOKENS)
        text = fill_text(size, lambda filler: counter.message(make_injected_message(filler)))
        messages.append(make_injected_message(text))
        tokens -= size
    return messages


def fill_text(tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Return a filler text of about this many tokens."""
    word_count = max(tokens - count_tokens(FILLER_START), 0)
    text = FILLER_START
    for _ in range(4):
        text = FILLER_START + " fill" * word_count
        counted_tokens = count_tokens(text)
        if word_count == 0 or abs(counted_tokens - tokens) <= max(tokens // 1_000, 2):
            break
        word_count = word_count * tokens // max(counted_tokens, 1)
    return text


def add_hidden_reasoning(call: PlannedCall, counter: TokenCounter, *, text_tokens: int) -> Message:
    """Add a filler for the reasoning that the log does not hold but that later prompts contained.

    Claude gets back everything it wrote. Encrypted reasoning of OpenAI's models is not counted in later prompts.
    """
    usage = call.usage
    thought_tokens = counter.text(call.answer.get("reasoning_content") or "")
    sent_tokens = usage.output_tokens - usage.reasoning_tokens if usage is not None else 0
    missing_tokens = sent_tokens - text_tokens - thought_tokens
    if missing_tokens <= 0:
        return call.answer
    filler = fill_text(missing_tokens, counter.text)
    return {
        **call.answer,
        "reasoning_content": (call.answer.get("reasoning_content") or "") + filler,
    }
