"""Export threads as lines of JSON. Export, import and export give the same lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.database import Database, Row, Tx
from everthread.store.records import Session
from everthread.store.sql.compactions import list_compactions
from everthread.store.sql.session_rows import find_thread, load_session
from everthread.store.sql.session_state import list_nodes, list_pins
from everthread.store.sql.stored_outputs import list_outputs, load_output
from everthread.store.value_codec import decode_body, decode_json

P = ParamSpec("P")
T = TypeVar("T")
MALFORMED_LINE_ERRORS = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
)
"""Errors raised while a malformed line is read."""

EXPORT_FORMAT = 1
ExportLine = dict[str, Any]


def export_thread(tx: Tx, thread_id: str) -> list[ExportLine]:
    """Return a thread as lines of JSON. Messages are numbered from 1, independent of the database's ids."""
    return _ThreadExport(tx).make_lines(thread_id)[0]


def salvage_thread(
    tx: Tx, database: Database, thread_id: str
) -> tuple[list[ExportLine], list[str]]:
    return _ThreadExport(tx, database).make_lines(thread_id)


@dataclass(slots=True)
class _ThreadExport:
    """An export of one thread.

    With a `database`, which recognises damage, unreadable rows are skipped and listed; without one they raise an error.
    """

    tx: Tx
    database: Database | None = None
    unreadable: list[str] = field(default_factory=list)
    """Descriptions of the rows that could not be read."""

    def make_lines(self, thread_id: str) -> tuple[list[ExportLine], list[str]]:
        tx = self.tx
        thread_id = find_thread(self.tx, thread_id)
        sessions = self._load_sessions(thread_id)
        places = {session.id: self._load_places(session.id) for session, _ in sessions}
        numbers_by_id, message_lines = self._make_message_lines(thread_id, places)
        lines: list[ExportLine] = [
            {"type": "everthread", "format": EXPORT_FORMAT, "thread": thread_id}
        ]
        place_lines: list[ExportLine] = []
        for session, inherited_count in sessions:
            shown_ids = [message_id for seq, message_id in places[session.id] if seq >= 0]
            inherited_ids = [message_id for seq, message_id in places[session.id] if seq < 0]
            inherited_numbers = _list_numbers(shown_ids[:inherited_count], numbers_by_id)
            line = dataclasses.asdict(session) | {"inherited_count": len(inherited_numbers)}
            line["branched_at"] = numbers_by_id.get(session.branched_at or 0)
            del line["message_count"], line["thread"]
            lines.append({"type": "session", **line})
            place_lines.append(
                {
                    "type": "places",
                    "session": session.id,
                    "messages": _list_numbers(shown_ids, numbers_by_id),
                    "inherited_history": _list_numbers(inherited_ids, numbers_by_id),
                }
            )
        lines += message_lines + place_lines
        lines_by_subject = {
            "compactions": _make_compaction_lines(tx, thread_id, numbers_by_id),
            "accounts": _make_usage_lines(tx, thread_id),
            "stored outputs": _make_output_lines(tx, thread_id),
            "summary nodes": _make_node_lines(tx, thread_id, numbers_by_id),
            "pins": _make_pin_lines(tx, thread_id),
            "engine state": _make_state_lines(tx, list(places)),
        }
        for subject, subject_lines in lines_by_subject.items():
            lines += self._yield_readable_lines(subject, subject_lines)
        return lines, self.unreadable

    def _load_sessions(self, thread_id: str) -> list[tuple[Session, int]]:
        """Return the sessions with the number of messages that each inherited, in order."""
        rows = self._try_read(
            "sessions",
            self.tx.all,
            "SELECT id FROM sessions WHERE thread_id = ?",
            (thread_id,),
        )
        loaded = [
            self._try_read(f"session {row[0]}", self._load_session, row[0]) for row in rows or ()
        ]
        return sorted(
            (session_and_inherited for session_and_inherited in loaded if session_and_inherited),
            key=lambda session_and_inherited: (
                session_and_inherited[0].started,
                session_and_inherited[0].id,
            ),
        )

    def _load_session(self, session_id: str) -> tuple[Session, int]:
        inherited_count = self.tx.value(
            "SELECT inherited_count FROM sessions WHERE id = ?", (session_id,)
        )
        return load_session(self.tx, session_id), int(inherited_count)

    def _load_places(self, session_id: str) -> list[Row]:
        sql = "SELECT seq, message_id FROM places WHERE session_id = ? ORDER BY seq"
        return (
            self._try_read(f"the order of session {session_id}", self.tx.all, sql, (session_id,))
            or []
        )

    def _make_message_lines(
        self, thread_id: str, places: Mapping[str, Sequence[Row]]
    ) -> tuple[dict[int, int], list[ExportLine]]:
        """Return the number of each readable message by its id, and the lines. Skip messages that are in no session."""
        numbers_by_id: dict[int, int] = {}
        lines: list[ExportLine] = []
        placed_ids = {row[1] for session_places in places.values() for row in session_places}
        for message_id in sorted(placed_ids):
            subject = f"message {message_id} of thread {thread_id}"
            line = self._try_read(
                subject,
                _make_message_line,
                self.tx,
                message_id,
                number=len(lines) + 1,
                numbers_by_id=numbers_by_id,
            )
            if line is not None:
                numbers_by_id[message_id] = line["number"]
                lines.append(line)
        return numbers_by_id, lines

    def _yield_readable_lines(
        self, subject: str, lines: Iterator[ExportLine]
    ) -> Iterator[ExportLine]:
        """Yield the lines up to the first unreadable one."""
        while (line := self._try_read(subject, lambda: next(lines, None))) is not None:
            yield line

    def _try_read(
        self,
        subject: str,
        work: Callable[P, T],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> T | None:
        try:
            return work(*arguments, **keywords)
        except Exception as error:
            if self.database is None:
                raise
            cause = (
                error if isinstance(error, MALFORMED_LINE_ERRORS) else self.database.explain(error)
            )
            if not isinstance(
                cause,
                (
                    *MALFORMED_LINE_ERRORS,
                    StoreDamagedError,
                    UnknownIdError,
                    AssertionError,
                ),
            ):
                raise
            self.unreadable.append(
                f"{subject}: {' '.join(str(error).split()) or type(error).__name__}"
            )
            return None


def _list_numbers(ids: Sequence[int], numbers_by_id: Mapping[int, int]) -> list[int]:
    """Return the numbers of the messages that the export has."""
    return [numbers_by_id[message_id] for message_id in ids if message_id in numbers_by_id]


def _make_message_line(
    tx: Tx, message_id: int, number: int, numbers_by_id: Mapping[int, int]
) -> ExportLine:
    row = tx.one(
        "SELECT event, kind, body, tokens, created, origin FROM messages WHERE id = ?",
        (message_id,),
    )
    assert row is not None
    return {
        "type": "message",
        "number": number,
        "event": row[0],
        "kind": row[1],
        "tokens": row[3],
        "created": row[4],
        "origin": numbers_by_id.get(row[5]) if row[5] is not None else None,
        "body": decode_body(row[2]),
    }


def _make_compaction_lines(
    tx: Tx, thread_id: str, numbers_by_id: Mapping[int, int]
) -> Iterator[ExportLine]:
    for compaction in list_compactions(tx, thread_id):
        record = dataclasses.asdict(compaction.record)
        record["covered"] = _list_numbers(compaction.record.covered, numbers_by_id)
        record["cost"] = None if compaction.record.cost is None else str(compaction.record.cost)
        times = {"created": compaction.created, "reverted": compaction.reverted_at}
        yield {
            "type": "compaction",
            "parent": compaction.parent,
            "session": compaction.session,
            **times,
            "record": record,
        }


def _make_usage_lines(tx: Tx, thread_id: str) -> Iterator[ExportLine]:
    columns = (
        "event, session_id, model, task, input, output, cache_read, cache_write, reasoning, pico_dollars, estimated, "
        "raw, created"
    )
    names = columns.replace("session_id", "session").split(", ")
    for row in tx.all(f"SELECT {columns} FROM usage WHERE thread_id = ? ORDER BY id", (thread_id,)):
        line = dict(zip(names, row, strict=True))
        yield {"type": "usage", **line, "raw": decode_json(line["raw"])}


def _make_output_lines(tx: Tx, thread_id: str) -> Iterator[ExportLine]:
    tenant = load_session(tx, thread_id).tenant
    for output in list_outputs(tx, thread_id):
        call_fields = {
            "call_id": output.call_id,
            "tool": output.tool,
            "created": output.created,
        }
        yield {
            "type": "output",
            **call_fields,
            "text": load_output(tx, output.id, tenant=tenant),
        }


def _make_node_lines(
    tx: Tx, thread_id: str, numbers_by_id: Mapping[int, int]
) -> Iterator[ExportLine]:
    for node in list_nodes(tx, thread_id):
        line = {**dataclasses.asdict(node), "sources": list(node.sources)}
        for name in ("first_message", "last_message"):
            line[name] = numbers_by_id.get(line[name], 0)
        if node.level == 0:
            source_numbers = (numbers_by_id.get(int(source)) for source in node.sources)
            line["sources"] = [str(number) for number in source_numbers if number is not None]
        yield {"type": "node", **line}


def _make_pin_lines(tx: Tx, thread_id: str) -> Iterator[ExportLine]:
    for pin in list_pins(tx, thread_id):
        yield {"type": "pin", "text": pin.text, "created": pin.created}


def _make_state_lines(tx: Tx, scopes: list[str]) -> Iterator[ExportLine]:
    for scope in scopes:
        for row in tx.all("SELECT name, value FROM state WHERE scope = ? ORDER BY name", (scope,)):
            yield {
                "type": "state",
                "scope": scope,
                "key": row[0],
                "value": decode_json(row[1]),
            }
