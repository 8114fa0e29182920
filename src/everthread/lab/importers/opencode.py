"""opencode's sessions: what `opencode export ID` prints, a session of its database, or a session file before 1.2.

An export is `{info, messages: [{info, parts}]}`. The database has the same in the tables `session`, `message` and
`part`; before version 1.2 a session (`session/<project>/<id>.json`), its messages (`message/<session>/…`) and their
parts (`part/<message>/…`) were files of their own. A tool's call and its result are one part.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from everthread.core.messages import Message, count_noun
from everthread.core.pricing import CanonicalUsage
from everthread.errors import TranscriptError
from everthread.lab.importers.log import Log, LoggedMessage, count_in, dollars_in, first_model, parse_time, text_in


def is_export(value: Any) -> bool:
    messages = value.get("messages") if isinstance(value, Mapping) and isinstance(value.get("info"), Mapping) else None
    return isinstance(messages, list) and all(isinstance(entry, Mapping) and "parts" in entry for entry in messages)


def is_session_file(value: Any) -> bool:
    """Whether it is a session file of the storage, whose messages are in other files."""
    return isinstance(value, Mapping) and str(value.get("id", "")).startswith("ses_") and "projectID" in value


def read(value: Mapping[str, Any], source: str) -> Log:
    """Read an export."""
    messages: list[LoggedMessage] = []
    skipped = 0
    for entry in value["messages"]:
        info, parts = entry.get("info"), entry.get("parts")
        if not isinstance(info, Mapping) or not isinstance(parts, list):
            skipped += 1
            continue
        if info.get("summary") is True:  # the client's own summary
            skipped += 1
            continue
        messages += _read_message(info, [part for part in parts if isinstance(part, Mapping)])
    info = value["info"]
    notes = (
        [f"{count_noun(skipped, 'message')} left out: summaries of the client itself, or not readable"]
        if skipped
        else []
    )
    return Log(
        source, "opencode", messages, model=first_model(messages), warnings=notes, session=str(info.get("id", "")),
        title=text_in(info, "title"),
    )  # fmt: skip


def from_storage(path: Path) -> dict[str, Any]:
    """A session file of the storage with its messages and parts, in the form of an export."""
    info = json.loads(path.read_bytes())
    storage = path.parent.parent.parent
    messages = []
    for file in sorted((storage / "message" / info["id"]).glob("*.json")):
        message = json.loads(file.read_bytes())
        parts = [json.loads(part.read_bytes()) for part in sorted((storage / "part" / file.stem).glob("*.json"))]
        messages.append({"info": message, "parts": parts})
    return {"info": info, "messages": messages}


def split_address(address: str) -> tuple[Path, str] | None:
    """The database and the session's id in `FILE#ses_…`; None where the address is a plain file."""
    file, _, session = address.rpartition("#")
    path = Path(file).expanduser()
    return (path, session) if session.startswith("ses_") and path.is_file() else None


def list_sessions(database: Path) -> list[str]:
    """The ids of the sessions in a database, the oldest first, without those of subagents."""
    rows = _query(database, "SELECT id FROM session WHERE parent_id IS NULL ORDER BY time_created, id")
    return [row["id"] for row in rows]


def from_database(database: Path, session: str) -> dict[str, Any]:
    """A session of the database in the form of an export."""
    rows = _query(database, "SELECT id, title FROM session WHERE id = ?", session)
    if not rows:
        raise TranscriptError(f"has no session {session}")
    parts: dict[str, list[Any]] = {}
    for row in _query(database, "SELECT message_id, data FROM part WHERE session_id = ? ORDER BY id", session):
        parts.setdefault(row["message_id"], []).append(json.loads(row["data"]))
    messages = _query(database, "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", session)
    return {
        "info": {"id": session, "title": rows[0]["title"]},
        "messages": [{"info": json.loads(row["data"]), "parts": parts.get(row["id"], [])} for row in messages],
    }


def _query(database: Path, sql: str, *values: str) -> list[sqlite3.Row]:
    """Rows of the database, which another process may be writing to."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        raise TranscriptError(f"is not a database that is known of opencode: {error}") from error


def _read_message(info: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> list[LoggedMessage]:
    times = info.get("time")
    at = parse_time(times.get("created")) if isinstance(times, Mapping) else None
    text = "\n".join(part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str))
    if info.get("role") == "user":
        return [LoggedMessage({"role": "user", "content": text}, at)] if text else []
    messages: list[LoggedMessage] = []
    name = text_in(info, "modelID")
    # Each step of an answer was a call of its own; its tools' results stand between the steps.
    for step in _split_steps(parts):
        message, results = _read_step(step)
        if message is not None:
            usage, cost = _read_usage(step)
            messages.append(LoggedMessage(message, at, usage, cost, name))
            messages += [LoggedMessage(result, at) for result in results]
    return messages


def _split_steps(parts: list[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    steps: list[list[Mapping[str, Any]]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    return steps


def _read_step(parts: list[Mapping[str, Any]]) -> tuple[Message | None, list[Message]]:
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    thoughts = [part["text"] for part in parts if part.get("type") == "reasoning" and isinstance(part.get("text"), str)]
    tools = [part for part in parts if part.get("type") == "tool" and isinstance(part.get("callID"), str)]
    if not texts and not tools:
        return None, []
    message: Message = {"role": "assistant", "content": "\n".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    results: list[Message] = []
    if tools:
        message["tool_calls"] = []
    for part in tools:
        state = part.get("state")
        state = state if isinstance(state, Mapping) else {}
        name = str(part.get("tool", ""))
        arguments = json.dumps(state.get("input") or {})
        message["tool_calls"].append(
            {"id": part["callID"], "type": "function", "function": {"name": name, "arguments": arguments}}
        )
        output = state.get("output") if state.get("output") is not None else state.get("error", "")
        results.append({"role": "tool", "tool_call_id": part["callID"], "name": name, "content": str(output)})
    return message, results


def _read_usage(parts: list[Mapping[str, Any]]) -> tuple[CanonicalUsage | None, float | None]:
    """The usage and cost at the end of a step."""
    end = next((part for part in parts if part.get("type") == "step-finish"), None)
    tokens = end.get("tokens") if end is not None else None
    if end is None or not isinstance(tokens, Mapping):
        return None, None
    cache = tokens.get("cache")
    counts = cache if isinstance(cache, Mapping) else {}
    thought = count_in(tokens, "reasoning")
    usage = CanonicalUsage(
        input_tokens=count_in(tokens, "input"), output_tokens=count_in(tokens, "output") + thought,
        cache_read_tokens=count_in(counts, "read"), cache_write_tokens=count_in(counts, "write"),
        reasoning_tokens=thought,
    )  # fmt: skip
    return usage, dollars_in(end, "cost")
