"""What a summary stands for: the messages it covers, word for word, in parts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from everthread.conversation.lookup import LONGEST_PART, MARGIN, PAGE, StoreLookup
from everthread.conversation.remembered import Layout
from everthread.core.found import heading
from everthread.core.lookup import Excerpt, Passage
from everthread.core.nodes import Node
from everthread.core.redaction import redact_part
from everthread.errors import InputError, UnknownIdError
from everthread.store.base import CompactionRecord, StoredMessage
from everthread.store.indexing import searchable_text

_COMPACTION = re.compile(r"compaction:(\d{1,18})")
_MESSAGE = re.compile(r"(?:message:|#)?(\d{1,18})")
_NODE = re.compile(r"n[0-9a-f]{12}")


class ThreadGraph:
    """`engines.base.Graph` of a lookup's thread."""

    def __init__(self, lookup: StoreLookup) -> None:
        self._lookup = lookup

    async def nodes(self) -> Sequence[Node]:
        thread = self._lookup.thread
        if thread is None:
            raise InputError("a node belongs to a thread; name it")
        return await self._lookup.store.nodes(thread)

    async def expand(self, wanted: str, *, offset: int, limit: int) -> Passage:
        return await expand(self._lookup, wanted, offset=offset, limit=limit)


async def expand(lookup: StoreLookup, wanted: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
    """A part of an original: of a message or output by its id, or of all that a summary covers.

    A summary is named as `compaction:12`, by the id of its message, or as a node of the thread's graph.
    """
    given = wanted.strip()
    layout = await _layout(lookup, given)
    if layout is None:
        return await lookup.read(given, offset=offset, limit=limit)
    return await _passage(lookup, given, layout, max(0, offset), max(1, min(limit, LONGEST_PART)))


async def _layout(lookup: StoreLookup, wanted: str) -> Layout | None:
    """Where the originals of a summary stand; None for what is no summary. Worked out once."""
    if lookup.thread is None:
        if _COMPACTION.fullmatch(wanted) or _NODE.fullmatch(wanted):
            raise InputError(f"name the thread of {wanted}")
        return None
    facts = lookup.known.of(lookup.thread)
    if wanted in facts.layouts:
        return facts.layouts[wanted]
    ids = await _covered_by(lookup, lookup.thread, wanted)
    return None if ids is None else facts.keep(wanted, await _laid_out(lookup, lookup.thread, ids))


async def _laid_out(lookup: StoreLookup, thread: str, ids: Sequence[int]) -> Layout:
    """The messages in the order they were said. Only the part of the history they stand in is read."""
    turns = await lookup.turns(thread)
    wanted = set(ids)
    places = [place for place, number in enumerate(turns) if number in wanted]
    sizes: dict[int, int] = {}
    first, last = (places[0], places[-1] + 1) if places else (0, 0)
    for start in range(first, last, PAGE):
        for stored in await lookup.store.history(thread, start=start, limit=min(PAGE, last - start)):
            if stored.id in wanted:
                sizes[stored.id] = len(_block(stored, thread, turns[stored.id]))
    return Layout(tuple(sizes), tuple(sizes.values()))


async def _passage(lookup: StoreLookup, wanted: str, layout: Layout, start: int, most: int) -> Passage:
    """A part of the covered messages one after the other, each under its heading; only those it shows are read."""
    thread = lookup.thread or ""
    turns = await lookup.turns(thread, upto=layout.ids)
    shown: list[str] = []
    ends = itertools.accumulate(layout.sizes)
    for number, size, end in zip(layout.ids, layout.sizes, ends, strict=True):
        first, last = max(start - (end - size), 0), min(start + most - (end - size), size)
        if first < last:
            stored = await lookup.store.message(number, tenant=lookup.tenant)
            shown.append(redact_part(_block(stored, thread, turns[number]), first, last, margin=MARGIN))
    total = layout.size
    return Passage(
        wanted, thread, None, "", "", None, "".join(shown), min(start, total), min(total, start + most), total
    )  # fmt: skip


def _block(stored: StoredMessage, thread: str, turn: int) -> str:
    role = str(stored.body.get("role", ""))
    place = Excerpt(f"message:{stored.id}", thread, turn or None, role, "", stored.created, "")
    return f"{heading(place)}:\n{searchable_text(stored.body)}\n\n"


# Which messages a summary covers


async def _covered_by(lookup: StoreLookup, thread: str, wanted: str) -> list[int] | None:
    """The messages behind a summary; None for what is no summary."""
    compaction, number = _COMPACTION.fullmatch(wanted), _MESSAGE.fullmatch(wanted)
    if _NODE.fullmatch(wanted):
        nodes = {node.id: node for node in await lookup.store.nodes(thread)}
        if wanted not in nodes:
            raise UnknownIdError(f"this conversation has no node {wanted}")
        return await _originals(lookup, _leaves(nodes, wanted))
    if compaction is not None:
        records = await lookup.store.compactions(thread)
        chosen = next((record for record in records if record.id == int(compaction[1])), None)
        if chosen is None:
            raise UnknownIdError(f"this thread has no {wanted}; `status` lists its compactions")
        return await _behind(lookup, records, chosen)
    if number is not None:
        return await _behind_message(lookup, thread, int(number[1]))
    return None


async def _behind_message(lookup: StoreLookup, thread: str, number: int) -> list[int] | None:
    """What the summary stands for that this message is; None for any other message."""
    try:
        stored = await lookup.store.message(number, tenant=lookup.tenant)
    except UnknownIdError:
        return None
    if stored.kind != "summary":
        return None
    records = await lookup.store.compactions(thread)
    chosen = next((record for record in records if record.session == stored.session), None)
    return None if chosen is None else await _behind(lookup, records, chosen)


def _leaves(nodes: Mapping[str, Node], wanted: str) -> list[int]:
    """Message ids under a node."""
    found: list[int] = []
    waiting = [wanted]
    seen: set[str] = set()
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None or node.id in seen:
            continue
        seen.add(node.id)
        if node.level == 0:
            found += (int(source) for source in node.sources if source.isdecimal())
        else:
            waiting += node.sources
    return sorted(found)


async def _behind(lookup: StoreLookup, records: Sequence[CompactionRecord], chosen: CompactionRecord) -> list[int]:
    """All that a compaction's summary stands for: what it covered, and what those it goes on from did."""
    if not chosen.record.covered:  # a proxied client's: it stands for what was said before it
        said = await lookup.store.history(lookup.thread or "")
        return [stored.id for stored in said if stored.created <= chosen.created]
    before = (record for record in records if record.id < chosen.id and record.reverted is None)
    return await _originals(lookup, [number for record in (*before, chosen) for number in record.record.covered])


async def _originals(lookup: StoreLookup, ids: Sequence[int]) -> list[int]:
    """The messages themselves, where a smaller form of one stands among these."""
    found: set[int] = set()
    for number in dict.fromkeys(ids):
        if await lookup.turn_of(number) is not None:
            found.add(number)
            continue
        try:
            stored = await lookup.store.message(number, tenant=lookup.tenant)
        except UnknownIdError:
            continue
        found.add(number if stored.origin is None else stored.origin)
    return sorted(found)
