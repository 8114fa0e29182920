"""Import threads from the lines of an export, after checking every field of every line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.errors import StoreError, TranscriptError
from everthread.store.database import MAX_ID, Tx
from everthread.store.records import (
    MessageKind,
    NewMessage,
    NewSession,
    SessionKind,
    new_id,
)
from everthread.store.sql.accounts import record_usage
from everthread.store.sql.compactions import decode_record, encode_record
from everthread.store.sql.export_lines import (
    EXPORT_FORMAT,
    MALFORMED_LINE_ERRORS,
    ExportLine,
)
from everthread.store.sql.session_rows import (
    insert_session,
    list_session_chain,
    lock_thread,
)
from everthread.store.sql.session_state import (
    decode_node,
    put_nodes,
    put_pin,
    put_state,
)
from everthread.store.sql.stored_messages import (
    add_tool_names,
    insert_message,
    map_calls_to_tools,
    prepare_message,
)
from everthread.store.sql.stored_outputs import compress_output, put_output
from everthread.store.sql.thread_rows import recount_thread, refresh_activity
from everthread.store.usage_records import NewUsage
from everthread.store.value_codec import clean_text, from_pico_dollars

NumberedLine = tuple[int, ExportLine]
VALUE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: (
        isinstance(value, str) and clean_text(value) == value
    ),  # every database stores it unchanged
    "text": lambda value: isinstance(value, str),
    "count": lambda value: type(value) is int and 0 <= value < MAX_ID,
    "integer": lambda value: isinstance(value, int) and -MAX_ID < value < MAX_ID,
    "moment": lambda value: (
        type(value) in (int, float) and abs(value) < 1e15
    ),  # no calendar goes farther
    "object": lambda value: isinstance(value, dict),
    "anything": lambda _: True,
}
LineShape = dict[str, str]
"""The fields of a line by the kind of their values: the name of a check, also with `or null` after it or `list of`
before it. A field with `?` may be absent."""
LINE_SHAPES: dict[str, LineShape] = {
    "session": {
        "name": "id tenant? platform? user? model? client? client_session?",
        "name or null": "parent? kind? end_reason?",
        "text": "title?",
        "anything": "system?",
        "moment or null": "started? ended?",
        "count": "carried?",
        "count or null": "branched_at?",
    },
    "message": {
        "count": "number",
        "object": "body",
        "name": "kind?",
        "name or null": "event?",
        "count or null": "tokens? origin?",
        "moment or null": "created?",
    },
    "places": {"name": "session", "list of count": "messages taken_over?"},
    "compaction": {
        "name": "parent session",
        "moment": "created",
        "moment or null": "reverted",
        "object": "record",
    },
    "usage": {
        "name": "session model task event",
        "count": "input output cache_read cache_write reasoning",
        "integer or null": "pico_dollars",
        "integer": "estimated",
        "moment": "created",
        "object": "raw",
    },
    "output": {"text": "text call_id tool", "moment": "created"},
    "node": {
        "name": "id",
        "count": "level tokens covered_tokens first_message last_message first_turn last_turn",
        "text": "body author",
        "moment": "since until",
        "list of name": "sources",
    },
    "pin": {"text": "text", "moment": "created"},
    "state": {"name": "scope key", "anything": "value"},
}
NESTED_SHAPES: dict[tuple[str, str], LineShape] = {
    ("compaction", "record"): {
        "list of count": "covered",
        "count": "tokens_before tokens_after",
        "text": "summary? author? reason?",
        "object": "figures?",
        "list of text": "warnings?",
        "text or null": "focus? cost?",
        "moment": "duration?",
    },
    ("usage", "raw"): {"anything": "raw", "count": "cache_write_1h"},
}
"""The shapes of objects in a field of a line."""


def check_line(line: ExportLine, shape: LineShape) -> None:
    """Refuse a line that lacks a field or has a wrong one. Ignore additional fields."""
    for value_kind, field_names in shape.items():
        for field_name in field_names.split():
            name = field_name.rstrip("?")
            if name not in line:
                if name == field_name:
                    raise TranscriptError(f"it has no {name!r}")
            elif not _is_valid_value(value_kind, line[name]):
                text = repr(line[name])
                raise TranscriptError(
                    f"{name!r} cannot be {text if len(text) <= 60 else text[:60] + '…'}"
                )


def _is_valid_value(value_kind: str, value: Any) -> bool:
    if value_kind.endswith(" or null"):
        return value is None or VALUE_CHECKS[value_kind.removesuffix(" or null")](value)
    if value_kind.startswith("list of "):
        return isinstance(value, list) and all(
            map(VALUE_CHECKS[value_kind.removeprefix("list of ")], value)
        )
    return VALUE_CHECKS[value_kind](value)


def import_lines(tx: Tx, lines: Sequence[ExportLine], now: float) -> list[str]:
    threads: dict[str, None] = {}
    for thread, section_lines in _split_sections(lines):
        threads |= dict.fromkeys(_ThreadImport(tx, now, thread, section_lines).store())
    return list(threads)


def _split_sections(lines: Sequence[Any]) -> list[tuple[str, list[NumberedLine]]]:
    """Return the thread of each heading line with its lines, numbered for error messages."""
    sections: list[tuple[str, list[NumberedLine]]] = []
    for number, line in enumerate(lines, 1):
        kind = line.get("type") if isinstance(line, dict) else None
        if kind == "everthread":
            if line.get("format") != EXPORT_FORMAT:
                raise TranscriptError(
                    f"format {line.get('format')!r} is unknown; this version reads {EXPORT_FORMAT}"
                )
            sections.append((str(line.get("thread")), []))
        elif not sections:
            raise TranscriptError(
                "the first line must name the format; this is not an export of Everthread"
            )
        elif not isinstance(kind, str) or kind not in LINE_SHAPES:
            raise TranscriptError(f"line {number}: a line of type {kind!r} is unknown")
        else:
            _check_numbered_line(number, line, kind)
            sections[-1][1].append((number, line))
    return sections


def _check_numbered_line(number: int, line: ExportLine, kind: str) -> None:
    try:
        check_line(line, LINE_SHAPES[kind])
        for (line_kind, key), shape in NESTED_SHAPES.items():
            if line_kind == kind:
                check_line(line[key], shape)
    except TranscriptError as error:
        raise TranscriptError(f"line {number} cannot be imported: {error}") from None


@dataclass(slots=True)
class _ThreadImport:
    """An import of the lines under one heading line."""

    tx: Tx
    now: float
    thread: str
    lines: list[NumberedLine]
    unstored_sessions: dict[str, ExportLine] = field(default_factory=dict)
    """The lines of sessions that are not stored yet, by session id."""
    threads_by_session: dict[str, str] = field(default_factory=dict)
    """The thread of each session."""
    branch_points: dict[str, int | None] = field(default_factory=dict)
    """The number of the message at which each session branched."""
    threads_by_number: dict[int, str] = field(default_factory=dict)
    """The thread that each message is stored in, by the message's number."""
    ids_by_number: dict[int, int] = field(default_factory=dict)
    """The id of each message in this store, by the message's number."""
    tools_by_call: dict[str, str] = field(default_factory=dict)
    """The name of the tool of each call, by the call's id."""

    def store(self) -> list[str]:
        for _, line in self.lines:
            if (
                line["type"] == "session"
                and self.unstored_sessions.setdefault(line["id"], line) is not line
            ):
                raise TranscriptError(f"session {line['id']} is listed twice")
        self._apply_lines("session", self._import_session)
        if self.thread not in self.threads_by_session:
            raise TranscriptError(f"the thread {self.thread} has no session of that id")
        self._apply_lines("places", self._assign_threads)
        appliers = {
            "message": self._import_message,
            "places": self._import_places,
            "compaction": self._import_compaction,
            "usage": self._import_usage,
            "output": self._import_output,
            "node": self._import_node,
            "pin": self._import_pin,
            "state": self._import_state,
        }
        for kind, apply_line in appliers.items():
            self._apply_lines(kind, apply_line)
        threads = list(dict.fromkeys(self.threads_by_session.values()))
        for thread in threads:
            self._check_chain(thread)
            recount_thread(self.tx, thread)
            refresh_activity(self.tx, thread)
        return threads

    def _apply_lines(self, kind: str, apply_line: Callable[[ExportLine], None]) -> None:
        for number, line in self.lines:
            if line["type"] == kind:
                try:
                    apply_line(line)
                except MALFORMED_LINE_ERRORS as error:
                    reason = f"it does not fit the others ({type(error).__name__}: {error})"
                    raise TranscriptError(f"line {number} cannot be imported: {reason}") from error

    # Sessions

    def _import_session(self, line: ExportLine) -> None:
        """Store a session and, before it, those of its ancestors that are not stored yet."""
        unstored_lines: list[ExportLine] = []
        session_id = line["id"]
        while session_id in self.unstored_sessions:
            unstored_lines.append(self.unstored_sessions.pop(session_id))
            session_id = unstored_lines[-1].get("parent")
        if any(ancestor["id"] == session_id for ancestor in unstored_lines):
            raise TranscriptError(f"session {session_id} is its own ancestor")
        for ancestor in reversed(unstored_lines):
            self._insert_session(ancestor)

    def _insert_session(self, line: ExportLine) -> None:
        kind: SessionKind = line.get("kind") or self._guess_kind(line)
        if kind not in get_args(SessionKind):
            raise TranscriptError(f"session {line['id']} is of the unknown kind {kind!r}")
        names = {field.name for field in dataclasses.fields(NewSession)} - {"kind"}
        new = NewSession(
            kind=kind, **{name: value for name, value in line.items() if name in names}
        )
        is_in_thread_of_parent = kind in ("continuation", "reverted")
        thread = lock_thread(self.tx, line["parent"]) if is_in_thread_of_parent else new.id
        if not insert_session(self.tx, new, thread=thread, now=self.now):
            raise StoreError(
                f"session {new.id} is in this store already; delete its thread first, or leave it"
            )
        self.tx.run(
            "UPDATE sessions SET ended = ?, end_reason = ?, inherited_count = ? WHERE id = ?",
            (line.get("ended"), line.get("end_reason"), line.get("carried", 0), new.id),
        )
        self.threads_by_session[new.id] = thread
        self.branch_points[new.id] = line.get("branched_at")

    def _guess_kind(self, line: ExportLine) -> SessionKind:
        """Guess a missing kind: a child continues its parent if the parent was compacted before the child began."""
        if line.get("parent") is None:
            return "main"
        parent = self.tx.one(
            "SELECT ended, end_reason FROM sessions WHERE id = ?", (line["parent"],)
        )
        continuation = self.tx.one(
            "SELECT 1 FROM sessions WHERE parent_id = ? AND kind = 'continuation'",
            (line["parent"],),
        )
        starts_after_parent = (
            parent is not None and parent[1] == "compression" and line["started"] >= parent[0]
        )
        return "continuation" if starts_after_parent and not continuation else "subagent"

    def _check_chain(self, thread: str) -> None:
        """Refuse sessions that form no chain. Reopen the last session if its continuation was not exported."""
        chain = [session for session, _ in list_session_chain(self.tx, thread)]
        rows = self.tx.all(
            "SELECT id, end_reason FROM sessions WHERE thread_id = ? AND kind <> 'reverted'",
            (thread,),
        )
        reasons: dict[str, str | None] = dict(rows)
        if set(reasons) != set(chain) or any(
            reasons[session] != "compression" for session in chain[:-1]
        ):
            raise TranscriptError(f"the sessions of thread {thread} do not continue one another")
        if self.tx.one(
            "SELECT 1 FROM sessions WHERE thread_id = ? AND (inherited_count < 0 OR inherited_count > next_seq)",
            (thread,),
        ):
            raise TranscriptError(
                f"a session of thread {thread} inherited more messages than it shows"
            )
        if reasons[chain[-1]] == "compression":
            self.tx.run(
                "UPDATE sessions SET ended = NULL, end_reason = NULL WHERE id = ?",
                (chain[-1],),
            )

    # Messages

    def _assign_threads(self, line: ExportLine) -> None:
        for number in (*line["messages"], *line.get("taken_over", ())):
            self.threads_by_number.setdefault(number, self.threads_by_session[line["session"]])

    def _import_message(self, line: ExportLine) -> None:
        number = line["number"]
        kind = line.get("kind", "message")
        if (
            number in self.ids_by_number
            or number not in self.threads_by_number
            or kind not in get_args(MessageKind)
        ):
            raise TranscriptError(
                f"message {number} is listed twice, is in no session, or has an unknown kind"
            )
        origin = None if line.get("origin") is None else self.ids_by_number[line["origin"]]
        event = line.get("event") or new_id()
        new = NewMessage(
            line["body"],
            kind,
            event=event,
            tokens=line.get("tokens"),
            origin=origin,
            created=line.get("created"),
        )
        prepared_message = prepare_message(new)
        self.tools_by_call |= map_calls_to_tools(prepared_message.calls)
        prepared_message = add_tool_names(
            prepared_message, lambda call_id: self.tools_by_call.get(call_id, "")
        )
        message_id = insert_message(
            self.tx, self.threads_by_number[number], prepared_message, self.now
        )
        if message_id is None:
            raise TranscriptError(f"the event {event!r} is listed twice")
        self.ids_by_number[number] = message_id

    def _import_places(self, line: ExportLine) -> None:
        session = line["session"]
        shown_messages = line["messages"]
        inherited_messages = line.get("taken_over", [])
        if len(set(shown_messages)) < len(shown_messages) or len(set(inherited_messages)) < len(
            inherited_messages
        ):
            raise TranscriptError(f"session {session} shows a message twice")
        rows = [
            (session, seq, self.ids_by_number[number]) for seq, number in enumerate(shown_messages)
        ]
        rows += [
            (session, seq - len(inherited_messages), self.ids_by_number[number])
            for seq, number in enumerate(inherited_messages)
        ]
        self.tx.run_many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)
        branch_point = self.branch_points[session]
        self.tx.run(
            "UPDATE sessions SET next_seq = ?, branched_at = ? WHERE id = ?",
            (
                len(shown_messages),
                None if branch_point is None else self.ids_by_number[branch_point],
                session,
            ),
        )

    # Records beside the messages

    def _import_compaction(self, line: ExportLine) -> None:
        covered_ids = [self.ids_by_number[number] for number in line["record"]["covered"]]
        record = decode_record({"cost": None, **line["record"], "covered": covered_ids})
        self.tx.run(
            "INSERT INTO compactions (thread_id, parent_id, session_id, created, reverted_at, tokens_before, "
            "tokens_after, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.threads_by_session[line["session"]],
                line["parent"],
                line["session"],
                line["created"],
                line["reverted"],
                record.tokens_before,
                record.tokens_after,
                encode_record(record),
            ),
        )

    def _import_usage(self, line: ExportLine) -> None:
        usage = CanonicalUsage(
            input_tokens=line["input"],
            output_tokens=line["output"],
            cache_read_tokens=line["cache_read"],
            cache_write_tokens=line["cache_write"],
            reasoning_tokens=line["reasoning"],
            cache_write_1h_tokens=line["raw"]["cache_write_1h"],
            raw=line["raw"]["raw"],
        )
        new = NewUsage(
            self._require_imported_session(line["session"]),
            line["model"],
            usage=usage,
            task=line["task"],
            cost=from_pico_dollars(line["pico_dollars"]),
            estimated=bool(line["estimated"]),
            event=line["event"],
            created=line["created"],
        )
        record_usage(self.tx, new, self.now)

    def _import_pin(self, line: ExportLine) -> None:
        put_pin(self.tx, line["created"], self.thread, line["text"], max_pins=MAX_ID)

    def _import_output(self, line: ExportLine) -> None:
        content = compress_output(line["text"])
        call_fields = {"call_id": line["call_id"], "tool": line["tool"]}
        put_output(
            self.tx,
            self.thread,
            line["text"],
            content,
            **call_fields,
            now=line["created"],
        )

    def _import_node(self, line: ExportLine) -> None:
        record = {name: value for name, value in line.items() if name != "type"}
        record |= {
            name: self.ids_by_number.get(line[name], 0)
            for name in ("first_message", "last_message")
        }
        record["thread"] = self.threads_by_session[self.thread]
        if line["level"] == 0:
            record["sources"] = [str(self.ids_by_number[int(source)]) for source in line["sources"]]
        put_nodes(self.tx, [decode_node(record)], None)

    def _import_state(self, line: ExportLine) -> None:
        scope = self._require_imported_session(line["scope"])
        put_state(self.tx, self.now, scope, line["key"], line["value"])

    def _require_imported_session(self, session: str) -> str:
        if session not in self.threads_by_session:
            raise TranscriptError(
                f"session {session} is not among the lines, but another line refers to it"
            )
        return session
