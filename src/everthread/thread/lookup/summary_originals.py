"""Find and read the original messages that a summary covers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from everthread.core.search.search_results import Passage, format_heading
from everthread.core.secrets.redaction import redact_part
from everthread.core.types import Node
from everthread.errors import UnknownIdError
from everthread.store.records import CompactionRecord, StoredMessage
from everthread.store.search.snippets import RAW_SECRET_MARGIN
from everthread.store.store import Store
from everthread.thread.lookup.excerpts import make_excerpt
from everthread.thread.lookup.lookup_cache import (
    MESSAGES_PER_QUERY,
    LookupCache,
    OriginalsLayout,
)

MESSAGE_ID_PATTERN = re.compile(r"(?:message:|#)?(\d{1,18})")
COMPACTION_ID_PATTERN = re.compile(r"compaction:(\d{1,18})")
NODE_ID_PATTERN = re.compile(r"n[0-9a-f]{12}")


class SummaryOriginals:
    """The original messages that the summaries of one thread cover."""

    def __init__(self, store: Store, tenant: str | None, thread: str, cache: LookupCache) -> None:
        self._store = store
        self._tenant = tenant
        self._thread = thread
        self._cache = cache

    async def find_layout(self, summary_id: str) -> OriginalsLayout | None:
        """Return the layout of a summary's originals, or None if the id does not name a summary."""
        key = (self._thread, summary_id)
        layout = self._cache.layouts.get(key)
        if layout is None:
            ids = await self._find_covered(summary_id)
            if ids is None:
                return None
            layout = self._cache.layouts[key] = await self._make_layout(ids)
        return layout

    async def _make_layout(self, ids: Collection[int]) -> OriginalsLayout:
        """Return the layout of these messages, in order. Read only the part of the history that holds them."""
        turns = await self._cache.load_turns(self._store, self._thread)
        wanted_ids = set(ids)
        positions = [index for index, message_id in enumerate(turns) if message_id in wanted_ids]
        sizes: dict[int, int] = {}
        first, last = (positions[0], positions[-1] + 1) if positions else (0, 0)
        for start in range(first, last, MESSAGES_PER_QUERY):
            for stored_message in await self._store.load_history(
                self._thread, start=start, limit=min(MESSAGES_PER_QUERY, last - start)
            ):
                if stored_message.id in wanted_ids:
                    sizes[stored_message.id] = len(
                        _render_block(stored_message, self._thread, turns[stored_message.id])
                    )
        return OriginalsLayout(tuple(sizes), tuple(sizes.values()))

    async def read(
        self,
        summary_id: str,
        layout: OriginalsLayout,
        *,
        start: int,
        max_chars: int,
    ) -> Passage:
        """Return a part of the covered messages, in order, each under its heading. Read only the messages shown."""
        turns = await self._cache.load_turns(self._store, self._thread, needed_ids=layout.ids)
        blocks: list[str] = []
        total = 0
        for message_id, size in zip(layout.ids, layout.sizes, strict=True):
            first = max(start - total, 0)
            last = min(start + max_chars - total, size)
            total += size
            if first < last:
                stored_message = await self._store.load_message(message_id, tenant=self._tenant)
                blocks.append(
                    redact_part(
                        _render_block(stored_message, self._thread, turns[message_id]),
                        first,
                        last,
                        margin=RAW_SECRET_MARGIN,
                    )
                )
        end = min(total, start + max_chars)
        return Passage(
            summary_id,
            self._thread,
            turn=None,
            role="",
            tool="",
            created=None,
            text="".join(blocks),
            start=min(start, total),
            end=end,
            size=total,
        )

    async def _find_covered(self, summary_id: str) -> list[int] | None:
        """Return the ids of the messages that a summary covers, or None if the id does not name a summary."""
        if NODE_ID_PATTERN.fullmatch(summary_id):
            nodes = {node.id: node for node in await self._store.state.list_nodes(self._thread)}
            if summary_id not in nodes:
                raise UnknownIdError(f"this conversation has no node {summary_id}")
            return await self._find_originals(_list_leaves(nodes, summary_id))
        records = await self._store.list_compactions(self._thread)
        compaction = await self._find_compaction(summary_id, records)
        if compaction is None:
            return None
        # A compaction of a proxied client covers all messages before it.
        if not compaction.record.covered:
            history = await self._store.load_history(self._thread)
            return [
                stored_message.id
                for stored_message in history
                if stored_message.created <= compaction.created
            ]
        earlier_records = (
            record for record in records if record.id < compaction.id and record.reverted_at is None
        )
        return await self._find_originals(
            [
                number
                for record in (*earlier_records, compaction)
                for number in record.record.covered
            ]
        )

    async def _find_compaction(
        self, summary_id: str, records: Sequence[CompactionRecord]
    ) -> CompactionRecord | None:
        """Return the compaction that a summary's id names, or None if the id names something else."""
        compaction_match = COMPACTION_ID_PATTERN.fullmatch(summary_id)
        if compaction_match is not None:
            number = int(compaction_match[1])
            named_record = next((item for item in records if item.id == number), None)
            if named_record is None:
                raise UnknownIdError(
                    f"this thread has no {summary_id}; `status` lists its compactions"
                )
            return named_record
        message_match = MESSAGE_ID_PATTERN.fullmatch(summary_id)
        if message_match is None:
            return None
        message = await load_message(self._store, int(message_match[1]), self._tenant)
        if message is None or message.kind != "summary":
            return None
        return next((item for item in records if item.session == message.session), None)

    async def _find_originals(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of the original messages; a shortened copy is replaced by its original."""
        originals: set[int] = set()
        for message_id in dict.fromkeys(ids):
            if await self._cache.find_turn(self._store, self._thread, message_id) is not None:
                originals.add(message_id)
            elif (
                stored_message := await load_message(self._store, message_id, self._tenant)
            ) is not None:
                originals.add(
                    message_id if stored_message.origin is None else stored_message.origin
                )
        return sorted(originals)


async def load_message(store: Store, message_id: int, tenant: str | None) -> StoredMessage | None:
    """Return a message of the tenant, or None if it does not exist."""
    try:
        return await store.load_message(message_id, tenant=tenant)
    except UnknownIdError:
        return None


def _render_block(stored_message: StoredMessage, thread: str, turn: int) -> str:
    excerpt = make_excerpt(stored_message, thread, turn)
    return f"{format_heading(excerpt)}:\n{excerpt.text}\n\n"


def _list_leaves(nodes: Mapping[str, Node], node_id: str) -> list[int]:
    """Return the ids of the messages under a node, in order."""
    messages: list[int] = []
    pending_ids = [node_id]
    visited: set[str] = set()
    while pending_ids:
        node = nodes.get(pending_ids.pop())
        if node is None or node.id in visited:
            continue
        visited.add(node.id)
        if node.level == 0:
            messages += (int(source) for source in node.sources if source.isdecimal())
        else:
            pending_ids += node.sources
    return sorted(messages)
