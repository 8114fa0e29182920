"""What goes wrong on demand: one fault by a script, or faults by a seeded plan."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from everthread.core.exchange import Reply
from everthread.errors import InputError

Kind = Literal[
    "rate_limit",
    "server_error",
    "overloaded",
    "overflow",
    "payload_too_large",
    "hang",
    "delay",
    "slow",
    "reset",
    "truncated",
    "empty",
    "no_usage",
    "wrong_usage",
    "huge_reasoning",
    "stream_overflow",
    "stream_error",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
ANSWERED: frozenset[Kind] = frozenset({"delay", "slow", "no_usage", "wrong_usage", "huge_reasoning"})
"""Faults with which the client still gets the whole reply."""

_WORDS = "This is the beginning of an answer whose end nobody will read, because it is going to be cut off. " * 4


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    rate_limit, server_error, overloaded, payload_too_large: an error instead of an answer (429, 500, 529, 413).
    overflow: the error of a prompt that does not fit, whatever the prompt is.
    hang: nothing for `seconds`, or until the client goes away. delay: the answer, after `seconds`.
    slow: a stream whose events come `seconds` apart.
    reset: the connection is reset after `after` events, or before the body where nothing is streamed.
    truncated: the body breaks off in the middle of its JSON; a stream ends after `after` events.
    empty: a reply without a choice, item or block. no_usage, wrong_usage, huge_reasoning: `tokens` of nonsense.
    stream_overflow, stream_error: after `after` events of a stream with status 200, an error event; where nothing
    is streamed, the error itself.
    """

    kind: Kind
    reply: Reply | str = _WORDS
    """What would have been said, where something is."""
    seconds: float = 60.0
    after: int = 3
    tokens: int = 1_000_000
    retry_after: float | None = None
    """What the header of an error says, in seconds."""
    message: str = ""
    """Other words for the error."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"fault {self.kind!r} is unknown; use one of: {', '.join(KINDS)}")


@dataclass(slots=True)
class FaultPlan:
    """Faults at random, the same ones for the same seed: each kind with its rate, from 0 to 1, per request."""

    rates: Mapping[Kind, float]
    seed: int = 0
    seconds: float = 0.05
    """For how long a fault of the plan hangs or delays."""
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if not 0 <= rate <= 1:
                raise InputError(f"the rate of fault {kind} is {rate}; it must be from 0 to 1")
            Fault(kind)
        self._random = random.Random(self.seed)  # noqa: S311  a plan that can be repeated, no secret

    def next(self) -> Fault | None:
        """What goes wrong with the next request."""
        dice = self._random.random()
        for kind, rate in self.rates.items():
            dice -= rate
            if dice < 0:
                return Fault(kind, seconds=self.seconds, after=self._random.randint(1, 6))
        return None


def parse_fault(text: str) -> tuple[Kind, float]:
    """A kind and its rate from `KIND[=RATE]`, as the command line has it; without a rate, every request."""
    name, _, rate = text.partition("=")
    kind = next((kind for kind in KINDS if kind == name), None)
    if kind is None:
        raise InputError(f"--fault {text!r}: {name!r} is unknown; use one of: {', '.join(KINDS)}")
    try:
        return kind, float(rate) if rate else 1.0
    except ValueError:
        raise InputError(f"--fault {text!r}: {rate!r} is no rate from 0 to 1") from None
