"""What an adapter and the bridge tell each other. One for another service is a `Carrier`, and whoever reads from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message that was let in."""

    chat: str
    """Each chat is a thread."""
    event: str
    """The service's id of it: the same one given again is answered once."""
    text: str
    reply: str = ""
    """Where the answer goes, as the carrier understands it."""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Outbound:
    """An answer on its way."""

    chat: str
    reply: str
    event: str
    thread: str
    turn: str
    state: str
    text: str


class NotDeliveredError(Exception):
    """The service did not take it. `final`: it never will; `after`: seconds it asks to wait."""

    def __init__(self, why: str, *, final: bool = False, after: float | None = None) -> None:
        super().__init__(why)
        self.final = final
        self.after = after


class Carrier(Protocol):
    """Takes answers to a service."""

    name: str
    platform: str

    async def deliver(self, answer: Outbound) -> None:
        """`NotDeliveredError` where it did not arrive."""
        ...
