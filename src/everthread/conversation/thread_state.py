"""What is known of a thread, read from its store: title, files, commands, open errors, to-do list; and its pins."""

from __future__ import annotations

from typing import Any

from everthread.compaction.state import CHANGED, ThreadState, state_of
from everthread.core.messages import content_text
from everthread.core.redaction import redact
from everthread.core.transcript import user_text
from everthread.errors import InputError
from everthread.store.models import Pin, Session, UsageRecord
from everthread.store.store import Store

_FIRST = 8
"""So many messages are looked through for the first words of the user."""
_MOST = 4_000
"""Characters that are read of them: a secret is known by what stands around it."""


async def load_title(store: Store, session: Session) -> str:
    """A thread's title; without one, the first words of the user, without secrets and headings.

    What a client asks beside a conversation may begin in the middle of it: such a thread is named by its instructions.
    """
    if session.title:
        return redact(session.title)
    first = await store.history(session.id, limit=_FIRST)
    words = next((words for message in first if (words := user_text(message.body))), "")
    if first and not words:
        words = content_text(session.system).strip().partition("\n")[0]
    lines = [line for line in redact(words[:_MOST]).splitlines() if line.strip()]
    spoken = [line for line in lines if not line.startswith("#")]
    return "\n".join(spoken or [line.lstrip("# ") for line in lines])


async def load_thread_usage(store: Store, thread: str) -> dict[str, list[UsageRecord]]:
    """The calls of a thread: `main`, `auxiliary`, those of its `subagents`, and `all`."""
    own = await store.usage(thread)
    theirs = [record for other in await store.subagents(thread) for record in await store.usage(other)]
    parts = {task: [record for record in own if record.task == task] for task in ("main", "auxiliary")}
    return parts | {"subagents": theirs, "all": [*own, *theirs]}


async def load_thread_state(store: Store, thread: str) -> ThreadState:
    """Read from every message of the thread, also those that compactions took out of view."""
    return state_of([stored.body for stored in await store.history(thread)])


def state_figures(state: ThreadState) -> dict[str, Any]:
    """As JSON values, without the secrets that commands and errors may hold."""
    return {
        "messages": state.messages,
        "directory": redact(state.directory),
        "branch": redact(state.branch),
        "files": [
            {"path": redact(path), "last": file.did, "turn": file.turn} for path, file in reversed(state.files.items())
        ],
        "commands": [
            {
                "command": redact(command),
                "outcome": redact(run.outcome),
                "ok": run.is_ok,
                "test": run.is_test,
                "turn": run.turn,
            }
            for command, run in reversed(state.commands.items())
        ],
        "open_errors": [
            {"source": redact(error.source), "lines": [redact(line) for line in error.lines], "turn": error.turn}
            for error in state.errors.values()
        ],
        "processes": [redact(process) for process in state.processes],
        "todo": [{key: redact(value) for key, value in item.items()} for item in state.todo],
    }


def changed_files(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the files of `state_figures` those that were changed, the latest first."""
    return [file for file in figures["files"] if file["last"] == CHANGED]


# What somebody pinned to a thread: notes that every later compaction carries word for word

PIN_CHARS = 2_000
"""Characters of one pin."""
MOST_PINS = 50


async def add_pin(store: Store, thread: str, text: str) -> Pin:
    """Keep a text. It is stored when this returns; one that is pinned already stays as it is."""
    note = redact(text).strip()
    if not note:
        raise InputError("there is nothing to pin: give a text, or the id of a message")
    if len(note) > PIN_CHARS:
        raise InputError(f"a pin has at most {PIN_CHARS:,} characters, not {len(note):,}; pin what matters of it")
    return await store.put_pin(thread, note, most=MOST_PINS)
