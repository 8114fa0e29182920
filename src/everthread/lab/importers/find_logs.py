"""Find the logs of other programs on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from everthread.errors import InputError, TranscriptError
from everthread.lab.importers import opencode
from everthread.lab.importers.log import CLIENT_NAMES

LOG_LOCATIONS = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "projects", "*/*.jsonl"),
    "codex": ("CODEX_HOME", ".codex", "sessions", "**/rollout-*.jsonl"),
    "pi": ("PI_CODING_AGENT_DIR", ".pi/agent", "sessions", "*/*.jsonl"),
    "opencode": ("XDG_DATA_HOME", ".local/share", "opencode", "opencode*.db"),
    "copilot": ("COPILOT_HOME", ".copilot", "session-state", "**/*.jsonl"),
    "gemini-cli": ("GEMINI_CLI_HOME", "", ".gemini/tmp", "*/chats/session-*.json*"),
}
"""Where each program keeps its sessions: a variable with a folder, its default in the home, a subfolder, a pattern.

opencode keeps all of its sessions in a database, the others keep each in a file."""


def find_logs(
    client: str, *, home: Path | None = None, env: Mapping[str, str] | None = None
) -> list[str]:
    """Return the sessions of a program on this machine, the oldest first; raise `InputError` if there are none."""
    if client not in LOG_LOCATIONS:
        raise InputError(f"--from {client!r} is unknown; use one of: {', '.join(LOG_LOCATIONS)}")
    variable, default_folder, subfolder, pattern = LOG_LOCATIONS[client]
    configured_folder = (os.environ if env is None else env).get(variable)
    folder = Path(configured_folder or (home or Path.home()) / default_folder) / subfolder
    files = sorted(folder.glob(pattern), key=lambda path: (path.stat().st_mtime, path))
    logs = _list_opencode_sessions(files) if client == "opencode" else [str(file) for file in files]
    if not logs:
        raise InputError(
            f"there are no sessions of {client} in {folder}; {variable} names another folder"
        )
    return logs


def _list_opencode_sessions(databases: Sequence[Path]) -> list[str]:
    """Return the addresses of the sessions in opencode's databases."""
    addresses: dict[str, str] = {}
    for path in databases:
        try:
            session_ids = opencode.list_sessions(path)
        except TranscriptError as error:
            raise TranscriptError(
                f"a database in {path.parent} {error}; `opencode export ID` writes one session"
            ) from error
        addresses |= {session_id: f"{path}#{session_id}" for session_id in session_ids}
    return list(addresses.values())


def find_latest_logs(*, limit: int = 1, since: float = 0.0) -> list[str]:
    """Return the newest sessions of all programs on this machine, the newest first; raise `InputError` without any.

    `since`: seconds since 1970; older sessions are left out.
    """
    dated_logs: list[tuple[float, str]] = []
    for client in LOG_LOCATIONS:
        try:
            logs = find_logs(client)
        except InputError:
            continue
        dated_logs += [(_find_change_time(log), log) for log in logs]
    latest = [log for change_time, log in sorted(dated_logs, reverse=True) if change_time >= since][
        :limit
    ]
    if not latest:
        clients = ", ".join(CLIENT_NAMES[client] for client in LOG_LOCATIONS)
        since_text = " since then" if since else ""
        raise InputError(
            f"no sessions were found{since_text} in the usual folders of {clients}; name the file of one instead"
        )
    return latest


def _find_change_time(log: str) -> float:
    """Return the time at which a log was last changed; for a session in a database, that of the database file."""
    address = opencode.split_address(log)
    path = address[0] if address is not None else Path(log)
    return path.stat().st_mtime
