"""A request as it is read: whose history it is and how large, of which only what is new costs more than a hash."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from everthread.core.exchange import Api, Request
from everthread.core.tokens import TokenCounter
from everthread.gateway.beginnings import Beginnings, Rest, Rests, marks_of
from everthread.gateway.rewrite import frame_of
from everthread.gateway.sizing import Sizes
from everthread.gateway.slicing import LIST_FIELD, Layout, Sliced, slice_text
from everthread.gateway.threads import History, IdentityCache, build_history, leading_system

_MOST_FRAMES = 256


@dataclass(frozen=True, slots=True)
class Read:
    """What a request says."""

    sliced: Sliced
    first: int
    """How many messages at the start are the system prompt."""
    history: History
    frame: Request
    sizes: list[int]
    """Tokens of each message behind them."""
    fixed: int
    """Tokens of system prompt and tools."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is kept of a body that was read: everything but its text."""

    layout: Layout
    first: int
    history: History
    model: str
    sizes: array[int]


class Reader:
    def __init__(self, sizes: Sizes) -> None:
        self._pieces = IdentityCache()
        self._sizes = sizes
        self._beginnings: Beginnings[_Known] = Beginnings()
        self._rests = Rests()
        self._frames: OrderedDict[bytes, tuple[Request, int]] = OrderedDict()

    def read(self, api: Api, body: bytes) -> Read:
        """Take a request apart. `WireError` where it is none."""
        text = body.decode()
        marks = marks_of(api, text, body)
        known, alike = self._beginnings.find(marks) or (None, 0)
        begun = known.layout.until(LIST_FIELD[api], alike) if known else None
        rest = Rest(self._rests)
        sliced = slice_text(text, api, begun, rest)
        rest.keep(sliced.fields, sliced.spans)
        count = len(begun.ends) if begun else 0
        if known is not None and known.first >= count:  # nothing of the conversation itself
            known = None
        first = known.first if known else leading_system(sliced.elements)
        past = self._history(api, sliced, first, known, count)
        frame, fixed = self._frame(api, sliced, first, rest.digest)
        sizes: list[int] = []
        if known is not None and known.model == frame.model:
            sizes = known.sizes[: count - first].tolist()
        done = len(sizes)
        sizes += self._sizes.pieces(api, frame.model, past.pieces[done:], sliced.elements[first + done :])
        self._beginnings.keep(marks, _Known(sliced.layout, first, past, frame.model, array("Q", sizes)))
        return Read(sliced, first, past, frame, sizes, fixed)

    def _history(self, api: Api, sliced: Sliced, first: int, known: _Known | None, count: int) -> History:
        """Of a body whose first `count` messages are the known one's."""
        before = known.history.until(count - first) if known else build_history(())
        new = sliced.elements[count if known else first :]
        return before.extended([self._pieces.read(api, element) for element in new])

    def _frame(self, api: Api, sliced: Sliced, first: int, rest: bytes | None) -> tuple[Request, int]:
        """Model, system prompt and tools, and their tokens."""
        start, end = sliced.spans[LIST_FIELD[api]]
        lead = sliced.elements[:first]
        before, behind = sliced.text[:start].encode(), rest or sliced.text[end:].encode()
        key = _digest(api.encode(), before, behind, *(element.text.encode() for element in lead))
        known = self._frames.get(key)
        if known is not None:
            self._frames.move_to_end(key)
            return known
        frame = frame_of(api, sliced, lead)
        counter = TokenCounter(frame.model)
        made = frame, counter.request(frame.messages, system=frame.system, tools=frame.tools)
        self._frames[key] = made
        if len(self._frames) > _MOST_FRAMES:
            self._frames.popitem(last=False)
        return made


def _digest(*parts: bytes) -> bytes:
    """Of parts of which none can be taken for another's."""
    running = sha256()
    for part in parts:
        running.update(len(part).to_bytes(8, "little") + part)
    return running.digest()
