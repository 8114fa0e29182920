"""Simulate the prompt caches of Claude and OpenAI as documented: reads, writes, expiry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from everthread.core.caching.cache_lifetimes import (
    AUTOMATIC_CACHE_SECONDS,
    bills_cache_writes,
)
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
)
from everthread.lab.provider.prompt_blocks import Block, Prompt, Ttl, digest_text

CLAUDE_TTL_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}
MAX_MARKS = 4
MAX_LOOKBACK_POSITIONS = 20
"""Maximum positions checked for each mark, including the position of the mark itself."""
MAX_PREFIX_ENDS = 80
"""Maximum positions at which OpenAI looks for a cached prefix."""
MIN_CACHED_TOKENS = 1024
CACHE_STEP_TOKENS = 128
PREFIX_SECONDS = 600.0

_RUN_KINDS = (CALL_BLOCK_KINDS, RESULT_BLOCK_KINDS)
_PIECE_CHARS = 256
"""Characters compared at once inside a block, because two prompts may start to differ in the middle of a message."""


def digest_prefixes(blocks: Sequence[Block], start_digest: bytes = b"") -> list[bytes]:
    """Return a digest for each block, of all text up to the block's end.

    `start_digest` is the digest of the text before the first block.
    """
    digests = []
    digest = start_digest
    for block in blocks:
        digest = digest_text(block.text, digest)
        digests.append(digest)
    return digests


class PrefixDigests:
    """Computes `digest_prefixes` for one request after another, reusing the digests of blocks that did not change."""

    def __init__(self) -> None:
        self._blocks: Sequence[Block] = ()
        self._digests: list[bytes] = []

    def __call__(self, blocks: Sequence[Block]) -> list[bytes]:
        same_count = 0
        for earlier_block, block in zip(self._blocks, blocks, strict=False):
            if earlier_block is not block:
                break
            same_count += 1
        shared_digests = self._digests[:same_count]
        shared_digest = shared_digests[-1] if shared_digests else b""
        self._blocks = blocks
        self._digests = [*shared_digests, *digest_prefixes(blocks[same_count:], shared_digest)]
        return self._digests


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a prompt's tokens used the cache; the parts add up to the prompt."""

    prompt: int
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0

    @property
    def write(self) -> int:
        return self.write_5m + self.write_1h

    @property
    def input(self) -> int:
        return self.prompt - self.read - self.write


class ClaudeCache:
    """Claude's cache for all models; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, bytes], tuple[Ttl, float]] = {}
        """The lifetime of each entry, and when it expires."""
        self._digest_prefixes = PrefixDigests()

    def use(
        self, model: str, blocks: Sequence[Block], *, prompt_tokens: int, minimum: int
    ) -> CacheUse:
        """Read the longest cached prefix and write the marked ones."""
        now = self._clock()
        keys = [(model, digest) for digest in self._digest_prefixes(blocks)]
        cumulative_tokens = list(accumulate(block.tokens for block in blocks))
        marked_indexes = [index for index, block in enumerate(blocks) if block.mark]
        hit_index = self._find_hit(blocks, keys, marked_indexes, now)
        read_tokens = 0
        if hit_index is not None:
            read_tokens = cumulative_tokens[hit_index]
            for index in [*marked_indexes, hit_index]:
                if index <= hit_index and self._is_alive(keys[index], now):
                    ttl, _ = self._entries[keys[index]]
                    self._entries[keys[index]] = ttl, now + CLAUDE_TTL_SECONDS[ttl]
        first_written_index = 0 if hit_index is None else hit_index + 1
        written_indexes = [
            index
            for index in marked_indexes
            if index >= first_written_index and cumulative_tokens[index] >= minimum
        ]
        for index in written_indexes:
            ttl = blocks[index].mark or "5m"
            self._entries[keys[index]] = ttl, now + CLAUDE_TTL_SECONDS[ttl]
        hour_sums = [
            cumulative_tokens[index] for index in written_indexes if blocks[index].mark == "1h"
        ]
        hour_sum = max(hour_sums, default=read_tokens)
        last_sum = max((cumulative_tokens[index] for index in written_indexes), default=read_tokens)
        return CacheUse(
            prompt_tokens,
            read_tokens,
            write_5m=last_sum - hour_sum,
            write_1h=hour_sum - read_tokens,
        )

    def _find_hit(
        self,
        blocks: Sequence[Block],
        keys: Sequence[tuple[str, bytes]],
        marked_indexes: Sequence[int],
        now: float,
    ) -> int | None:
        """Return the index of the block that ends the longest live prefix, or None if the marks lead to none."""
        for mark_index in reversed(marked_indexes):
            for index in _list_lookback_positions(blocks, mark_index):
                if self._is_alive(keys[index], now):
                    return index
        return None

    def _is_alive(self, key: tuple[str, bytes], now: float) -> bool:
        return key in self._entries and now < self._entries[key][1]


def _list_lookback_positions(blocks: Sequence[Block], mark_index: int) -> list[int]:
    """Return the indexes of the twenty positions that Claude checks backwards from a mark.

    Neighbouring calls count as one position, and so do neighbouring results.
    """
    count = 0
    positions = []
    for index in range(mark_index, -1, -1):
        is_same_run = index < mark_index and any(
            blocks[index].kind in kinds and blocks[index + 1].kind in kinds for kinds in _RUN_KINDS
        )
        count += not is_same_run
        if count > MAX_LOOKBACK_POSITIONS:
            break
        positions.append(index)
    return positions


def find_prefix_seconds(model: str) -> float:
    """Return how long an unused prefix is kept without a mark, in seconds."""
    return AUTOMATIC_CACHE_SECONDS if bills_cache_writes(model) else PREFIX_SECONDS


class PrefixCache:
    """The automatic cache of all models; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_uses: dict[tuple[str, bytes], float] = {}
        self._digest_prefixes = PrefixDigests()

    def use(self, model: str, blocks: Sequence[Block], *, prompt_tokens: int) -> int:
        """Return how many tokens of the prompt are read from the cache; remember the prompt."""
        now = self._clock()
        pieces: list[Block] = []
        for block in blocks:
            pieces += _split_block(block)
        shared_tokens = 0
        for piece, digest in zip(pieces, self._digest_prefixes(pieces), strict=True):
            key = (model, digest)
            # A digest covers the whole prefix, so after an unknown digest all others are unknown too.
            if now < self._last_uses.get(key, float("-inf")) + PREFIX_SECONDS:
                shared_tokens += piece.tokens
            if prompt_tokens >= MIN_CACHED_TOKENS:
                self._last_uses[key] = now
        cached_tokens = shared_tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS
        return cached_tokens if cached_tokens >= MIN_CACHED_TOKENS else 0


