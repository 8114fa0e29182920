"""Continue a session of one agent in another, by writing its compacted context as a native log of the other.

Calls and results of foreign tools are written as text, because the other agent does not have these tools and must not
imitate them. Reasoning is left out, because it is signed or encrypted for the model that wrote it.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everthread import estimate_request_tokens
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.errors import InputError
from everthread.factory import compress
from everthread.lab.importers.log import CLIENT_NAMES, Log, without_reasoning

DEFAULT_WINDOW = 200_000
MAX_ARGUMENT_CHARS = 2_000
CLIENTS = ("claude", "codex")
CLAUDE_VERSION = "2.1.0"
CODEX_VERSION = "0.142.0"
"""Versions that the written logs state, since which each client reads the written form."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A session written for another agent, and how to resume it."""

    client: str
    file: Path
    command: str
    message_count: int
    token_count: int


def hand_over(
    log: Log,
    client: str,
    *,
    window: int = DEFAULT_WINDOW,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> HandOver:
    """Compact a log and write it as a session that another agent can resume.

    `folder` is the project's folder, by default the current one.
    """
    if client not in CLIENTS:
        raise InputError(f"--in {client!r} is unknown; use one of: {', '.join(CLIENTS)}")
    variables = os.environ if env is None else env
    project = (folder or Path.cwd()).resolve()
    messages = make_plain_messages(log, window)
    if client == "claude":
        return _write_claude_session(messages, project, variables)
    return _write_codex_session(messages, project, variables)


def make_plain_messages(log: Log, window: int) -> list[Message]:
    """Return the compacted conversation as plain messages that alternate between user and assistant."""
    name = CLIENT_NAMES.get(log.kind, "another agent")
    compacted_messages = compress(
        without_reasoning(log.messages),
        window=window,
        summarizer="journal",
        model=log.model or None,
    ).messages
    tool_name_by_call_id = {
        call.id: call.name for message in compacted_messages for call in calls_of(message)
    }
    intro = f"This session was begun in {name} and is continued here. Tools named below are those of {name}."
    plain_messages: list[Message] = [{"role": "user", "content": intro}]
    for message in compacted_messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        text = _format_as_text(message, tool_name_by_call_id).strip()
        if not text:
            continue
        if plain_messages[-1]["role"] == role:
            plain_messages[-1] = {
                "role": role,
                "content": f"{plain_messages[-1]['content']}\n\n{text}",
            }
        else:
            plain_messages.append({"role": role, "content": text})
    if plain_messages[-1]["role"] == "user":
        plain_messages.append(
            {
                "role": "assistant",
                "content": "I have read the session so far and can continue.",
            }
        )
    return plain_messages


def _format_as_text(message: Message, tool_name_by_call_id: Mapping[str, str]) -> str:
    parts = []
    results = results_of(message)
    words = text_of(message) if message["role"] != "tool" else ""
    if words:
        parts.append(words)
    for call in calls_of(message):
        arguments = call.arguments
        if len(arguments) > MAX_ARGUMENT_CHARS:
            arguments = f"{arguments[:MAX_ARGUMENT_CHARS]} […]"
        parts.append(f"[Called {call.name}: {arguments}]")
    parts += [
        f"[Result of {tool_name_by_call_id.get(result.call_id, 'a tool')}]\n{result.text}"
        for result in results
    ]
    return "\n".join(parts)


def _write_claude_session(
    messages: Sequence[Message], project: Path, env: Mapping[str, str]
) -> HandOver:
    session_id = str(uuid.uuid4())
    home = Path(env.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    file = home / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(project)) / f"{session_id}.jsonl"
    lines = []
    parent_id = None
    for message in messages:
        line = _make_claude_line(message, session_id, project) | {"parentUuid": parent_id}
        parent_id = line["uuid"]
        lines.append(line)
    _write_lines(file, lines)
    command = f"claude --resume {session_id}"
    return HandOver(
        "Claude Code",
        file,
        command,
        len(messages),
        estimate_request_tokens(list(messages)),
    )


def _make_claude_line(message: Message, session_id: str, project: Path) -> dict[str, Any]:
    claude_message: dict[str, Any] = {
        "role": message["role"],
        "content": message["content"],
    }
    if message["role"] == "assistant":
        usage = {"input_tokens": 0, "output_tokens": 0}
        claude_message = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": "<synthetic>",
            "content": [{"type": "text", "text": message["content"]}],
            "stop_reason": "end_turn",
            "usage": usage,
        }
    return {
        "type": message["role"],
        "uuid": str(uuid.uuid4()),
        "sessionId": session_id,
        "isSidechain": False,
        "userType": "external",
        "cwd": str(project),
        "version": CLAUDE_VERSION,
        "timestamp": _format_now(),
        "message": claude_message,
    }


def _write_codex_session(
    messages: Sequence[Message], project: Path, env: Mapping[str, str]
) -> HandOver:
    session_id = str(uuid.uuid4())
    started_at = datetime.now(UTC)
    home = Path(env.get("CODEX_HOME") or Path.home() / ".codex")
    folder = home / "sessions" / f"{started_at:%Y}" / f"{started_at:%m}" / f"{started_at:%d}"
    file = folder / f"rollout-{started_at:%Y-%m-%dT%H-%M-%S}-{session_id}.jsonl"
    session_meta = {
        "id": session_id,
        "session_id": session_id,
        "timestamp": _format_now(),
        "cwd": str(project),
        "originator": "everthread",
        "cli_version": CODEX_VERSION,
        "source": "cli",
    }
    lines: list[dict[str, Any]] = [
        {"timestamp": _format_now(), "type": "session_meta", "payload": session_meta}
    ]
    for message in messages:
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": message["content"]}]
        item = {"type": "message", "role": message["role"], "content": content}
        lines.append({"timestamp": _format_now(), "type": "response_item", "payload": item})
        event_type = "agent_message" if message["role"] == "assistant" else "user_message"
        displayed_event = {"type": event_type, "message": message["content"]}
        lines.append(
            {
                "timestamp": _format_now(),
                "type": "event_msg",
                "payload": displayed_event,
            }
        )
    _write_lines(file, lines)
    command = f"codex resume {session_id}"
    return HandOver("Codex", file, command, len(messages), estimate_request_tokens(list(messages)))


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_lines(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(
            "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines),
            "utf-8",
        )
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror or error}") from error
