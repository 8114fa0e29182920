"""Read the state of the work from the messages of a thread: files, commands, open errors."""

from __future__ import annotations

from typing import Any

from everthread.compaction.history.thread_state import CHANGED, ThreadState, build_state
from everthread.core.messages import calls_of
from everthread.core.secrets.redaction import redact
from everthread.store.store import Store


async def load_thread_state(store: Store, thread: str) -> ThreadState:
    """Read the state of the work from every message of a thread's family, in the order they were stored.

    The family is the thread, the threads that it branched from or works for, and the threads of the same client
    session, because subagents change files too.
    """
    messages = {
        stored_message.id: stored_message.body
        for stored_message in await store.load_history(thread)
    }
    for other_thread in await store.list_family(thread):
        if other_thread != thread:
            other_messages = await store.load_history(other_thread)
            if any(calls_of(stored_message.body) for stored_message in other_messages):
                messages |= {
                    stored_message.id: stored_message.body for stored_message in other_messages
                }
    return build_state([messages[key] for key in sorted(messages)])


def describe_state(state: ThreadState) -> dict[str, Any]:
    """Return the state as JSON values, without the secrets that commands and errors may hold."""
    return {
        "messages": state.message_count,
        "directory": redact(state.directory),
        "branch": redact(state.branch),
        "files": [
            {"path": redact(path), "last": file.did, "turn": file.turn}
            for path, file in reversed(state.files.items())
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
            {
                "source": redact(error.source),
                "lines": [redact(line) for line in error.lines],
                "turn": error.turn,
            }
            for error in state.errors.values()
        ],
        "processes": [redact(process) for process in state.processes],
        "todo": [{key: redact(value) for key, value in item.items()} for item in state.todo],
    }


def list_changed_files(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changed files of `describe_state`, the latest first."""
    return [file for file in figures["files"] if file["last"] == CHANGED]
