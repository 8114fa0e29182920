"""Finding again what was said: the values a search gives, and which tools do nothing but look things up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

SearchMode = Literal["text", "regex"]
SearchScope = Literal["thread", "all"]
"""This thread, or every thread of its tenant."""

_LOOKUP_TOOL = re.compile(
    r"(?:.*[^a-z0-9])?everthread[^a-z0-9]+(?:search|expand|status|pin|lcm_[a-z]{1,40})|recall|lcm_[a-z]{1,40}"
)
GIST = 200
"""Characters that stay of an old answer."""
LONGEST = 21_000
"""No answer of ours has more characters: what does comes from somebody else's tool of such a name."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Words as they stand there, without secrets: of whom, when, and under which id the whole can be read."""

    id: str
    """`message:12` or `output:0123456789abcdef`."""
    thread: str
    turn: int | None
    """The user's how manieth message it belongs to, from 1; None where that is not known."""
    role: str
    tool: str
    created: float
    text: str
    before: str = ""
    """How the message before it begins, with who said it; empty where none is shown."""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A page of what a search found."""

    excerpts: tuple[Excerpt, ...]
    next: int | None
    """The offset of the next page; None: that was all."""
    near: bool = False
    """No place holds all that was asked for; these are the closest."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of an original, characters `start` to `end` of `size`."""

    id: str
    thread: str
    turn: int | None
    role: str
    tool: str
    created: float | None
    text: str
    start: int
    end: int
    size: int


class Lookup(Protocol):
    """Everything that was said in a thread, and where it is allowed in the tenant's others."""

    async def search(  # noqa: PLR0913 - what a search may be narrowed by, each by its name
        self,
        text: str,
        *,
        mode: SearchMode = "text",
        scope: SearchScope = "thread",
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        limit: int = 8,
        offset: int = 0,
    ) -> Found:
        """Places that hold the words, else those closest to them; or that match the pattern.

        `path`: of calls that name it and what they gave. `InputError` for a pattern that cannot be used.
        """
        ...

    async def read(self, wanted: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
        """A part of a message or stored output, by its id; `UnknownIdError` for one that is not there."""
        ...

    async def turn_of(self, message: int) -> int | None:
        """The turn of a message of this thread."""
        ...


def is_lookup(tool: str) -> bool:
    """Whether a tool only looks up what was said: its words and its answers are no finding of their own."""
    return _LOOKUP_TOOL.fullmatch(tool.lower()) is not None


def is_answer(tool: str, text: str) -> bool:
    """Whether a result is a lookup's answer: it is never stored and cited, for it would have to be looked up again."""
    return len(text) <= LONGEST and is_lookup(tool)


def gist(answer: str, limit: int = GIST) -> str:
    """What stays of an old answer: its first line, which names what was asked and the ids."""
    line = answer.lstrip().partition("\n")[0].rstrip()
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def lookup_tools(names: Iterable[str]) -> tuple[str, ...]:
    """Those of these tools by which a client can search and read here, as it calls them; `lcm_…` do the same."""
    ours = (name for name in names if is_lookup(name) and "lcm_" not in name.lower())
    return tuple(sorted(name for name in ours if name.lower().endswith(("search", "expand", "recall"))))
