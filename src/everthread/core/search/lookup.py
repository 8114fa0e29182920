"""Lookup in stored text: the values a search returns, and how a model reads them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

_HEADING = re.compile(r"^\[(?=(?:message|output):)", re.MULTILINE)
SearchMode = Literal["text", "regex"]
SearchScope = Literal["thread", "all"]
"""This thread, or every thread of its tenant."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """How the message before or after a place begins: one line, redacted."""

    message: int
    role: str
    tool: str
    text: str

    def __str__(self) -> str:
        return f"{self.speaker}: {self.text}"

    @property
    def speaker(self) -> str:
        """Who said it, and of which tool a result is; a call names its tool itself."""
        return (
            f"{self.role} ({self.tool[:60]})"
            if self.tool and self.role != "assistant"
            else self.role
        )

    def as_line(self, found: Collection[int | None]) -> str:
        """For a person. `found`: the messages of the page; one of those is named only, as its text is shown there."""
        text = " (also a match)" if self.message in found else f": {self.text}"
        return f"#{self.message} {self.speaker}{text}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """An exact excerpt, redacted: its author, its time, and the id under which all of it can be read."""

    id: str
    """`message:12` or `output:0123456789abcdef`."""
    thread: str
    turn: int | None
    """The number of the user's message it belongs to, from 1; None if unknown."""
    role: str
    tool: str
    created: float
    text: str
    before: str = ""
    """The beginning of the previous message, with its speaker; empty if it is not shown."""
    after: str = ""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of search results."""

    excerpts: tuple[Excerpt, ...]
    next: int | None
    """The offset of the next page; None: that was all."""
    near: bool = False
    """No text holds all the words; these are the closest."""


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
    """All messages of a thread and, if allowed, of the tenant's other threads."""

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
    ) -> SearchPage:
        """Return places that hold the words, else those closest to them; or that match the pattern.

        `path`: only calls that name it, and their results. Raise `InputError` for a pattern that cannot be used.
        """
        ...

    async def read(
        self, wanted: str, *, offset: int = 0, limit: int = 8_000
    ) -> Passage:
        """Return a part of a message or stored output, by its id; `UnknownIdError` for one that is not there."""
        ...

    async def turn_of(self, message: int) -> int | None:
        """Return the turn of a message of this thread."""
        ...


SHOWN_QUERY_CHARS = 40
"""Characters of a query in the first line: with the ids of a page it fits into what stays."""


def page_text(  # noqa: PLR0913 - what the page is of, each by its name
    page: SearchPage,
    query: str,
    *,
    tool: str,
    where: str,
    offset: int = 0,
    threads: bool = False,
    unsearched: str = "",
) -> str:
    """Return a page as text. A page without results says where it looked, so that the search is not repeated.

    `threads`: name the threads. `unsearched`: which other texts exist that were not searched.
    """
    search = f"{tool} {query[:SHOWN_QUERY_CHARS]!r}"
    if not page.excerpts and page.next is None:
        return _nothing_found(search, where, offset, unsearched)
    ids = " ".join(excerpt.id for excerpt in page.excerpts)
    kind = "found" if not page.near else "close, none with all these words"
    blocks = [
        f"{search}: {len(page.excerpts)} {kind}: {ids}"
        if ids
        else f"{search}: nothing found so far"
    ]
    # Between the messages before and after it: an answer is read with its question.
    for excerpt in page.excerpts:
        line_before = f"(before, {excerpt.before})\n" if excerpt.before else ""
        line_after = f"\n(after, {excerpt.after})" if excerpt.after else ""
        blocks.append(
            f"{heading(excerpt, threads=threads)}:\n{line_before}{quote_excerpt(excerpt.text)}{line_after}"
        )
    if page.next is None:
        blocks.append("[That was all.]")
    else:
        remainder = "There may be more" if ids else "Not all was looked through"
        blocks.append(f"[{remainder}; go on with offset {page.next}]")
    return "\n\n".join(blocks)


def quote_excerpt(text: str) -> str:
    """Return the excerpt, in which no line can be taken for the heading of another: a tool's text is not the user's."""
    return _HEADING.sub(r"\\[", text)


def passage_text(passage: Passage, *, tool: str) -> str:
    """Return a part of an original, and the offset of the rest."""
    if passage.start >= passage.size:
        return (
            f"{tool} {passage.id}: it has {passage.size:,} characters, nothing at offset {passage.start:,} or beyond. "
            "That was all of it; do not go on."
        )
    remaining = passage.size - passage.end
    remainder = (
        f"{remaining:,} more characters; go on with offset {passage.end}"
        if remaining
        else "That was all of it."
    )
    span = f"characters {passage.start:,} to {passage.end:,} of {passage.size:,}"
    source = f"{_describe_source(passage)}, " if passage.role else ""
    return f"{tool} {passage.id}: {source}{span}\n\n{passage.text}\n\n[{remainder}]"


def about_text(passage: Passage, *, tool: str, reader: str) -> str:
    """How large an original is, whose, and how it begins. `reader`: the tool that reads it."""
    size = f"{passage.size:,} characters of {_describe_source(passage) or 'a tool'}; {reader} reads them."
    return f"{tool} {passage.id}: {size}\nIt begins:\n{passage.text}"


def heading(excerpt: Excerpt, *, threads: bool = False) -> str:
    """`[message:12] user, turn 3, 2026-01-31 09:30 UTC`."""
    thread = f", thread {excerpt.thread}" if threads else ""
    return f"[{excerpt.id}] {_describe_source(excerpt)}{thread}"


def moment(seconds: float) -> str:
    """Return a time in UTC, to the minute: a gateway's readers live in many places."""
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _describe_source(source: Excerpt | Passage) -> str:
    tool = source.tool[:60]
    if source.id.startswith("output:"):
        author = f"output of {tool or 'a tool'}"
    else:
        author = f"{source.role} ({tool})" if tool else source.role
    turn = "" if source.turn is None else f", turn {source.turn}"
    time = "" if source.created is None else f", {moment(source.created)}"
    return f"{author}{turn}{time}"


def _nothing_found(search: str, where: str, offset: int, unsearched: str) -> str:
    if offset:
        return f"{search}: nothing more beyond offset {offset}. That was all; do not search for it again."
    other = f" Not searched: {unsearched}." if unsearched else ""
    return (
        f"{search}: nothing was found. Searched: all messages and stored outputs of {where}.{other} "
        "Do not repeat this search."
    )
