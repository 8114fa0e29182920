"""Load facts about a thread from its store: title, usage, state of the work, pins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.compaction.history.thread_facts import CHANGED, ThreadState, build_state
from everthread.core.messages import calls_of, content_text
from everthread.core.secrets.redaction import redact
from everthread.core.transcript import user_text
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import Pin, Session, StoredMessage
from everthread.store.store import Store
from everthread.store.usage_records import UsageRecord

_SEARCHED_MESSAGES = 8
"""Number of messages that are searched for the user's first words."""
_MAX_READ_CHARS = 4_000
"""Maximum characters to read of the user's first words, enough to recognise a secret."""


async def load_title(store: Store, session: Session) -> str:
    """Return a thread's title; if it has none, the user's first words without secrets and headings.

    A branch with its parent's title is named after the user's first words in the branch. A side call that has no words
    of the user is named after the first line of its instructions.
    """
    if session.branched_at is not None and await _has_parents_title(store, session):
        messages = await store.history(
            session.id, after=session.branched_at, limit=_SEARCHED_MESSAGES
        )
        if title := _title_from_words(messages):
            return title
    if session.title:
        return redact(session.title)
    messages = await store.history(session.id, limit=_SEARCHED_MESSAGES)
    if title := _title_from_words(messages):
        return title
    instructions = content_text(session.system).strip() if messages else ""
    return redact(instructions.partition("\n")[0][:_MAX_READ_CHARS]).lstrip("# ")


async def _has_parents_title(store: Store, branch: Session) -> bool:
    """Return whether a branch has the title of the thread it left, or both have none."""
    if not branch.title:
        return True
    try:
        parent = await store.session(branch.parent or "")
    except UnknownIdError:
        return False  # deleted
    return branch.title == parent.title


def _title_from_words(messages: Sequence[StoredMessage]) -> str:
    """Return the user's first words without secrets and headings; empty if there are none."""
    first_words = next(
        (
            first_words
            for message in messages
            if (first_words := user_text(message.body))
        ),
        "",
    )
    lines = [
        line
        for line in redact(first_words[:_MAX_READ_CHARS]).splitlines()
        if line.strip()
    ]
    text_lines = [line for line in lines if not line.startswith("#")]
    return "\n".join(text_lines or [line.lstrip("# ") for line in lines])


async def load_thread_usage(store: Store, thread: str) -> dict[str, list[UsageRecord]]:
    """Return the usage records of a thread by kind: `main`, `auxiliary`, `subagents` and `all`."""
    own_records = await store.usage(thread)
    subagent_records = [
        record
        for subagent in await store.subagents(thread)
        for record in await store.usage(subagent)
    ]
    parts = {
        task: [record for record in own_records if record.task == task]
        for task in ("main", "auxiliary")
    }
    return parts | {
        "subagents": subagent_records,
        "all": [*own_records, *subagent_records],
    }


async def load_thread_state(store: Store, thread: str) -> ThreadState:
    """Read the state of the work from every message of a thread's family, in the order they were stored.

    The family is the thread, the threads that it branched from or works for, and the threads of the same client
    session, because subagents change files too.
    """
    messages = {
        stored_message.id: stored_message.body
        for stored_message in await store.history(thread)
    }
    for other_thread in await store.family(thread):
        if other_thread != thread:
            other_messages = await store.history(other_thread)
            if any(calls_of(stored_message.body) for stored_message in other_messages):
                messages |= {
                    stored_message.id: stored_message.body
                    for stored_message in other_messages
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
        "todo": [
            {key: redact(value) for key, value in item.items()} for item in state.todo
        ],
    }


def list_changed_files(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changed files of `describe_state`, the latest first."""
    return [file for file in figures["files"] if file["last"] == CHANGED]


# Pins: notes on a thread that every later compaction carries word for word

MAX_PIN_CHARS = 2_000
"""Maximum characters of one pin."""
MAX_PINS = 50


async def add_pin(store: Store, thread: str, text: str) -> Pin:
    """Store a pin, unless the same text is pinned already."""
    note = redact(text).strip()
    if not note:
        raise InputError("there is nothing to pin: give a text, or the id of a message")
    if len(note) > MAX_PIN_CHARS:
        raise InputError(
            f"a pin has at most {MAX_PIN_CHARS:,} characters, not {len(note):,}; pin what matters of it"
        )
    return await store.put_pin(thread, note, max_pins=MAX_PINS)
