"""Slash commands: text in, a result out. They print nothing and are never sent to the model.

if commands.parse(line):
    result = await commands.run(agent, agent.conversation.store, line)
    print(result.text)
    if result.switch:
        await agent.switch(result.switch)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from everthread.agent.loop import Agent
from everthread.agent.slash import figures, threads
from everthread.agent.slash.command import CommandResult, Here
from everthread.conversation.conversation import Conversation
from everthread.errors import EverthreadError
from everthread.store.store import Store

__all__ = ["COMMANDS", "Command", "CommandResult", "parse", "run"]

Handler = Callable[[Here, str], Awaitable[CommandResult]]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name without the slash, what may follow it, what it does."""

    name: str
    usage: str
    help: str
    handler: Handler
    changes: bool = False
    """It changes what the model sees, so it waits for the end of a turn."""


async def _help(_here: Here, argument: str) -> CommandResult:
    shown = [command for command in COMMANDS if argument.lstrip("/") in ("", command.name)]
    lines = [f"- `{command.usage}`: {command.help}" for command in shown or COMMANDS]
    data = {"commands": [{"name": item.name, "usage": item.usage, "help": item.help} for item in shown or COMMANDS]}
    return CommandResult("\n".join(lines), data)


COMMANDS: tuple[Command, ...] = (
    Command("help", "/help [COMMAND]", "what there is", _help),
    Command(
        "compress", "/compress [--preview] [FOCUS]", "compact the history now, or only show what would go",
        threads.compress, changes=True,
    ),
    Command("undo", "/undo", "take the last compaction back", threads.undo, changes=True),
    Command("context", "/context", "what fills the window, by kind", figures.context),
    Command("state", "/state", "files, commands, tests, open errors and the to-do list, as they stand", figures.state),
    Command("why", "/why", "why the last compaction or cache miss happened", figures.why),
    Command(
        "pin", "/pin RULE", "a rule that stays in view, word for word, through every compaction",
        threads.pin, changes=True,
    ),
    Command(
        "memory", "/memory [show | add [user] TEXT | remove [user] TEXT]", "what lasts beyond this conversation",
        threads.memory,
    ),
    Command("search", "/search TEXT", "find what was said, in every conversation", threads.search),
    Command("sessions", "/sessions [COUNT]", "the last conversations", threads.sessions),
    Command("new", "/new [TITLE]", "begin a new conversation", threads.new),
    Command("resume", "/resume [ID]", "go on with another conversation", threads.resume),
    Command(
        "branch", "/branch [TITLE]", "go on in a copy; this conversation stays as it is", threads.branch, changes=True
    ),
    Command("model", "/model [NAME]", "which model answers, or another one", figures.model, changes=True),
    Command("usage", "/usage", "tokens and cost of this conversation", figures.usage),
    Command("insights", "/insights [DAYS]", "where tokens and money went", figures.insights),
)  # fmt: skip

_BY_NAME = {command.name: command for command in COMMANDS}
ALIASES = {"clear": "new", "cost": "usage", "compact": "compress", "history": "sessions"}
"""Names that other programs use."""
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)


def parse(text: str) -> tuple[str, str] | None:
    """The command's name and what follows it; None where the text is a message. A path (`/etc/hosts`) is none."""
    found = _COMMAND.fullmatch(text.strip())
    return (found[1].lower(), (found[2] or "").strip()) if found else None


async def run(agent: Agent | Conversation, store: Store, text: str) -> CommandResult:
    """Do what a command says. What goes wrong is told in the result."""
    found = parse(text)
    if found is None:
        return CommandResult(f"{text.strip()[:80]!r} is no command; /help lists them.", failed=True)
    name, argument = found
    command = _BY_NAME.get(ALIASES.get(name, name))
    if command is None:
        return _unknown(name)
    known = agent if isinstance(agent, Agent) else None
    if known is not None and known.busy and command.changes:
        return CommandResult(f"A turn is under way: stop it, or give /{name} again when it is over.", failed=True)
    here = Here(known.conversation if known else agent, store, known)  # type: ignore[arg-type]  # one or the other
    try:
        return await command.handler(here, argument)
    except EverthreadError as error:
        return CommandResult(f"/{name} failed: {error}", {"error": str(error)}, failed=True)


def _unknown(name: str) -> CommandResult:
    near = difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.5)
    near += [known for known in _BY_NAME if known.startswith(name) and known not in near]
    hint = f" Did you mean {' or '.join(f'/{known}' for known in near)}?" if near else ""
    return CommandResult(f"There is no command /{name}.{hint} /help lists them all.", {"near": near}, failed=True)
