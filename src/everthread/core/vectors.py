"""Texts as vectors: what makes them, how they are kept, and which are near each other.

A vector is kept as one signed byte for each of its numbers, of length one before: four times smaller, and the order
of what is near stays. To compare many needs numpy, which comes with the extra `vectors`.
"""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from everthread.errors import InputError

MOST_CHARS = 2_000
"""Of a longer text the beginning: the vector of a long text is near to everything and nothing."""
MOST_NUMBERS = 8_192
_FULL = 127


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def name(self) -> str:
        """Which model, so that only vectors of one are compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """One packed vector for each text. `ModelError` where it cannot be done."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Vector:
    model: str
    packed: bytes


def packed(numbers: Sequence[float]) -> bytes:
    """A vector as it is kept. `InputError` for one that has no length or is too long."""
    size = math.sqrt(math.fsum(number * number for number in numbers))
    if not 0 < size < math.inf or len(numbers) > MOST_NUMBERS:
        raise InputError(f"a vector of {len(numbers):,} numbers and length {size:g} cannot be kept")
    most = max(map(abs, numbers))
    return array.array("b", (round(_FULL * number / most) for number in numbers)).tobytes()


def nearest(wanted: bytes, kept: Sequence[tuple[int, bytes]], most: int, *, least: float) -> list[tuple[int, float]]:
    """The ids of what is nearest, with the cosine (-1 to 1), the nearest first; nothing below `least`."""
    import numpy as np  # noqa: PLC0415 - comes with an extra

    fitting = [(key, value) for key, value in kept if len(value) == len(wanted)]
    if not fitting:
        return []
    rows = np.frombuffer(b"".join(value for _, value in fitting), dtype=np.int8).reshape(len(fitting), len(wanted))
    asked = np.frombuffer(wanted, dtype=np.int8).astype(np.float32)
    matrix = rows.astype(np.float32)
    sizes = np.linalg.norm(matrix, axis=1) * np.linalg.norm(asked)
    cosines = matrix @ asked / np.maximum(sizes, 1.0)
    order = np.argsort(-cosines, kind="stable")[:most]
    return [(fitting[place][0], float(cosines[place])) for place in map(int, order) if cosines[place] >= least]
