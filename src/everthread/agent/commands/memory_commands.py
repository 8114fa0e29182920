"""`/pin` and `/memory`: rules and notes that outlast compactions."""

from __future__ import annotations

from typing import Any

from everthread.agent.commands.dispatch import CommandResult, CommandScope, command, join_paragraphs
from everthread.agent.memory import FILE_NAMES, MEMORY_KINDS, MemoryFiles, MemoryKind
from everthread.errors import InputError
from everthread.thread.lookup.pins import add_pin

RULE_TEMPLATE = "Rules for this conversation:\n- {rule}"


@command(
    "/pin RULE",
    "a rule that every compaction keeps word for word",
    changes_context=True,
)
async def run_pin(scope: CommandScope, argument: str) -> CommandResult:
    rule = " ".join(argument.split())
    if not rule:
        raise InputError("say which rule: /pin Never touch the invoices folder")
    await add_pin(scope.store, scope.conversation.id, rule)
    await scope.conversation.add({"role": "user", "content": RULE_TEMPLATE.format(rule=rule)})
    return CommandResult(
        f"Pinned: {rule}\n\nEvery compaction keeps it word for word.",
        {"rule": rule},
    )


@command(
    "/memory [show | add [user] TEXT | remove [user] TEXT]",
    "notes that later conversations see",
)
async def run_memory(scope: CommandScope, argument: str) -> CommandResult:
    files = scope.agent.memory if scope.agent else None
    if files is None:
        raise InputError("this conversation has no memory; it belongs to no agent")
    verb, _, target_text = argument.partition(" ")
    if verb in ("", "show", "list"):
        return _show_memory(files)
    kind, text = _parse_memory_target(target_text.strip())
    if verb == "add":
        change = await files.add(kind, text)
        note = " A credential in it was left out." if change.was_redacted else ""
        answer = f"Kept in {FILE_NAMES[kind]}: {change.entry}.{note} New sessions see it."
    elif verb == "remove":
        change = await files.remove(kind, text)
        answer = f"Removed from {FILE_NAMES[kind]}: {change.entry}"
    else:
        raise InputError(f"/memory {verb} is unknown; use show, add or remove")
    return CommandResult(answer, {"shelf": kind, "entry": change.entry})


def _parse_memory_target(target_text: str) -> tuple[MemoryKind, str]:
    """Choose the file: `user TEXT` goes to USER.md, everything else to MEMORY.md."""
    first_word, _, text = target_text.partition(" ")
    if first_word in MEMORY_KINDS and text.strip():
        return first_word, text.strip()
    return "memory", target_text


def _show_memory(files: MemoryFiles) -> CommandResult:
    entries = {kind: files.read_entries(kind) for kind in MEMORY_KINDS}
    blocks = []
    for kind, items in entries.items():
        blocks.append(f"**{FILE_NAMES[kind]}**{'' if items else ': nothing yet'}")
        blocks.append("\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)))
    data: dict[str, Any] = {"folder": str(files.folder)}
    data |= {str(kind): items for kind, items in entries.items()}
    return CommandResult(join_paragraphs(*blocks), data)
