"""Claude's prompt cache, as it is documented.

A mark writes one entry: the prefix that ends at its block. A request reads the longest entry that an earlier one
wrote, looked for at each mark and at most nineteen positions before it. Entries live for five minutes or an hour,
from when they were last used. A prefix shorter than the model's minimum is not cached, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from everthread.core.messages import CALL_BLOCKS, RESULT_BLOCKS
from everthread.lab.prompt_blocks import Block, Chain, Ttl

LOOKBACK = 20
"""Positions looked at for each mark, its own included."""
MOST_MARKS = 4
SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What became of a prompt's tokens; the parts add up to the prompt."""

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


@dataclass(slots=True)
class _Entry:
    ttl: Ttl
    used: float

    def lives(self, now: float) -> bool:
        return now < self.used + SECONDS[self.ttl]


class ClaudeCache:
    """The entries of all models; `clock` says the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, bytes], _Entry] = {}
        self._chain = Chain()

    def use(self, model: str, blocks: Sequence[Block], *, prompt: int, minimum: int) -> CacheUse:
        """Read what there is, write what is marked; what that means for `prompt` tokens in all."""
        now = self._clock()
        digests = self._chain(blocks)
        sums = list(accumulate(block.tokens for block in blocks))
        marked = [at for at, block in enumerate(blocks) if block.mark]
        hit = self._hit(model, blocks, digests, marked, now)
        for at in [hit, *(at for at in marked if hit is not None and at < hit)]:
            entry = None if at is None else self._alive(model, digests[at], now)
            if entry:
                entry.used = now
        read = 0 if hit is None else sums[hit]
        after = [at for at in marked if (hit is None or at > hit) and sums[at] >= minimum]
        for at in after:
            self._entries[model, digests[at]] = _Entry(blocks[at].mark or "5m", now)
        hour = max((sums[at] for at in after if blocks[at].mark == "1h"), default=read)
        last = max((sums[at] for at in after), default=read)
        return CacheUse(prompt, read, write_5m=last - hour, write_1h=hour - read)

    def _hit(
        self, model: str, blocks: Sequence[Block], digests: Sequence[bytes], marked: Sequence[int], now: float
    ) -> int | None:
        """The longest prefix with a living entry, as far as the marks let one look."""
        for mark in reversed(marked):
            for at in _positions(blocks, mark):
                if self._alive(model, digests[at], now):
                    return at
        return None

    def _alive(self, model: str, digest: bytes, now: float) -> _Entry | None:
        entry = self._entries.get((model, digest))
        return entry if entry and entry.lives(now) else None


def _positions(blocks: Sequence[Block], mark: int) -> list[int]:
    """The blocks looked at from a mark backwards: twenty, where a run of calls or of results counts once."""
    seen, found = 0, []
    for at in range(mark, -1, -1):
        same_run = at < mark and any(blocks[at].kind in run and blocks[at + 1].kind in run for run in _RUNS)
        seen += not same_run
        if seen > LOOKBACK:
            break
        found.append(at)
    return found


_RUNS = (CALL_BLOCKS, RESULT_BLOCKS)
