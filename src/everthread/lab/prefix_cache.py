"""OpenAI's automatic prompt cache, as it is documented.

Prompts of at least 1,024 tokens are cached without being asked. What a later prompt of the same model begins with is
read in steps of 128 tokens. An entry is forgotten after ten minutes without use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from everthread.lab.prompt_blocks import Block, Chain

SMALLEST = 1024
STEP = 128
SECONDS = 600.0
_PIECE = 256
"""Characters compared at once inside a block: two prompts may part in the middle of a message."""


class PrefixCache:
    """What was seen of every model; `clock` says the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[tuple[str, bytes], float] = {}
        self._chain = Chain()

    def use(self, model: str, blocks: Sequence[Block], *, prompt: int) -> int:
        """How many tokens of the prompt are read from the cache; the prompt is remembered."""
        now = self._clock()
        pieces = [piece for block in blocks for piece in _pieces(block)]
        shared = 0
        for piece, digest in zip(pieces, self._chain(pieces), strict=True):
            key = (model, digest)
            # A digest is that of the whole beginning, so none is known after the first that is not.
            if now < self._used.get(key, float("-inf")) + SECONDS:
                shared += piece.tokens
            if prompt >= SMALLEST:
                self._used[key] = now
        cached = shared // STEP * STEP
        return cached if cached >= SMALLEST else 0


@functools.lru_cache(maxsize=4096)
def _pieces(block: Block) -> tuple[Block, ...]:
    """A block in short pieces, its tokens spread over them by length."""
    length, told, pieces = len(block.text), 0, []
    for end in range(_PIECE, length + _PIECE, _PIECE):
        tokens = block.tokens * min(end, length) // length
        pieces.append(replace(block, text=block.text[end - _PIECE : end], tokens=tokens - told))
        told = tokens
    return tuple(pieces)
