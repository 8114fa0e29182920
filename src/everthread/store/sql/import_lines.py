"""Import threads from the lines of an export, after checking every field of every line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from msgspec import Struct, structs

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Node
from everthread.errors import StoreError, TranscriptError
from everthread.store.database import MAX_ID, Tx
from everthread.store.records import NewMessage, NewSession, SessionKind, new_id
from everthread.store.sql.accounts import record_usage
from everthread.store.sql.compactions import decode_record, encode_record
from everthread.store.sql.export_lines import (
    EXPORT_FORMAT,
    MALFORMED_LINE_ERRORS,
    ExportLine,
)
from everthread.store.sql.line_types import (
    CompactionLine,
    Line,
    MessageLine,
    NodeLine,
    OutputLine,
    PinLine,
    PlacesLine,
    SessionLine,
    StateLine,
    UsageLine,
)
from everthread.store.sql.session_rows import (
    insert_session,
    list_session_chain,
    lock_thread,
)
from everthread.store.sql.session_state import (
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
from everthread.store.value_codec import from_pico_dollars

if TYPE_CHECKING:
    from everthread.core.messages import Message

NumberedLine = tuple[int, Line]
L = TypeVar("L", bound=Struct)


def import_lines(tx: Tx, lines: Sequence[ExportLine], now: float) -> list[str]:
    threads: dict[str, None] = {}
    for thread_id, section_lines in _split_sections(lines):
        threads |= dict.fromkeys(_ThreadImport(tx, now, thread_id, section_lines).store())
    return list(threads)


def _split_sections(lines: Sequence[Any]) -> list[tuple[str, list[NumberedLine]]]:
    """Return the thread of each heading line with its lines, numbered for error messages."""
    sections: list[tuple[str, list[NumberedLine]]] = []
    for number, line in enumerate(lines, 1):
        if isinstance(line, dict) and line.get("type") == "everthread":
            if line.get("format") != EXPORT_FORMAT:
                raise TranscriptError(
                    f"format {line.get('format')!r} is unknown; this version reads {EXPORT_FORMAT}"
                )
            sections.append((str(line.get("thread")), []))
            continue
        if not sections:
            raise TranscriptError(
                "the first line must name the format; this is not an export of Everthread"
            )
        try:
            sections[-1][1].append((number, msgspec.convert(line, Line)))
        except msgspec.ValidationError as error:
            raise TranscriptError(f"line {number} cannot be imported: {error}") from None
    return sections


@dataclass(slots=True)
class _ThreadImport:
    """An import of the lines under one heading line."""

    tx: Tx
    now: float
    thread_id: str
    lines: list[NumberedLine]
    unstored_sessions: dict[str, SessionLine] = field(default_factory=dict)
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
            if isinstance(line, SessionLine):
                if line.id in self.unstored_sessions:
                    raise TranscriptError(f"session {line.id} is listed twice")
                self.unstored_sessions[line.id] = line
        self._apply_lines(SessionLine, self._import_session)
        if self.thread_id not in self.threads_by_session:
            raise TranscriptError(f"the thread {self.thread_id} has no session of that id")
        self._apply_lines(PlacesLine, self._assign_threads)
        self._apply_lines(MessageLine, self._import_message)
        self._apply_lines(PlacesLine, self._import_places)
        self._apply_lines(CompactionLine, self._import_compaction)
        self._apply_lines(UsageLine, self._import_usage)
        self._apply_lines(OutputLine, self._import_output)
        self._apply_lines(NodeLine, self._import_node)
        self._apply_lines(PinLine, self._import_pin)
        self._apply_lines(StateLine, self._import_state)
        threads = list(dict.fromkeys(self.threads_by_session.values()))
        for thread_id in threads:
            self._check_chain(thread_id)
            recount_thread(self.tx, thread_id)
            refresh_activity(self.tx, thread_id)
        return threads

    def _apply_lines(self, line_type: type[L], apply_line: Callable[[L], None]) -> None:
        for number, line in self.lines:
            if isinstance(line, line_type):
                try:
                    apply_line(line)
                except MALFORMED_LINE_ERRORS as error:
                    reason = f"it does not fit the others ({type(error).__name__}: {error})"
                    raise TranscriptError(f"line {number} cannot be imported: {reason}") from error

    def _import_session(self, line: SessionLine) -> None:
        """Store a session and, before it, those of its ancestors that are not stored yet."""
        unstored_lines: list[SessionLine] = []
        session_id: str | None = line.id
        while session_id in self.unstored_sessions:
            unstored_lines.append(self.unstored_sessions.pop(session_id))
            session_id = unstored_lines[-1].parent
        if any(ancestor.id == session_id for ancestor in unstored_lines):
            raise TranscriptError(f"session {session_id} is its own ancestor")
        for ancestor in reversed(unstored_lines):
            self._insert_session(ancestor)

    def _insert_session(self, line: SessionLine) -> None:
        kind = line.kind or self._guess_kind(line)
        values = {field.name: getattr(line, field.name) for field in dataclasses.fields(NewSession)}
        new = NewSession(**values | {"kind": kind})
        thread_id = new.id
        if kind in ("continuation", "reverted"):
            if line.parent is None:
                raise TranscriptError(f"session {line.id} continues none")
            thread_id = lock_thread(self.tx, line.parent)
        if not insert_session(self.tx, new, thread_id=thread_id, now=self.now):
            raise StoreError(
                f"session {new.id} is in this store already; delete its thread first, or leave it"
            )
        self.tx.run(
            "UPDATE sessions SET ended = ?, end_reason = ?, inherited_count = ? WHERE id = ?",
            (line.ended, line.end_reason, line.inherited_count, new.id),
        )
        self.threads_by_session[new.id] = thread_id
        self.branch_points[new.id] = line.branched_at

    def _guess_kind(self, line: SessionLine) -> SessionKind:
        """Guess a missing kind: a child continues its parent if the parent was compacted before the child began."""
        if line.parent is None:
            return "main"
        parent = self.tx.one("SELECT ended, end_reason FROM sessions WHERE id = ?", (line.parent,))
        continuation = self.tx.one(
            "SELECT 1 FROM sessions WHERE parent_id = ? AND kind = 'continuation'",
            (line.parent,),
        )
        if parent is None or parent[1] != "compression" or continuation is not None:
            return "subagent"
        if line.started is None:
            raise TranscriptError(f"session {line.id} has neither a kind nor a start")
        return "continuation" if line.started >= parent[0] else "subagent"

    def _check_chain(self, thread_id: str) -> None:
        """Refuse sessions that form no chain. Reopen the last session if its continuation was not exported."""
        chain = [session for session, _ in list_session_chain(self.tx, thread_id)]
        rows = self.tx.all(
            "SELECT id, end_reason FROM sessions WHERE thread_id = ? AND kind <> 'reverted'",
            (thread_id,),
        )
        reasons: dict[str, str | None] = dict(rows)
        if set(reasons) != set(chain) or any(
            reasons[session] != "compression" for session in chain[:-1]
        ):
            raise TranscriptError(f"the sessions of thread {thread_id} do not continue one another")
        if self.tx.one(
            "SELECT 1 FROM sessions WHERE thread_id = ? AND (inherited_count < 0 OR inherited_count > next_seq)",
            (thread_id,),
        ):
            raise TranscriptError(
                f"a session of thread {thread_id} inherited more messages than it shows"
            )
        if reasons[chain[-1]] == "compression":
            self.tx.run(
                "UPDATE sessions SET ended = NULL, end_reason = NULL WHERE id = ?",
                (chain[-1],),
            )

    def _assign_threads(self, line: PlacesLine) -> None:
        for number in (*line.messages, *line.inherited_history):
            self.threads_by_number.setdefault(number, self.threads_by_session[line.session])

    def _import_message(self, line: MessageLine) -> None:
        number = line.number
        if number in self.ids_by_number or number not in self.threads_by_number:
            raise TranscriptError(f"message {number} is listed twice, or is in no session")
        event = line.event or new_id()
        new = NewMessage(
            cast("Message", line.body),
            line.kind,
            event=event,
            tokens=line.tokens,
            origin=None if line.origin is None else self.ids_by_number[line.origin],
            created=line.created,
        )
        message = prepare_message(new)
        self.tools_by_call |= map_calls_to_tools(message.calls)
        message = add_tool_names(message, lambda call_id: self.tools_by_call.get(call_id, ""))
        message_id = insert_message(self.tx, self.threads_by_number[number], message, self.now)
        if message_id is None:
            raise TranscriptError(f"the event {event!r} is listed twice")
        self.ids_by_number[number] = message_id

    def _import_places(self, line: PlacesLine) -> None:
        for numbers in (line.messages, line.inherited_history):
            if len(set(numbers)) < len(numbers):
                raise TranscriptError(f"session {line.session} shows a message twice")
        first_inherited_seq = -len(line.inherited_history)
        placed_numbers = [
            *enumerate(line.messages),
            *enumerate(line.inherited_history, first_inherited_seq),
        ]
        self.tx.run_many(
            "INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)",
            [(line.session, seq, self.ids_by_number[number]) for seq, number in placed_numbers],
        )
        branch_point = self.branch_points[line.session]
        branched_at = None if branch_point is None else self.ids_by_number[branch_point]
        self.tx.run(
            "UPDATE sessions SET next_seq = ?, branched_at = ? WHERE id = ?",
            (len(line.messages), branched_at, line.session),
        )

    def _import_compaction(self, line: CompactionLine) -> None:
        covered_ids = [self.ids_by_number[number] for number in line.record.covered]
        record = decode_record(structs.asdict(line.record) | {"covered": covered_ids})
        self.tx.run(
            "INSERT INTO compactions (thread_id, parent_id, session_id, created, reverted_at, tokens_before, "
            "tokens_after, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.threads_by_session[line.session],
                line.parent,
                line.session,
                line.created,
                line.reverted,
                record.tokens_before,
                record.tokens_after,
                encode_record(record),
            ),
        )

    def _import_usage(self, line: UsageLine) -> None:
        usage = CanonicalUsage(
            input_tokens=line.input,
            output_tokens=line.output,
            cache_read_tokens=line.cache_read,
            cache_write_tokens=line.cache_write,
            reasoning_tokens=line.reasoning,
            cache_write_1h_tokens=line.raw.cache_write_1h,
            raw=line.raw.raw,
        )
        new = NewUsage(
            self._require_imported_session(line.session),
            line.model,
            usage=usage,
            task=line.task,
            cost=from_pico_dollars(line.pico_dollars),
            estimated=bool(line.estimated),
            event=line.event,
            created=line.created,
        )
        record_usage(self.tx, new, self.now)

    def _import_pin(self, line: PinLine) -> None:
        put_pin(self.tx, line.created, self.thread_id, line.text, max_pins=MAX_ID)

    def _import_output(self, line: OutputLine) -> None:
        put_output(
            self.tx,
            self.thread_id,
            line.text,
            compress_output(line.text),
            call_id=line.call_id,
            tool=line.tool,
            now=line.created,
        )

    def _import_node(self, line: NodeLine) -> None:
        sources = line.sources
        if line.level == 0:
            sources = [str(self.ids_by_number[int(source)]) for source in sources]
        values = structs.asdict(line) | {
            "thread": self.threads_by_session[self.thread_id],
            "first_message": self.ids_by_number.get(line.first_message, 0),
            "last_message": self.ids_by_number.get(line.last_message, 0),
            "sources": tuple(sources),
        }
        put_nodes(self.tx, [Node(**values)])

    def _import_state(self, line: StateLine) -> None:
        scope = self._require_imported_session(line.scope)
        put_state(self.tx, self.now, scope, line.key, line.value)

    def _require_imported_session(self, session_id: str) -> str:
        if session_id not in self.threads_by_session:
            raise TranscriptError(
                f"session {session_id} is not among the lines, but another line refers to it"
            )
        return session_id
