"""Where other programs keep their conversations, and how one of theirs becomes a thread of ours."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from everthread.core.transcript import user_text
from everthread.errors import InputError
from everthread.lab.importers.log import Log
from everthread.store.models import DEFAULT_TENANT, NewMessage, NewSession, NewUsage
from everthread.store.store import Store

TITLE = 80


def _claude_code(home: Path, env: Mapping[str, str]) -> Iterator[Path]:
    root = Path(env.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    yield from (root / "projects").glob("*/*.jsonl")


def _codex(home: Path, env: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(env.get("CODEX_HOME") or home / ".codex") / "sessions").rglob("rollout-*.jsonl")


def _pi(home: Path, env: Mapping[str, str]) -> Iterator[Path]:
    root = Path(env.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent")
    yield from (root / "sessions").glob("*/*.jsonl")


def _opencode(home: Path, env: Mapping[str, str]) -> Iterator[Path]:
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    yield from (data / "opencode" / "storage" / "session").glob("*/ses_*.json")


CLIENTS: dict[str, Callable[[Path, Mapping[str, str]], Iterator[Path]]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "pi": _pi,
    "opencode": _opencode,
}


def find_logs(client: str, *, home: Path | None = None, env: Mapping[str, str] | None = None) -> list[Path]:
    """The session files of a program on this machine, the oldest first."""
    if client not in CLIENTS:
        raise InputError(f"--from {client!r} is not known; known are {', '.join(CLIENTS)}")
    found = CLIENTS[client](home or Path.home(), os.environ if env is None else env)
    return sorted(found, key=lambda path: (path.stat().st_mtime, path))


def thread_id(log: Log) -> str:
    """The same conversation has the same id, however often it is imported."""
    name = log.session or log.source
    return hashlib.sha256(f"{log.kind}\0{name}".encode()).hexdigest()[:32]


async def import_log(store: Store, log: Log, *, tenant: str | None = None) -> tuple[str, int]:
    """Store a conversation as a thread; the thread and how many messages are new. What is there already stays."""
    session = thread_id(log)
    times = [entry.at for entry in log.said if entry.at is not None]
    new = NewSession(
        id=session, platform=log.kind, title=log.title or _title(log), model=log.model, system=log.system,
        started=min(times, default=None), client=log.kind, client_session=log.session, tenant=tenant or DEFAULT_TENANT,
    )  # fmt: skip
    await store.create_session(new)
    before = (await store.session(session)).messages
    at: float | None = None
    messages, usage = [], []
    for number, entry in enumerate(log.said):
        at = entry.at or at
        event = f"{session}:{number}"
        messages.append(NewMessage(entry.message, event=event, created=at))
        if entry.usage is not None:
            cost = None if entry.cost is None else Decimal(str(entry.cost))
            usage.append(NewUsage(session, entry.model or log.model, entry.usage, cost=cost, event=event, created=at))
    await store.append(session, messages)
    for used in usage:
        await store.record_usage(used)
    return session, (await store.session(session)).messages - before


def _title(log: Log) -> str:
    first = next((words for entry in log.said if (words := user_text(entry.message).strip())), "")
    line = " ".join(first.split())
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"
