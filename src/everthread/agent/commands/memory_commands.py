"""`/pin` and `/memory`: texts that last."""

from __future__ import annotations

from typing import Any

from everthread.agent.commands.dispatch import (
    CommandResult,
    CommandScope,
    command,
    paragraphs,
)
from everthread.agent.memory import FILES, MEMORY_KINDS, MemoryFiles, MemoryKind
from everthread.errors import InputError
from everthread.thread.facts import add_pin

RULE = "Rules for this conversation:\n- {rule}"


@command(
    "/pin RULE",
    "a rule that every compaction keeps word for word",
    changes=True,
)
async def pin(scope: CommandScope, argument: str) -> CommandResult:
    rule = " ".join(argument.split())
    if not rule:
        raise InputError("say which rule: /pin Never touch the invoices folder")
    await add_pin(scope.store, scope.conversation.id, rule)
    await scope.conversation.add({"role": "user", "content": RULE.format(rule=rule)})
    return CommandResult(
        f"Pinned: {rule}\n\nEvery compaction keeps it word for word.",
        {"rule": rule},
    )


@command(
    "/memory [show | add [user] TEXT | remove [user] TEXT]",
    "notes that later conversations see",
)
async def memory(scope: CommandScope, argument: str) -> CommandResult:
    files = scope.agent.memory if scope.agent else None
    if files is None:
        raise InputError("this conversation has no memory; it belongs to no agent")
    verb, _, rest = argument.partition(" ")
    if verb in ("", "show", "list"):
        return _show_memory(files)
    shelf, text = _parse_memory_target(rest.strip())
    if verb == "add":
        change = await files.add(shelf, text)
        note = " A credential in it was left out." if change.redacted else ""
        answer = f"Kept in {FILES[shelf]}: {change.entry}.{note} New sessions see it."
    elif verb == "remove":
        change = await files.remove(shelf, text)
        answer = f"Removed from {FILES[shelf]}: {change.entry}"
    else:
        raise InputError(f"/memory {verb} is unknown; use show, add or remove")
    return CommandResult(answer, {"shelf": shelf, "entry": change.entry})


def _parse_memory_target(rest: str) -> tuple[MemoryKind, str]:
    """Choose the file: `user TEXT` goes to USER.md, everything else to MEMORY.md."""
    first, _, text = rest.partition(" ")
    return (
        (first, text.strip())
        if first in MEMORY_KINDS and text.strip()
        else ("memory", rest)
    )


def _show_memory(files: MemoryFiles) -> CommandResult:
    entries = {shelf: files.entries(shelf) for shelf in MEMORY_KINDS}
    blocks = [
        block
        for shelf, items in entries.items()
        for block in (
            f"**{FILES[shelf]}**{'' if items else ': nothing yet'}",
            "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)),
        )
    ]
    data: dict[str, Any] = {"folder": str(files.folder)}
    data |= {str(shelf): items for shelf, items in entries.items()}
    return CommandResult(paragraphs(*blocks), data)
