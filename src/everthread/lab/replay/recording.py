"""Read facts about the cache from a log's usage, and measure how far the replay's prediction agrees with the log.

The prediction reads the usage of the first call, and of later calls only whether they missed the cache. It never reads
how large a later prompt was or how much of it was cached: it predicts those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, parts_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import System
from everthread.lab.importers.log import ClientCompaction, Log
from everthread.lab.importers.log_fields import make_injected_message
from everthread.lab.provider.cache import CacheUse
from everthread.lab.replay.cache_lifetime import (
    caches_by_marks,
    find_cache_seconds,
)
from everthread.lab.replay.replay_plan import PlannedCall
from everthread.lab.replay.result import Agreement, PlayedCall

MAX_FIXED_TOKENS = 40_000
"""The most tokens of the first prompt that count as system prompt and tools; the others are earlier conversation."""
MIN_NEW_SHARE = 0.1
"""If a smaller share of the first prompt was new, the log continues an earlier session, and the tokens that were read
from the cache are not only the system prompt."""
DEFAULT_LASTING_SHARE = 0.4
"""Share of system prompt and tools that stays cached when the conversation changes, unless the first call shows it."""
MAX_READ_SHARE_OF_MISS = 0.5
"""A call missed the cache if it read less than this share of the readable prompt."""
MAX_READ_SHARE_OF_PARTIAL_MISS = 0.95
"""A call missed an automatic cache in part if it read less than this share of the readable prompt."""
EARLIER_MESSAGE_TOKENS = 4_000
"""Size of each message that represents earlier conversation."""
FILLER_START = "[Part of the prompt that the log does not hold.]"


@dataclass(frozen=True, slots=True)
class Recording:
    """Facts about a recorded session, taken from its usage."""

    shared_tokens: int
    """Tokens at the start of the prompt that were cached before the session began."""
    lasting_tokens: int
    """Tokens at the start of the prompt that outlast a change of the conversation: parts of the system prompt."""
    ttl: str | None
    """The lifetime of Claude's cache that the client asked for; None if it wrote nothing to the cache."""
    missed_calls: frozenset[int]
    """Calls that missed the cache although their prompt continued the previous one."""
    partly_missed_calls: frozenset[int]
    """Calls that found only an older part of their prompt in an automatic cache."""
    expired_calls: frozenset[int]
    """Calls that missed because even the system prompt was no longer cached."""

    def count_cached_tokens(self, number: int) -> int:
        """Return the tokens at the start of the prompt that a call still reads from the cache in spite of a miss.

        The first call reads the prefix that other sessions share. Any other call reads the part of system prompt and
        tools that outlasts a change of the conversation, or nothing if the cache expired.
        """
        if number == 0:
            return self.shared_tokens
        return 0 if number in self.expired_calls else self.lasting_tokens


def read_recording(
    calls: Sequence[PlannedCall],
    sizes: Sequence[int],
    compactions: Sequence[ClientCompaction],
    *,
    lasting_tokens: int,
) -> Recording | None:
    """Read the recording; None if the first call states no prompt.

    `sizes`: the predicted prompt of each call. `lasting_tokens`: see `Recording`.
    """
    usage = calls[0].usage
    if usage is None or not usage.prompt_tokens:
        return None
    shared_tokens = usage.cache_read_tokens
    ttl = None
    if usage.cache_write_tokens:
        ttl = "1h" if usage.cache_write_1h_tokens else "5m"
    shares = _find_read_shares(calls, sizes, compactions)
    missed_calls = frozenset(
        number for number, share in shares.items() if share < MAX_READ_SHARE_OF_MISS
    )
    partly_missed_calls = frozenset(
        number
        for number, share in shares.items()
        if MAX_READ_SHARE_OF_MISS <= share < MAX_READ_SHARE_OF_PARTIAL_MISS
    )
    return Recording(
        shared_tokens,
        lasting_tokens=lasting_tokens,
        ttl=ttl,
        missed_calls=missed_calls,
        partly_missed_calls=partly_missed_calls,
        expired_calls=frozenset(
            number for number in missed_calls if _has_expired(calls, number, ttl)
        ),
    )


def _has_expired(calls: Sequence[PlannedCall], number: int, ttl: str | None) -> bool:
    """Return whether a cache with marks had expired before a call. An automatic cache is shared by sessions."""
    model = calls[number].model
    pause = calls[number].sent_at - calls[number - 1].sent_at
    return caches_by_marks(model) and pause >= find_cache_seconds(model, ttl or "5m")


def _find_read_shares(
    calls: Sequence[PlannedCall],
    sizes: Sequence[int],
    compactions: Sequence[ClientCompaction],
) -> dict[int, float]:
    """Return, for each call that continued the previous prompt, the share of the reusable prompt that it read.

    Shares do not reveal the size of the prompt or the amount cached, which the replay must predict.
    """
    calls_after_compaction = {
        find_first_call_after(calls, compaction) for compaction in compactions
    }
    shares = {}
    for number in range(1, len(calls)):
        usage = calls[number].usage
        if (
            usage is not None
            and usage.prompt_tokens
            and number not in calls_after_compaction
        ):
            readable_share = sizes[number - 1] / sizes[number]
            shares[number] = (
                usage.cache_read_tokens / usage.prompt_tokens / readable_share
            )
    return shares


