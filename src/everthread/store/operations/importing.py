"""Lines of JSON made into threads again: an export of Everthread, or another program's sessions in that form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, get_args

from everthread.core.usage import CanonicalUsage
from everthread.errors import StoreError, TranscriptError
from everthread.store.base import MessageKind, NewMessage, NewSession, NewUsage, SessionKind, new_id
from everthread.store.database import Tx
from everthread.store.operations import (
    accounts,
    continuation,
    knowledge,
    line_shapes,
    messages,
    outputs,
    sessions,
    threads,
)
from everthread.store.operations.exporting import FORMAT, Line
from everthread.store.operations.line_shapes import SHAPES
from everthread.store.operations.prepared import prepare
from everthread.store.operations.tools import names_of, with_tool

Numbered = tuple[int, Line]
GARBLED = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading a line of another form raises."""


def import_lines(tx: Tx, lines: Sequence[Line], now: float) -> list[str]:
    """Store exported threads; their ids. A session that is there already is refused, and nothing is changed."""
    found: dict[str, None] = {}
    for root, section in _sections(lines):
        found |= dict.fromkeys(_Section(tx, now, root, section).store())
    return list(found)


def _sections(lines: Sequence[Any]) -> list[tuple[str, list[Numbered]]]:
    """Each heading's thread and lines, numbered for the person who has to find one."""
    found: list[tuple[str, list[Numbered]]] = []
    for number, line in enumerate(lines, 1):
        kind = line.get("type") if isinstance(line, dict) else None
        if kind == "everthread":
            if line.get("format") != FORMAT:
                raise TranscriptError(f"format {line.get('format')!r} is unknown; this version reads {FORMAT}")
            found.append((str(line.get("thread")), []))
        elif not found:
            raise TranscriptError("the first line must name the format; this is no export of Everthread")
        elif not isinstance(kind, str) or kind not in SHAPES:
            raise TranscriptError(f"line {number}: a line of type {kind!r} is unknown")
        else:
            _check(number, line, kind)
            found[-1][1].append((number, line))
    return found


def _check(number: int, line: Line, kind: str) -> None:
    try:
        line_shapes.check(line, SHAPES[kind])
        if kind == "compaction":
            line_shapes.check(line["record"], line_shapes.RECORD)
        if kind == "usage":
            line_shapes.check(line["raw"], line_shapes.RAW_USAGE)
    except TranscriptError as error:
        raise TranscriptError(f"line {number} cannot be imported: {error}") from None


