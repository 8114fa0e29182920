"""Read facts about the cache from a log's usage.

The prediction reads the usage of the first call, and of later calls only whether they missed the cache. It never reads
how large a later prompt was or how much of it was cached: it predicts those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everthread.lab.importers.log import ClientCompaction
from everthread.lab.replay.cache_lifetime import caches_by_marks, find_cache_seconds
from everthread.lab.replay.replay_plan import PlannedCall

MAX_READ_SHARE_OF_MISS = 0.5
"""A call missed the cache if it read less than this share of the readable prompt."""
MAX_READ_SHARE_OF_PARTIAL_MISS = 0.95
"""A call missed an automatic cache in part if it read less than this share of the readable prompt."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Facts about a recorded session, taken from its usage."""

    shared_tokens: int
    """Tokens at the start of the prompt that were cached before the session began."""
    lasting_tokens: int
    """Tokens of the system prompt that stay cached when the conversation after them changes."""
    ttl: str | None
    """The lifetime of Claude's cache that the client asked for, or None if it wrote nothing to the cache."""
    missed_call_indexes: frozenset[int]
    """Indexes of the calls that missed the cache although their prompt continued the previous one."""
    partly_missed_call_indexes: frozenset[int]
    """Indexes of the calls that found only an older part of their prompt in an automatic cache."""
    expired_call_indexes: frozenset[int]
    """Indexes of the calls that missed because even the system prompt was no longer cached."""

    def count_cached_tokens(self, call_index: int) -> int:
        """Return the tokens at the start of the prompt that a call still reads from the cache in spite of a miss.

        The first call reads the prefix that other sessions share. Any other call reads the part of system prompt and
        tools that outlasts a change of the conversation, or nothing if the cache expired.
        """
        if call_index == 0:
            return self.shared_tokens
        return 0 if call_index in self.expired_call_indexes else self.lasting_tokens


def read_recording(
    calls: Sequence[PlannedCall],
    sizes: Sequence[int],
    compactions: Sequence[ClientCompaction],
    *,
    lasting_tokens: int,
) -> Recording | None:
    """Read the recording, or None if the first call states no prompt.

    `sizes` are the predicted prompt tokens of each call. `lasting_tokens` is a field of `Recording`.
    """
    usage = calls[0].usage
    if usage is None or not usage.prompt_tokens:
        return None
    shared_tokens = usage.cache_read_tokens
    ttl = None
    if usage.cache_write_tokens:
        ttl = "1h" if usage.cache_write_1h_tokens else "5m"
    share_by_call_index = _find_read_shares(calls, sizes, compactions)
    missed_call_indexes = frozenset(
        call_index
        for call_index, share in share_by_call_index.items()
        if share < MAX_READ_SHARE_OF_MISS
    )
    partly_missed_call_indexes = frozenset(
        call_index
        for call_index, share in share_by_call_index.items()
        if MAX_READ_SHARE_OF_MISS <= share < MAX_READ_SHARE_OF_PARTIAL_MISS
    )
    return Recording(
        shared_tokens,
        lasting_tokens=lasting_tokens,
        ttl=ttl,
        missed_call_indexes=missed_call_indexes,
        partly_missed_call_indexes=partly_missed_call_indexes,
        expired_call_indexes=frozenset(
            call_index for call_index in missed_call_indexes if _has_expired(calls, call_index, ttl)
        ),
    )


def _has_expired(calls: Sequence[PlannedCall], call_index: int, ttl: str | None) -> bool:
    """Return whether a cache with marks had expired before a call. An automatic cache is shared by sessions."""
    model = calls[call_index].model
    pause = calls[call_index].sent_at - calls[call_index - 1].sent_at
    return caches_by_marks(model) and pause >= find_cache_seconds(model, ttl or "5m")


def _find_read_shares(
    calls: Sequence[PlannedCall],
    sizes: Sequence[int],
    compactions: Sequence[ClientCompaction],
) -> dict[int, float]:
    """Return the share of the reusable prompt that each call read which continued the previous prompt.

    Shares do not reveal the size of the prompt or the amount cached, which the replay must predict.
    """
    call_indexes_after_compaction = {
        find_first_call_after(calls, compaction) for compaction in compactions
    }
    share_by_call_index = {}
    for call_index in range(1, len(calls)):
        usage = calls[call_index].usage
        if (
            usage is not None
            and usage.prompt_tokens
            and call_index not in call_indexes_after_compaction
        ):
            readable_share = sizes[call_index - 1] / sizes[call_index]
            share_by_call_index[call_index] = (
                usage.cache_read_tokens / usage.prompt_tokens / readable_share
            )
    return share_by_call_index


def find_first_call_after(calls: Sequence[PlannedCall], compaction: ClientCompaction) -> int:
    """Return the index of the first call after a compaction of the client; the number of calls if no call follows."""
    return next(
        (
            call_index
            for call_index, call in enumerate(calls)
            if call.entry_index >= compaction.next_entry_index
        ),
        len(calls),
    )
