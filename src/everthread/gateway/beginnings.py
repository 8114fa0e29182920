"""Bodies that come again, longer: what was read of them is found by a hash of their beginning.

A body is hashed once, and its hash is taken at marks on the way: so many characters, in steps that grow with the body.
Two bodies that agree up to a mark agree in every message that is complete there. What follows the list of messages,
tools above all, is known by a hash of its own. Nothing here is needed to go on: what is forgotten is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar

from everthread.core.exchange import Api
from everthread.gateway.slicing import Fields, Spans

T = TypeVar("T")
_STEP = 1024
_MARKS = 32
_MOST_MARKS = 65_536
_MOST_RESTS = 512
_LEAST_REST = 256
"""A shorter rest is read as quickly as it is hashed."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The hashes of a body at its marks."""

    step: int
    digests: list[bytes]


class Beginnings(Generic[T]):
    """What is known of bodies: `T` is about a whole one, and whoever finds it knows up to where it holds."""

    def __init__(self, most: int = _MOST_MARKS) -> None:
        self._known: OrderedDict[bytes, T] = OrderedDict()
        self._most = most

    def find(self, marks: Marks) -> tuple[T, int] | None:
        """What is known of a body that begins alike, and how many characters are alike at least."""
        for index in range(len(marks.digests) - 1, -1, -1):
            known = self._known.get(marks.digests[index])
            if known is not None:
                return known, (index + 1) * marks.step
        return None

    def keep(self, marks: Marks, known: T) -> None:
        """It takes the place of what was known of shorter ones."""
        for digest in marks.digests:
            self._known[digest] = known
            self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


class Rests:
    """What follows the list of messages, by its text."""

    def __init__(self, most: int = _MOST_RESTS) -> None:
        self._known: OrderedDict[bytes, tuple[Fields, Spans]] = OrderedDict()
        self._most = most

    def find(self, digest: bytes) -> tuple[Fields, Spans] | None:
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
        return known

    def keep(self, digest: bytes, fields: Fields, spans: Spans) -> None:
        self._known[digest] = fields, spans
        while len(self._known) > self._most:
            self._known.popitem(last=False)


class Rest:
    """The rest of one body: what is known of it, or is to be kept."""

    def __init__(self, rests: Rests) -> None:
        self._rests = rests
        self._at = 0
        self._missed = False
        self.digest: bytes | None = None
        """Of its text; None where it is short."""

    def __call__(self, text: str, at: int) -> tuple[Fields, Spans] | None:
        if len(text) - at < _LEAST_REST:
            return None
        self._at = at
        self.digest = sha256(text[at:].encode()).digest()
        known = self._rests.find(self.digest)
        self._missed = known is None
        return (known[0], _moved(known[1], at)) if known else None

    def keep(self, fields: Fields, spans: Spans) -> None:
        """The fields of a body that was read to its end, where they were not known."""
        if self.digest is not None and self._missed:
            behind = {name: span for name, span in spans.items() if span[0] >= self._at}
            self._rests.keep(self.digest, {name: fields[name] for name in behind}, _moved(behind, -self._at))


def _moved(spans: Spans, by: int) -> Spans:
    return {name: (start + by, end + by) for name, (start, end) in spans.items()}


def marks_of(api: Api, text: str, body: bytes) -> Marks:
    """The hashes of a body, which says this text, at its marks."""
    step = _STEP
    while step * _MARKS < len(text):
        step *= 2
    running = sha256(api.encode())
    digests = []
    for piece in _pieces(text, body, step):
        running.update(piece)
        digests.append(running.copy().digest())
    return Marks(step, digests)


def _pieces(text: str, body: bytes, step: int) -> Iterator[bytes | memoryview]:
    whole = len(text) - len(text) % step
    if len(text) == len(body):
        view = memoryview(body)
        return (view[at : at + step] for at in range(0, whole, step))
    return (text[at : at + step].encode() for at in range(0, whole, step))
