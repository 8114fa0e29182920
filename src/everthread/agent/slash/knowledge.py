"""`/pin` and `/memory`: what must last, in this conversation and beyond it."""

from __future__ import annotations

from typing import Any

from everthread.agent.memory import FILES, SHELVES, Memory, Shelf
from everthread.agent.slash.base import CommandResult, Here, paragraphs
from everthread.core.rules import rules_of_message
from everthread.errors import InputError

RULE = "Rules for this conversation:\n- {rule}"
"""List items under such a heading are rules, however they are worded: compaction keeps them word for word."""


async def pin(here: Here, argument: str) -> CommandResult:
    rule = " ".join(argument.split())
    if not rule:
        raise InputError("say which rule: /pin Never touch the invoices folder")
    message: dict[str, Any] = {"role": "user", "content": RULE.format(rule=rule)}
    if not any(found.text == rule for found in rules_of_message(message)):
        raise InputError(
            f"{rule!r} cannot be kept as a rule; write one short sentence that says what to do or not to do"
        )
    await here.conversation.add(message)
    return CommandResult(
        f"Pinned: {rule}\n\nIt stays in view, word for word, through every compaction.", {"rule": rule}
    )


async def memory(here: Here, argument: str) -> CommandResult:
    kept = here.agent.memory if here.agent else None
    if kept is None:
        raise InputError("this conversation has no memory; it belongs to no agent")
    verb, _, rest = argument.partition(" ")
    if verb in ("", "show", "list"):
        return _shown(kept)
    shelf, text = _which(rest.strip())
    if verb == "add":
        change = await kept.add(shelf, text)
        note = " A credential in it was left out." if change.redacted else ""
        said = f"Kept in {FILES[shelf]}: {change.entry}.{note} New sessions see it."
    elif verb == "remove":
        change = await kept.remove(shelf, text)
        said = f"Removed from {FILES[shelf]}: {change.entry}"
    else:
        raise InputError(f"/memory {verb} is unknown; use show, add or remove")
    return CommandResult(said, {"shelf": shelf, "entry": change.entry})


def _which(rest: str) -> tuple[Shelf, str]:
    """`user TEXT` is about the user, everything else for the agent's own file."""
    first, _, text = rest.partition(" ")
    return (first, text.strip()) if first in SHELVES and text.strip() else ("memory", rest)


def _shown(kept: Memory) -> CommandResult:
    entries = {shelf: kept.entries(shelf) for shelf in SHELVES}
    blocks = [
        block
        for shelf, items in entries.items()
        for block in (
            f"**{FILES[shelf]}**{'' if items else ': nothing yet'}",
            "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)),
        )
    ]
    data: dict[str, Any] = {"folder": str(kept.folder)}
    data |= {str(shelf): items for shelf, items in entries.items()}
    return CommandResult(paragraphs(*blocks), data)
