"""opencode's sessions: the output of `opencode export ID`, or a session in its database.

An export is `{info, messages: [{info, parts}]}`. The database holds the same in its tables `session`, `message` and
`part`. A tool's call and its result are one part.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message
from everthread.core.text import count_noun
from everthread.errors import TranscriptError
from everthread.lab.importers.log import (
    ClientCompaction,
    Log,
    LoggedMessage,
    find_first_model,
)
from everthread.lab.importers.log_fields import (
    count_in,
    dollars_in,
    list_objects,
    make_answer,
    object_in,
    parse_time,
    text_in,
    texts_of,
    usage_in,
)


def is_export(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("info"), Mapping):
        return False
    messages = value.get("messages")
    return isinstance(messages, list) and all(
        isinstance(entry, Mapping) and "parts" in entry for entry in messages
    )


def read(export: Mapping[str, Any], source: str) -> Log:
    """Read an export."""
    messages: list[LoggedMessage] = []
    compactions: list[ClientCompaction] = []
    skipped_count = 0
    for entry in export["messages"]:
        info = entry.get("info")
        parts = entry.get("parts")
        if not isinstance(info, Mapping) or not isinstance(parts, list):
            skipped_count += 1
            continue
        readable_parts = list_objects(parts)
        if info.get("summary") is True:
            compactions.append(_read_compaction(info, readable_parts, len(messages)))
        else:
            messages += _read_message(info, readable_parts)
    info = export["info"]
    warning = f"{count_noun(skipped_count, 'message')} left out: not readable"
    return Log(
        source,
        "opencode",
        messages,
        model=find_first_model(messages),
        warnings=[warning] if skipped_count else [],
        session_id=str(info.get("id", "")),
        title=text_in(info, "title"),
        compactions=compactions,
    )


def _read_compaction(
    info: Mapping[str, Any], parts: list[Mapping[str, Any]], message_count: int
) -> ClientCompaction:
    timestamp = parse_time(object_in(info, "time").get("created"))
    return ClientCompaction(message_count, texts_of(parts, "text") or None, timestamp=timestamp)


def split_address(address: str) -> tuple[Path, str] | None:
    """Return the database and the session's id in `FILE#ses_…`, or None if the address is a plain file."""
    file, _, session_id = address.rpartition("#")
    path = Path(file).expanduser()
    return (path, session_id) if session_id.startswith("ses_") and path.is_file() else None


def list_sessions(database: Path) -> list[str]:
    """Return the ids of the sessions in a database, the oldest first, without those of subagents."""
    rows = _run_query(
        database,
        "SELECT id FROM session WHERE parent_id IS NULL ORDER BY time_created, id",
    )
    return [row["id"] for row in rows]


def load_from_database(database: Path, session_id: str) -> dict[str, Any]:
    """Load a session of the database in the format of an export."""
    rows = _run_query(database, "SELECT id, title FROM session WHERE id = ?", session_id)
    if not rows:
        raise TranscriptError(f"has no session {session_id}")
    parts_by_message_id: dict[str, list[Any]] = {}
    for row in _run_query(
        database,
        "SELECT message_id, data FROM part WHERE session_id = ? ORDER BY id",
        session_id,
    ):
        parts_by_message_id.setdefault(row["message_id"], []).append(json.loads(row["data"]))
    messages = _run_query(
        database,
        "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id",
        session_id,
    )
    return {
        "info": {"id": session_id, "title": rows[0]["title"]},
        "messages": [
            {"info": json.loads(row["data"]), "parts": parts_by_message_id.get(row["id"], [])}
            for row in messages
        ],
    }


def _run_query(database: Path, sql: str, *parameters: str) -> list[sqlite3.Row]:
    """Query the database read-only, because opencode may be writing to it."""
    try:
        with closing(
            sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql, parameters).fetchall()
    except sqlite3.Error as error:
        raise TranscriptError(f"is not a known database of opencode: {error}") from error


def _read_message(info: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> list[LoggedMessage]:
    timestamp = parse_time(object_in(info, "time").get("created"))
    if info.get("role") == "user":
        text = texts_of([_mark_synthetic(part) for part in parts], "text")
        return [LoggedMessage({"role": "user", "content": text}, timestamp)] if text else []
    steps: list[list[Mapping[str, Any]]] = [[]]
    # Each step of an answer was a call of its own; its tools' results are between the steps.
    for part in parts:
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    messages: list[LoggedMessage] = []
    for step in steps:
        messages += _read_step(step, timestamp, text_in(info, "modelID"))
    return messages


def _mark_synthetic(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mark a text that opencode wrote in the user's name, so that it does not count as the user's."""
    if part.get("synthetic") is not True or part.get("type") != "text":
        return part
    text = f"<system-reminder>\n{text_in(part, 'text')}\n</system-reminder>"
    return {**part, "text": text}


def _read_step(
    parts: list[Mapping[str, Any]], timestamp: float | None, model: str
) -> list[LoggedMessage]:
    """Return the answer of a step and the results of its tools."""
    text = texts_of(parts, "text")
    tool_parts = [
        part for part in parts if part.get("type") == "tool" and isinstance(part.get("callID"), str)
    ]
    if not text and not tool_parts:
        return []
    calls = []
    results: list[LoggedMessage] = []
    for part in tool_parts:
        state = object_in(part, "state")
        name = str(part.get("tool", ""))
        calls.append((part["callID"], name, state.get("input")))
        output = state.get("output") if state.get("output") is not None else state.get("error", "")
        result: Message = {
            "role": "tool",
            "tool_call_id": part["callID"],
            "name": name,
            "content": str(output),
        }
        results.append(LoggedMessage(result, timestamp))
    step_end = next((part for part in parts if part.get("type") == "step-finish"), {})
    message = make_answer(text, texts_of(parts, "reasoning"), calls)
    return [
        LoggedMessage(
            message,
            timestamp,
            _read_usage(step_end),
            dollars_in(step_end, "cost"),
            model,
        ),
        *results,
    ]


def _read_usage(step_end: Mapping[str, Any]) -> CanonicalUsage | None:
    """Return the usage at the end of a step, where reasoning is counted apart from the output."""
    tokens = object_in(step_end, "tokens")
    if not tokens:
        return None
    cache = object_in(tokens, "cache")
    counts = {**tokens, "read": cache.get("read"), "write": cache.get("write")}
    thought_tokens = count_in(tokens, "reasoning") or 0
    usage = usage_in(counts, "input", "output", cache_read_key="read", cache_write_key="write")
    return replace(
        usage,
        output_tokens=usage.output_tokens + thought_tokens,
        reasoning_tokens=thought_tokens,
    )
