"""What was looked up, as text for a model: each place with its id, its turn and its time, and how to go on.

An answer begins with a line that names the tool, what was asked and the ids. That line is what stays of an answer that
grew old (`core.lookup.gist`), so it must say enough that nobody need ask again.
"""

from __future__ import annotations

from datetime import UTC, datetime

from everthread.core.lookup import Excerpt, Found, Passage

ASKED = 40
"""Characters of a query in the first line: with the ids of a page it fits into what stays."""


def found_text(  # noqa: PLR0913 - what the page is of, each by its name
    found: Found, query: str, *, tool: str, where: str, offset: int = 0, threads: bool = False
) -> str:
    """A page; what was not found is told so that nobody looks for it again. `threads`: name each place's thread."""
    asked = f"{tool} {query[:ASKED]!r}"
    if not found.excerpts and found.next is None:
        return _nothing(asked, where, offset)
    ids = " ".join(place.id for place in found.excerpts)
    kind = "found" if not found.near else "close, none with all these words"
    blocks = [f"{asked}: {len(found.excerpts)} {kind}: {ids}" if ids else f"{asked}: nothing found so far"]
    blocks += (f"{heading(place, threads=threads)}:\n{_with_turns(place)}" for place in found.excerpts)
    if found.next is None:
        blocks.append("[That was all.]")
    else:
        more = "There may be more" if ids else "Not all was looked through"
        blocks.append(f"[{more}; go on with offset {found.next}]")
    return "\n\n".join(blocks)


def _with_turns(place: Excerpt) -> str:
    """The place between the message before and the one after it: an answer is read with its question."""
    lines = [f"(before, {place.before})" if place.before else "", place.text]
    lines.append(f"(after, {place.after})" if place.after else "")
    return "\n".join(filter(None, lines))


def passage_text(passage: Passage, *, tool: str) -> str:
    """A part of an original, and where it goes on."""
    if passage.start >= passage.size:
        return (
            f"{tool} {passage.id}: it has {passage.size:,} characters, nothing at offset {passage.start:,} or beyond. "
            "That was all of it; do not go on."
        )
    left = passage.size - passage.end
    more = f"{left:,} more characters; go on with offset {passage.end}" if left else "That was all of it."
    span = f"characters {passage.start:,} to {passage.end:,} of {passage.size:,}"
    whose = f"{_whose(passage)}, " if passage.role else ""
    return f"{tool} {passage.id}: {whose}{span}\n\n{passage.text}\n\n[{more}]"


def about_text(passage: Passage, *, tool: str, reader: str) -> str:
    """How large an original is, whose, and how it begins. `reader`: the tool that reads it."""
    size = f"{passage.size:,} characters of {_whose(passage) or 'a tool'}; {reader} reads them."
    return f"{tool} {passage.id}: {size}\nIt begins:\n{passage.text}"


def heading(place: Excerpt, *, threads: bool = False) -> str:
    """`[message:12] user, turn 3, 2026-01-31 09:30 UTC`."""
    thread = f", thread {place.thread}" if threads else ""
    return f"[{place.id}] {_whose(place)}{thread}"


def moment(seconds: float) -> str:
    """A time in UTC, to the minute: a gateway's readers live in many places."""
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _whose(place: Excerpt | Passage) -> str:
    tool = place.tool[:60]
    if place.id.startswith("output:"):
        said = f"output of {tool or 'a tool'}"
    else:
        said = f"{place.role} ({tool})" if tool else place.role
    turn = "" if place.turn is None else f", turn {place.turn}"
    when = "" if place.created is None else f", {moment(place.created)}"
    return f"{said}{turn}{when}"


def _nothing(asked: str, where: str, offset: int) -> str:
    if offset:
        return f"{asked}: nothing more beyond offset {offset}. That was all; do not search for it again."
    return (
        f"{asked}: nothing was found. All messages and stored outputs of {where} were searched: it was never said "
        "there in these words. Do not search for the same again."
    )