def find_first_call_after(
    calls: Sequence[PlannedCall], compaction: ClientCompaction
) -> int:
    """Return the index of the first call after a compaction of the client; the number of calls if no call follows."""
    return next(
        (
            number
            for number, call in enumerate(calls)
            if call.entry >= compaction.next_entry_index
        ),
        len(calls),
    )


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """The parts of the first prompt that the log does not hold, as fillers of their size."""

    system: System
    earlier_messages: Sequence[Message] = ()
    """Messages before the first of the log, if the session continues another one."""
    lasting_tokens: int = 0
    """See `Recording`."""


def complete_prompt(
    log: Log, calls: Sequence[PlannedCall], counter: TokenCounter
) -> FirstPrompt:
    """Make the first prompt as large as the log states.

    The log has neither the system prompt nor the tools of the client. A filler takes their place; the part of it that
    stays in the cache is a block of its own.
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
    sizes = [
        size for size in (lasting_tokens, fixed_tokens - lasting_tokens) if size > 0
    ]
    blocks: list[Any] = [
        {"type": "text", "text": text}
        for text in (
            fill_text(
                size, lambda text: counter.system([{"type": "text", "text": text}])
            )
            for size in sizes
        )
    ]
    system: System = [*blocks, *parts_of({"content": log.system})]
    return FirstPrompt(
        system, _make_earlier_messages(earlier_tokens, counter), lasting_tokens
    )


def _find_lasting_tokens(usage: CanonicalUsage) -> int:
    """Return how many tokens of the system prompt other sessions keep cached; 0 if the first call cannot tell."""
    continues_session = (
        usage.cache_read_tokens >= (1 - MIN_NEW_SHARE) * usage.prompt_tokens
    )
    return 0 if continues_session else usage.cache_read_tokens


def _make_earlier_messages(tokens: int, counter: TokenCounter) -> list[Message]:
    """Return fillers of this many tokens for the earlier conversation, marked so that they are not the user's words."""
    messages: list[Message] = []
    while tokens > 0:
        size = min(tokens, EARLIER_MESSAGE_TOKENS)
        text = fill_text(
            size, lambda filler: counter.message(make_injected_message(filler))
        )
        messages.append(make_injected_message(text))
        tokens -= size
    return messages


def fill_text(tokens: int, count: Callable[[str], int]) -> str:
    """Return a filler text of about this many tokens. `count` counts the tokens of a text."""
    words = max(tokens - count(FILLER_START), 0)
    text = FILLER_START
    for _ in range(4):
        text = FILLER_START + " fill" * words
        counted_tokens = count(text)
        if words == 0 or abs(counted_tokens - tokens) <= max(tokens // 1_000, 2):
            break
        words = words * tokens // max(counted_tokens, 1)
    return text


def make_cache_use(usage: CanonicalUsage) -> CacheUse:
    """Return a recorded usage in the form of the simulated cache."""
    hour_tokens = min(usage.cache_write_1h_tokens, usage.cache_write_tokens)
    return CacheUse(
        usage.prompt_tokens,
        usage.cache_read_tokens,
        write_5m=usage.cache_write_tokens - hour_tokens,
        write_1h=hour_tokens,
    )


def count_answer_tokens(
    call: PlannedCall, counter: TokenCounter, *, text_tokens: int
) -> int:
    """Return the tokens of an answer: the reported ones, or our own count if that is higher.

    A log may state only the tokens of the stream's beginning.
    """
    thought_tokens = counter.text(call.answer.get("reasoning_content") or "")
    reported_tokens = call.usage.output_tokens if call.usage is not None else 0
    return max(reported_tokens, text_tokens + thought_tokens)


def add_hidden_reasoning(
    call: PlannedCall, counter: TokenCounter, *, text_tokens: int
) -> Message:
    """Add a filler for the reasoning that the log does not hold but that later prompts contained.

    Claude gets back everything it wrote. Encrypted reasoning of OpenAI's models is not counted in later prompts.
    """
    usage = call.usage
    thought_tokens = counter.text(call.answer.get("reasoning_content") or "")
    sent_tokens = (
        usage.output_tokens - usage.reasoning_tokens if usage is not None else 0
    )
    missing_tokens = sent_tokens - text_tokens - thought_tokens
    if missing_tokens <= 0:
        return call.answer
    filler = fill_text(missing_tokens, counter.text)
    return {
        **call.answer,
        "reasoning_content": (call.answer.get("reasoning_content") or "") + filler,
    }


def measure_agreement(
    predicted_calls: Sequence[PlayedCall],
    recorded_calls: Sequence[PlayedCall | None],
    call_count: int,
) -> Agreement | None:
    """Compare the predicted calls with the recorded calls, up to `call_count`. None if there is nothing to compare."""
    pairs = [
        (predicted_call, recorded_call)
        for predicted_call, recorded_call in zip(
            predicted_calls[:call_count], recorded_calls[:call_count], strict=False
        )
        if recorded_call is not None
    ]
    if not pairs or not any(recorded_call.use.prompt for _, recorded_call in pairs):
        return None
    return Agreement(
        len(pairs),
        prompt_predicted=sum(predicted_call.use.prompt for predicted_call, _ in pairs),
        prompt_recorded=sum(recorded_call.use.prompt for _, recorded_call in pairs),
        input_predicted=_sum_costs([predicted_call for predicted_call, _ in pairs]),
        input_recorded=_sum_costs([recorded_call for _, recorded_call in pairs]),
    )


def _sum_costs(calls: Sequence[PlayedCall]) -> float | None:
    costs = [call.input_cost for call in calls]
    return (
        None
        if any(cost is None for cost in costs)
        else float(sum(cost for cost in costs if cost is not None))
    )