class BreakpointCache:
    """OpenAI's cache from GPT-5.6 on: prefixes are written and found at breakpoints.

    Each request writes up to four prefixes: one that ends with the latest user message or
    result, and the latest explicit ones. Matches are looked for at the latest 80 positions
    where a prefix can end. A prefix that is read or marked again stays alive.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expiry_times: dict[tuple[str, bytes], float] = {}
        """When each prefix expires."""
        self._digest_prefixes = PrefixDigests()

    def use(
        self,
        model: str,
        blocks: Sequence[Block],
        *,
        prompt_tokens: int,
        is_explicit: bool,
        lifetime: float = AUTOMATIC_CACHE_SECONDS,
    ) -> CacheUse:
        """Read the longest known prefix and write new ones.

        `lifetime` says for how many seconds the request wants the prefixes to be kept that it reads or writes.
        """
        now = self._clock()
        keys = [(model, digest) for digest in self._digest_prefixes(blocks)]
        cumulative_tokens = list(accumulate(block.tokens for block in blocks))
        marked_indexes = [index for index, block in enumerate(blocks) if block.is_breakpoint]
        natural_indexes = [index for index, block in enumerate(blocks) if block.can_end_prefix]
        candidates = sorted({*marked_indexes, *natural_indexes})[-MAX_PREFIX_ENDS:]
        read_tokens = 0
        for index in reversed(candidates):
            if now < self._expiry_times.get(keys[index], -1.0):
                self._expiry_times[keys[index]] = now + lifetime
                read_tokens = cumulative_tokens[index]
                break
        implicit_indexes = [] if is_explicit else natural_indexes[-1:]
        explicit_count = MAX_MARKS - len(implicit_indexes)
        last_sum = read_tokens
        for index in {*implicit_indexes, *marked_indexes[-explicit_count:]}:
            if cumulative_tokens[index] >= MIN_CACHED_TOKENS:
                self._expiry_times[keys[index]] = now + lifetime
                last_sum = max(last_sum, cumulative_tokens[index])
        return CacheUse(prompt_tokens, read_tokens, write_5m=last_sum - read_tokens)


class ProviderCaches:
    """The caches of all providers; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._claude_cache = ClaudeCache(clock)
        self._prefixes = PrefixCache(clock)
        self._breakpoints = BreakpointCache(clock)

    def use(self, model: str, prompt: Prompt, *, minimum: int | None) -> CacheUse:
        """Use the cache. `minimum`: tokens of the shortest prefix that marks can cache; automatic caches have none."""
        if minimum is None and bills_cache_writes(model):
            return self._breakpoints.use(
                model,
                prompt.blocks,
                prompt_tokens=prompt.tokens,
                is_explicit=prompt.has_explicit_cache,
                lifetime=prompt.lifetime,
            )
        if minimum is None:
            read_tokens = self._prefixes.use(model, prompt.blocks, prompt_tokens=prompt.tokens)
            return CacheUse(prompt.tokens, read_tokens)
        return self._claude_cache.use(
            model, prompt.blocks, prompt_tokens=prompt.tokens, minimum=minimum
        )


@functools.lru_cache(maxsize=4096)
def _split_block(block: Block) -> tuple[Block, ...]:
    """Split a block into short pieces, and spread its tokens over them by length."""
    length = len(block.text)
    tokens_before = 0
    pieces = []
    for end in range(_PIECE_CHARS, length + _PIECE_CHARS, _PIECE_CHARS):
        tokens = block.tokens * min(end, length) // length
        pieces.append(
            replace(
                block,
                text=block.text[end - _PIECE_CHARS : end],
                tokens=tokens - tokens_before,
            )
        )
        tokens_before = tokens
    return tuple(pieces)