class _Section:
    """The lines under one heading, and what they have become so far."""

    def __init__(self, tx: Tx, now: float, root: str, lines: list[Numbered]) -> None:
        self.tx = tx
        self.now = now
        self.root = root
        self.lines = lines
        self.waiting: dict[str, Line] = {}
        """Sessions that are not stored yet."""
        self.threads: dict[str, str] = {}
        """Session -> its thread."""
        self.branched: dict[str, int | None] = {}
        """Session -> number of the message it branched at."""
        self.owners: dict[int, str] = {}
        """Number of a message -> the thread it is stored in."""
        self.ids: dict[int, int] = {}
        """Number of a message -> its id here."""
        self.calls: dict[str, str] = {}
        """Tool call -> the tool."""

    def store(self) -> list[str]:
        self._each("session", self._await)
        self._each("session", self._session)
        if self.root not in self.threads:
            raise TranscriptError(f"the thread {self.root} has no session of that id")
        self._each("places", self._own)
        self._each("message", self._message)
        self._each("places", self._place)
        self._each("compaction", self._compaction)
        self._each("usage", self._usage)
        self._each("output", self._output)
        self._each("node", self._node)
        self._each("state", self._state)
        stored = list(dict.fromkeys(self.threads.values()))
        for thread in stored:
            self._verify(thread)
            threads.recount(self.tx, thread)
            threads.note_last_use(self.tx, thread)
        return stored

    def _each(self, kind: str, take: Callable[[Line], None]) -> None:
        for number, line in self.lines:
            if line["type"] == kind:
                try:
                    take(line)
                except GARBLED as error:
                    why = f"{type(error).__name__}: {error}"
                    raise TranscriptError(
                        f"line {number} cannot be imported: it does not fit the others ({why})"
                    ) from error

    # Sessions

    def _await(self, line: Line) -> None:
        if line["id"] in self.waiting:
            raise TranscriptError(f"session {line['id']} stands there twice")
        self.waiting[line["id"]] = line

    def _session(self, line: Line) -> None:
        """Store a session that is not stored yet, its parents before it."""
        line_of_descent: list[Line] = []
        key = line["id"]
        while key in self.waiting:
            line_of_descent.append(self.waiting.pop(key))
            key = line_of_descent[-1].get("parent")
        if any(each["id"] == key for each in line_of_descent):
            raise TranscriptError(f"session {key} is its own ancestor")
        for each in reversed(line_of_descent):
            self._insert(each)

    def _insert(self, line: Line) -> None:
        kind: SessionKind = line.get("kind") or self._kind(line)
        if kind not in get_args(SessionKind):
            raise TranscriptError(f"session {line['id']} is of the unknown kind {kind!r}")
        names = {field.name for field in dataclasses.fields(NewSession)} - {"kind"}
        new = NewSession(kind=kind, **{name: value for name, value in line.items() if name in names})
        within = kind in ("continuation", "reverted")
        thread = sessions.hold(self.tx, line["parent"]) if within else new.id
        if not sessions.insert(self.tx, new, thread=thread, now=self.now):
            raise StoreError(f"session {new.id} is in this store already; delete its thread first, or leave it")
        self.tx.run(
            "UPDATE sessions SET ended = ?, end_reason = ?, carried = ? WHERE id = ?",
            (line.get("ended"), line.get("end_reason"), line.get("carried", 0), new.id),
        )
        self.threads[new.id] = thread
        self.branched[new.id] = line.get("branched_at")

    def _kind(self, line: Line) -> SessionKind:
        """For data without kinds: a child continues its parent if that ended by compression before the child began."""
        if line.get("parent") is None:
            return "main"
        parent = self.tx.one("SELECT ended, end_reason FROM sessions WHERE id = ?", (line["parent"],))
        continued = self.tx.one(
            "SELECT 1 FROM sessions WHERE parent_id = ? AND kind = 'continuation'", (line["parent"],)
        )
        follows = parent is not None and parent[1] == "compression" and line["started"] >= parent[0]
        return "continuation" if follows and not continued else "subagent"

    def _verify(self, thread: str) -> None:
        """Refuse sessions that do not form one chain. It goes on at its last, even if elsewhere that was continued."""
        chain = [session for session, _ in sessions.chain(self.tx, thread)]
        rows = self.tx.all("SELECT id, end_reason FROM sessions WHERE thread_id = ? AND kind <> 'reverted'", (thread,))
        reasons: dict[str, str | None] = dict(rows)
        if set(reasons) != set(chain) or any(reasons[session] != "compression" for session in chain[:-1]):
            raise TranscriptError(f"the sessions of thread {thread} do not continue one another")
        if self.tx.one("SELECT 1 FROM sessions WHERE thread_id = ? AND (carried < 0 OR carried > next_seq)", (thread,)):
            raise TranscriptError(f"a session of thread {thread} was given more than it shows")
        if reasons[chain[-1]] == "compression":
            self.tx.run("UPDATE sessions SET ended = NULL, end_reason = NULL WHERE id = ?", (chain[-1],))

    # Messages

    def _own(self, line: Line) -> None:
        for number in (*line["messages"], *line.get("taken_over", ())):
            self.owners.setdefault(number, self.threads[line["session"]])

    def _message(self, line: Line) -> None:
        number, kind = line["number"], line.get("kind", "message")
        if number in self.ids or number not in self.owners or kind not in get_args(MessageKind):
            raise TranscriptError(f"message {number} stands there twice, in no session, or is of no known kind")
        origin = None if line.get("origin") is None else self.ids[line["origin"]]
        event = line.get("event") or new_id()
        new = NewMessage(line["body"], kind, event, line.get("tokens"), origin, line.get("created"))
        item = prepare(new)
        self.calls |= names_of(item.calls)
        item = with_tool(item, lambda call_id: self.calls.get(call_id, ""))
        made = messages.insert(self.tx, self.owners[number], item, self.now)
        if made is None:
            raise TranscriptError(f"the event {event!r} stands there twice")
        self.ids[number] = made

    def _place(self, line: Line) -> None:
        session, shown, before = line["session"], line["messages"], line.get("taken_over", [])
        if len(set(shown)) < len(shown) or len(set(before)) < len(before):
            raise TranscriptError(f"session {session} shows a message twice")
        rows = [(session, seq, self.ids[number]) for seq, number in enumerate(shown)]
        rows += [(session, seq - len(before), self.ids[number]) for seq, number in enumerate(before)]
        self.tx.many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)
        at = self.branched[session]
        self.tx.run(
            "UPDATE sessions SET next_seq = ?, branched_at = ? WHERE id = ?",
            (len(shown), None if at is None else self.ids[at], session),
        )

    # What goes with them

    def _compaction(self, line: Line) -> None:
        covered = [self.ids[number] for number in line["record"]["covered"]]
        record = continuation.read_record({"cost": None, **line["record"], "covered": covered})
        self.tx.run(
            "INSERT INTO compactions (thread_id, parent_id, session_id, created, reverted, tokens_before, "
            "tokens_after, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.threads[line["session"]], line["parent"], line["session"], line["created"], line["reverted"],
                record.tokens_before, record.tokens_after, continuation.record_text(record),
            ),
        )  # fmt: skip

    def _usage(self, line: Line) -> None:
        cost = None if line["pico_dollars"] is None else Decimal(line["pico_dollars"]) / accounts.PICO
        usage = CanonicalUsage(
            input_tokens=line["input"], output_tokens=line["output"], cache_read_tokens=line["cache_read"],
            cache_write_tokens=line["cache_write"], reasoning_tokens=line["reasoning"],
            cache_write_1h_tokens=line["raw"]["cache_write_1h"], raw=line["raw"]["raw"],
        )  # fmt: skip
        new = NewUsage(
            self._own_session(line["session"]), line["model"], usage, line["task"], cost, bool(line["estimated"]),
            line["event"], line["created"],
        )  # fmt: skip
        accounts.record(self.tx, new, self.now)

    def _output(self, line: Line) -> None:
        text, about = line["text"], {"call_id": line["call_id"], "tool": line["tool"], "now": line["created"]}
        outputs.put(self.tx, self.root, text, outputs.compress(text), **about)

    def _node(self, line: Line) -> None:
        record = {name: value for name, value in line.items() if name != "type"}
        record |= {name: self.ids.get(line[name], 0) for name in ("first_message", "last_message")}
        record["thread"] = self.threads[self.root]
        if line["level"] == 0:
            record["sources"] = [str(self.ids[int(source)]) for source in line["sources"]]
        knowledge.put_nodes(self.tx, [knowledge.as_node(record)], None)

    def _state(self, line: Line) -> None:
        knowledge.put_state(self.tx, self._own_session(line["scope"]), line["key"], line["value"], self.now)

    def _own_session(self, session: str) -> str:
        if session not in self.threads:
            raise TranscriptError(f"session {session} is not among the lines; what belongs to it is not imported")
        return session
