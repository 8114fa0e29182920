"""One request as the manager sees it, from its arrival to its answer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.conversation.options import SessionOptions
from everthread.core.budget import Budget
from everthread.core.calibration import Calibration
from everthread.core.exchange import Request
from everthread.core.rhythm import Rhythm
from everthread.gateway.base import Incoming
from everthread.gateway.covering import replacement_change
from everthread.gateway.identity import History
from everthread.gateway.noting import note_change, note_of, takes_blocks
from everthread.gateway.rewrites import replaced
from everthread.gateway.slicing import Element, Sliced, spliced
from everthread.gateway.thrashing import Pause
from everthread.gateway.tracing import Expected, Place
from everthread.providers.output_cap import FIELDS
from everthread.store.models import Rewrite

STATEFUL = ("previous_response_id", "conversation", "context_management")
"""Fields by which the provider keeps or changes the history itself: such a request is never rewritten."""
_MOST_TURNS = 4_096
_MOST_THREADS = 5_000


@dataclass(slots=True)
class ThreadMemory:
    """What one process remembers of a thread; none of it is needed to go on."""

    calibration: Calibration = field(default_factory=Calibration)
    futile: int = 0
    """Below this size no compaction is tried: the last one could make nothing smaller."""
    marked: tuple[bytes, int] | None = None
    """What the last request began with, and where its last cache mark was."""
    guessed: int | None = None
    """A smaller window than the known one, after an error that stated none."""
    pause: Pause = field(default_factory=Pause)
    rhythm: Rhythm = field(default_factory=Rhythm)
    slim: bool = False
    """A request had too many bytes: what was made smaller then is used whatever the tokens."""

    def dump(self) -> dict[str, Any]:
        """What another process goes on with."""
        return {**self.calibration.dump(), "pause": self.pause.dump(), "rhythm": self.rhythm.dump()}

    @classmethod
    def load(cls, state: Any) -> ThreadMemory:
        known = state if isinstance(state, Mapping) else {}
        pause, rhythm = Pause.load(known.get("pause")), Rhythm.load(known.get("rhythm"))
        return cls(Calibration.load(state), pause=pause, rhythm=rhythm)


@dataclass(slots=True)
class Turn:
    """A request that was read."""

    incoming: Incoming
    sliced: Sliced
    first: int
    """How many messages at the start are the system prompt."""
    history: History
    frame: Request
    sizes: list[int]
    fixed: int
    """Tokens of system prompt and tools."""
    place: Place
    memory: ThreadMemory
    window: int = 0
    expected: Expected | None = None
    """Its end, on its way into the store."""
    record: asyncio.Task[Place] | None = None
    kept: bool = False
    """It is in the store, and its place certain."""
    used: Rewrite | None = None
    ready: Rewrite | None = None
    estimate: int = 0
    """Tokens of what was sent, uncorrected."""
    cap: int | None = None
    """A lower output cap than the client's."""
    told: dict[str, str] = field(default_factory=dict)
    """For the client."""
    caps: int = 0
    compactions: int = 0
    decision: str = ""
    """Whether compacting pays now, in one line; empty where nobody asked."""
    slimmed: bool = False
    relieved: int = 0
    """The prompt without the rewrite that took effect with this request, in tokens as the provider counts."""
    expanded: bool = False
    """It referred to an earlier answer, which was put in: it never goes as it came."""

    @property
    def model(self) -> str:
        return self.frame.model

    @property
    def elements(self) -> Sequence[Element]:
        """The client's messages, without the system prompt."""
        return self.sliced.elements[self.first :]

    def elements_from(self, place: int) -> Sequence[Element]:
        """Of the client's messages those from this one on."""
        return self.sliced.elements[self.first + place :]

    @property
    def size(self) -> int:
        """Tokens of the client's messages, uncorrected."""
        return sum(self.sizes)

    @property
    def stateful(self) -> bool:
        return any(self.sliced.fields.get(name) is not None for name in STATEFUL)

    @property
    def rewritable(self) -> bool:
        return self.incoming.mode == "managed" and not self.stateful

    @property
    def asked_output(self) -> int | None:
        """The output cap the client set."""
        stated = (self.sliced.fields.get(name) for name in FIELDS)
        return next((value for value in stated if isinstance(value, int) and not isinstance(value, bool)), None)

    def budget(self, options: SessionOptions) -> Budget:
        """Room is left for the answer the client asks for, up to half the window: a larger cap is lowered instead."""
        asked = self.asked_output
        cap = asked if asked and asked > 0 else options.max_tokens
        own = options.for_model(self.model)
        return replace(own, max_tokens=cap and min(cap, max(self.window // 2, 1))).budget(self.window)

    def pairs(self) -> list[tuple[Any, str]]:
        return [(element.value, self.sliced.of(element)) for element in self.elements]

    def replaced_values(self, used: Rewrite) -> list[Any]:
        """The messages of a rewrite."""
        return [value for value, _ in replaced(used)]

    def text(self) -> str:
        """The body with the rewrite in its place."""
        if self.used is None:
            return self.sliced.text
        changes = [replacement_change(self.sliced, self.first, self.used.length, self.used.replacement.decode())]
        note, incoming = note_of(self.used.state), self.incoming
        if note:
            blocks = takes_blocks(incoming.api, self.model, incoming.upstream)
            noted = note_change(incoming.api, self.sliced, self.first, note, blocks=blocks)
            changes += [noted] if noted else []
        return spliced(self.sliced.text, changes)


class Turns:
    """The requests under way, by themselves: what a client does not wait for is forgotten in time."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Incoming, Turn]] = OrderedDict()

    def add(self, incoming: Incoming, turn: Turn) -> None:
        """What is made of a request as it came."""
        self._known[id(incoming)] = incoming, turn
        while len(self._known) > _MOST_TURNS:
            self._known.popitem(last=False)

    def get(self, incoming: Incoming) -> Turn | None:
        known, turn = self._known.get(id(incoming), (None, None))
        return turn if known is incoming else None

    def pop(self, incoming: Incoming) -> Turn | None:
        turn = self.get(incoming)
        if turn is not None:
            del self._known[id(incoming)]
        return turn


class Memories:
    def __init__(self) -> None:
        self._known: OrderedDict[str, ThreadMemory] = OrderedDict()

    def get(self, thread: str) -> ThreadMemory | None:
        known = self._known.get(thread)
        if known is not None:
            self._known.move_to_end(thread)
        return known

    def begin(self, thread: str, state: Mapping[str, Any] | None) -> ThreadMemory:
        """A thread that is met the first time, with what was stored of it."""
        made = self._known[thread] = ThreadMemory.load(state)
        while len(self._known) > _MOST_THREADS:
            self._known.popitem(last=False)
        return made
