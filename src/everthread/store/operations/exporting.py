"""A thread as lines of JSON. What was exported, imported and exported again is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from everthread.store.database import Tx
from everthread.store.operations import continuation, knowledge, outputs, sessions

FORMAT = 1
Line = dict[str, Any]


def export(tx: Tx, thread: str) -> Iterator[Line]:
    """Lines that hold everything of one thread. Messages are numbered anew, so that no database's ids leave it."""
    thread = sessions.thread_of(tx, thread)
    yield {"type": "everthread", "format": FORMAT, "thread": thread}
    found = sessions.of_thread(tx, thread)
    carried: dict[str, int] = dict(tx.all("SELECT id, carried FROM sessions WHERE thread_id = ?", (thread,)))
    numbers = _numbers(tx, thread)
    for session in found:
        line = dataclasses.asdict(session) | {"carried": carried[session.id]}
        line["branched_at"] = numbers.get(session.branched_at) if session.branched_at is not None else None
        del line["messages"], line["thread"]
        yield {"type": "session", **line}
    for message_id, number in numbers.items():
        yield _message(tx, message_id, number, numbers)
    for session in found:
        rows = tx.all("SELECT seq, message_id FROM places WHERE session_id = ? ORDER BY seq", (session.id,))
        shown = [numbers[message_id] for seq, message_id in rows if seq >= 0]
        taken_over = [numbers[message_id] for seq, message_id in rows if seq < 0]
        yield {"type": "places", "session": session.id, "messages": shown, "taken_over": taken_over}
    yield from _compactions(tx, thread, numbers)
    yield from _usage(tx, thread)
    yield from _outputs(tx, thread)
    yield from _nodes(tx, thread, numbers)
    yield from _state(tx, [session.id for session in found])


def _numbers(tx: Tx, thread: str) -> dict[int, int]:
    """Message id -> its number in the export, in the order of storing."""
    rows = tx.all(
        "SELECT id FROM messages WHERE thread_id = ? UNION SELECT p.message_id FROM places p "
        "JOIN sessions s ON s.id = p.session_id WHERE s.thread_id = ? ORDER BY 1",
        (thread, thread),
    )
    return {row[0]: number for number, row in enumerate(rows, 1)}


def _message(tx: Tx, message_id: int, number: int, numbers: Mapping[int, int]) -> Line:
    row = tx.one("SELECT event, kind, body, tokens, created, origin FROM messages WHERE id = ?", (message_id,))
    assert row is not None
    return {
        "type": "message", "number": number, "event": row[0], "kind": row[1], "tokens": row[3], "created": row[4],
        "origin": numbers.get(row[5]) if row[5] is not None else None, "body": sessions.from_json(row[2]),
    }  # fmt: skip


def _compactions(tx: Tx, thread: str, numbers: Mapping[int, int]) -> Iterator[Line]:
    for entry in continuation.compactions(tx, thread):
        record = dataclasses.asdict(entry.record)
        record["covered"] = [numbers[covered] for covered in entry.record.covered if covered in numbers]
        record["cost"] = None if entry.record.cost is None else str(entry.record.cost)
        times = {"created": entry.created, "reverted": entry.reverted}
        yield {"type": "compaction", "parent": entry.parent, "session": entry.session, **times, "record": record}


USAGE = (
    "event", "session", "model", "task", "input", "output", "cache_read", "cache_write", "reasoning", "pico_dollars",
    "estimated", "raw", "created",
)  # fmt: skip


def _usage(tx: Tx, thread: str) -> Iterator[Line]:
    for row in tx.all(
        "SELECT event, session_id, model, task, input, output, cache_read, cache_write, reasoning, pico_dollars, "
        "estimated, raw, created FROM usage WHERE thread_id = ? ORDER BY id",
        (thread,),
    ):
        yield {"type": "usage", **dict(zip(USAGE, row, strict=True)), "raw": sessions.from_json(row[11])}


def _outputs(tx: Tx, thread: str) -> Iterator[Line]:
    tenant = sessions.get(tx, thread).tenant
    for stored in outputs.of_thread(tx, thread):
        about = {"call_id": stored.call_id, "tool": stored.tool, "created": stored.created}
        yield {"type": "output", **about, "text": outputs.get(tx, stored.id, tenant)}


def _nodes(tx: Tx, thread: str, numbers: Mapping[int, int]) -> Iterator[Line]:
    for node in knowledge.nodes(tx, thread):
        line = {**dataclasses.asdict(node), "sources": list(node.sources)}
        for name in ("first_message", "last_message"):
            line[name] = numbers.get(line[name], 0)
        if node.level == 0:
            known = (numbers.get(int(source)) for source in node.sources)
            line["sources"] = [str(number) for number in known if number is not None]
        yield {"type": "node", **line}


def _state(tx: Tx, scopes: list[str]) -> Iterator[Line]:
    for scope in scopes:
        for row in tx.all("SELECT name, value FROM state WHERE scope = ? ORDER BY name", (scope,)):
            yield {"type": "state", "scope": scope, "key": row[0], "value": sessions.from_json(row[1])}
