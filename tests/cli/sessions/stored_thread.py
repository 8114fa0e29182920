"""Threads for tests of `everthread sessions`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.store import Store
from tests.chat_messages import function_call

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3


HOSTILE = "see [bold]this[/bold] :fire: \x1b[2J\x1b]0;owned\x07 \x9b31m \u202eevil 你好世界 lone \ud800 end\\"


CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters that a terminal obeys. Output to a pipe must have none."""


def text_message(role: str, content: Any, **more: Any) -> NewMessage:
    message: Any = {"role": role, "content": content, **more}
    return NewMessage(message, tokens=7)


def call_message(call_id: str, tool: str, arguments: str) -> NewMessage:
    calls = [function_call(call_id, tool, arguments)]
    return text_message("assistant", None, tool_calls=calls)


@dataclass(frozen=True)
class StoredThread:
    """A thread that was compacted, branched and helped by a subagent; a compaction of it was taken back."""

    id: str
    tip: str
    reverted: str
    branch: str
    subagent: str
    ids: list[int]


async def store_thread(store: Store) -> StoredThread:
    root = await store.create_session(
        NewSession(
            model="claude-sonnet-4-5",
            platform="cli",
            system="Be brief.",
        )
    )
    first = await store.append(
        root.id,
        [
            text_message("user", "Repair the parser in src/app/main.py, please."),
            call_message("c1", "terminal", '{"command": "pytest -q"}'),
            text_message(
                "tool",
                "\n".join(f"FAILED line {n}" for n in range(500)),
                tool_call_id="c1",
            ),
            text_message("assistant", "The parser is repaired."),
        ],
    )
    ids = [message.id for message in first]
    helper = await store.create_session(
        NewSession(
            kind="subagent",
            parent=root.id,
            model="gpt-5",
        )
    )
    await store.append(helper.id, [text_message("user", "Look for dead code.")])
    summary = NewMessage({"role": "user", "content": "A summary of the beginning."}, kind="summary")
    record = NewCompaction(
        covered=ids[1:3],
        tokens_before=100_000,
        tokens_after=25_000,
        author="journal",
        duration=2,
    )
    tip = (
        await store.continue_session(
            root.id, [ids[0], summary, ids[3]], seen_count=4, compaction=record
        )
    ).session
    later = await store.append(
        root.id,
        [
            text_message("user", "And the lexer?"),
            text_message("assistant", "Also repaired."),
        ],
    )
    undone = await store.continue_session(tip.id, [ids[0]], seen_count=5)
    await store.undo(root.id)
    branch = await store.branch(root.id, ids[0])
    await store.append(branch.id, [text_message("user", "Use another way.")])
    return StoredThread(
        id=root.id,
        tip=tip.id,
        reverted=undone.session.id,
        branch=branch.id,
        subagent=helper.id,
        ids=[*ids, *(message.id for message in later)],
    )
