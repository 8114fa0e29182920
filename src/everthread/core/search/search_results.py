"""Lookup in stored text: the values a search returns, and how a model reads them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

_HEADING_PATTERN = re.compile(r"^\[(?=(?:message|output):)", re.MULTILINE)
SearchMode = Literal["text", "regex"]
SearchScope = Literal["thread", "all"]
"""This thread, or every thread of its tenant."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The beginning of the message before or after an excerpt: one line, redacted."""

    message: int
    role: str
    tool: str
    text: str

    def __str__(self) -> str:
        return f"{self.speaker}: {self.text}"

    @property
    def speaker(self) -> str:
        """The role. A tool result also has the tool's name; the text of a call contains the name already."""
        if self.tool and self.role != "assistant":
            return f"{self.role} ({self.tool[:60]})"
        return self.role

    def as_line(self, shown_messages: Collection[int | None]) -> str:
        """Return a line for people, without the text if this message is one of the `shown_messages`."""
        text = " (also a match)" if self.message in shown_messages else f": {self.text}"
        return f"#{self.message} {self.speaker}{text}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A redacted excerpt of an original, with its author, its time, and the id by which the whole can be read."""

    id: str
    """`message:12` or `output:0123456789abcdef`."""
    thread: str
    turn: int | None
    """The number of the user's message it belongs to, from 1, or None if unknown."""
    role: str
    tool: str
    created: float
    text: str
    before: str = ""
    """The beginning of the previous message, with its speaker, or an empty string if it is not shown."""
    after: str = ""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of search results."""

    excerpts: tuple[Excerpt, ...]
    next: int | None
    """The offset of the next page, or None if this is the last."""
    is_approximate: bool = False
    """Whether no text contains all the words and these are the closest ones."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a stored message or output: the characters from `start` to `end`, of `size` in all."""

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
        """Return excerpts that contain all the words, else the closest ones; in mode `regex`, those that match.

        `path`: only calls that name it, and their results. Raise `InputError` for a pattern that cannot be used.
        """
        ...

    async def read(self, item_id: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
        """Return a part of a message or stored output, by its id. Raise `UnknownIdError` for an unknown id."""
        ...

    async def turn_of(self, message: int) -> int | None:
        """Return the turn of a message of this thread."""
        ...


SHOWN_QUERY_CHARS = 40
"""Characters of a query in the first line, so that the ids of the page survive when an old answer is shortened."""


def format_page(  # noqa: PLR0913 - what the page is of, each by its name
    page: SearchPage,
    query: str,
    *,
    tool: str,
    searched_place: str,
    offset: int = 0,
    show_threads: bool = False,
    unsearched_texts: str = "",
) -> str:
    """Return a page as text. An empty page states what was searched, so that the model does not search again.

    `show_threads`: name the threads. `unsearched_texts`: other texts that exist but were not searched.
    """
    search = f"{tool} {query[:SHOWN_QUERY_CHARS]!r}"
    if not page.excerpts and page.next is None:
        return _format_empty_page(search, searched_place, offset, unsearched_texts)
    ids = " ".join(excerpt.id for excerpt in page.excerpts)
    kind = "found" if not page.is_approximate else "close, none with all these words"
    found = f"{len(page.excerpts)} {kind}: {ids}" if ids else "nothing found so far"
    blocks = [f"{search}: {found}"]
    # Show the messages before and after it too: an answer is read with its question.
    for excerpt in page.excerpts:
        line_before = f"(before, {excerpt.before})\n" if excerpt.before else ""
        line_after = f"\n(after, {excerpt.after})" if excerpt.after else ""
        blocks.append(
            f"{format_heading(excerpt, show_threads=show_threads)}:\n"
            f"{line_before}{quote_excerpt(excerpt.text)}{line_after}"
        )
    if page.next is None:
        blocks.append("[That was all.]")
    else:
        remainder = "There may be more" if ids else "Not all was looked through"
        blocks.append(f"[{remainder}; go on with offset {page.next}]")
    return "\n\n".join(blocks)


def quote_excerpt(text: str) -> str:
    """Escape lines that look like the heading of another excerpt, so that a tool's text cannot pose as the user's."""
    return _HEADING_PATTERN.sub(r"\\[", text)


def format_passage(passage: Passage, *, tool: str) -> str:
    """Return a part of a message or output as text, with the offset at which to continue."""
    if passage.start >= passage.size:
        return (
            f"{tool} {passage.id}: it has {passage.size:,} characters, nothing at offset {passage.start:,} or beyond. "
            "That was all of it; do not go on."
        )
    remaining = passage.size - passage.end
    remainder = "That was all of it."
    if remaining:
        remainder = f"{remaining:,} more characters; go on with offset {passage.end}"
    span = f"characters {passage.start:,} to {passage.end:,} of {passage.size:,}"
    source = f"{_describe_source(passage)}, " if passage.role else ""
    return f"{tool} {passage.id}: {source}{span}\n\n{passage.text}\n\n[{remainder}]"


def describe_passage(passage: Passage, *, tool: str, reader: str) -> str:
    """Return the size, the author and the beginning of an original. `reader`: the tool that reads it."""
    size = f"{passage.size:,} characters of {_describe_source(passage) or 'a tool'}; {reader} reads them."
    return f"{tool} {passage.id}: {size}\nIt begins:\n{passage.text}"


def format_heading(excerpt: Excerpt, *, show_threads: bool = False) -> str:
    """Return the heading of an excerpt, such as `[message:12] user, turn 3, 2026-01-31 09:30 UTC`."""
    thread = f", thread {excerpt.thread}" if show_threads else ""
    return f"[{excerpt.id}] {_describe_source(excerpt)}{thread}"


def format_utc_time(seconds: float) -> str:
    """Return a time in UTC, to the minute: readers of a gateway may be in any time zone."""
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _describe_source(source: Excerpt | Passage) -> str:
    tool = source.tool[:60]
    if source.id.startswith("output:"):
        author = f"output of {tool or 'a tool'}"
    else:
        author = f"{source.role} ({tool})" if tool else source.role
    turn = "" if source.turn is None else f", turn {source.turn}"
    time = "" if source.created is None else f", {format_utc_time(source.created)}"
    return f"{author}{turn}{time}"


def _format_empty_page(search: str, searched_place: str, offset: int, unsearched_texts: str) -> str:
    if offset:
        return f"{search}: nothing more beyond offset {offset}. That was all; do not search for it again."
    other = f" Not searched: {unsearched_texts}." if unsearched_texts else ""
    return (
        f"{search}: nothing was found. Searched: all messages and stored outputs of {searched_place}.{other} "
        "Do not repeat this search."
    )
