"""Find the slash command that a line names, and run it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.agent.loop import Agent
from everthread.conversation.conversation import Conversation
from everthread.errors import EverthreadError
from everthread.store.store import Store

ALIASES = {
    "clear": "new",
    "cost": "usage",
    "compact": "compress",
    "history": "sessions",
}
"""Names of these commands in other programs."""
_COMMAND_PATTERN = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The conversation, store and agent that a command works on."""

    conversation: Conversation
    store: Store
    agent: Agent | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer of a command."""

    text: str
    """Markdown, readable without rendering."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The facts of `text` as JSON values."""
    next_session: str | None = None
    """The session in which the agent should continue."""
    failed: bool = False


CommandHandler = Callable[[CommandScope, str], Awaitable[CommandResult]]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command: its name without the slash, its usage, its help."""

    name: str
    usage: str
    help: str
    handler: CommandHandler
    changes_context: bool
    """Whether it changes the context, so that it cannot run during a turn."""


COMMANDS: list[Command] = []
"""All commands, in the order of `/help`."""


def command(
    usage: str, help_text: str, *, changes_context: bool = False
) -> Callable[[CommandHandler], CommandHandler]:
    """Register a function as a slash command."""

    def register(handler: CommandHandler) -> CommandHandler:
        COMMANDS.append(
            Command(
                usage.split(maxsplit=1)[0].removeprefix("/"),
                usage,
                help_text,
                handler,
                changes_context,
            )
        )
        return handler

    return register


def parse(text: str) -> tuple[str, str] | None:
    """Return the name and argument of a command, or None for a message, including a path such as `/etc/hosts`."""
    match = _COMMAND_PATTERN.fullmatch(text.strip())
    return (_resolve_name(match[1]), (match[2] or "").strip()) if match else None


def _resolve_name(name: str) -> str:
    return ALIASES.get(name.lower(), name.lower())


async def run(agent: Agent | Conversation, store: Store, text: str) -> CommandResult:
    """Run a command. An error is part of the result."""
    parsed = parse(text)
    if parsed is None:
        return CommandResult(
            f"{text.strip()[:80]!r} is not a command; /help lists them.", failed=True
        )
    name, argument = parsed
    found_command = next((candidate for candidate in COMMANDS if candidate.name == name), None)
    if found_command is None:
        return _reply_unknown(name)
    owner = agent if isinstance(agent, Agent) else None
    if owner is not None and owner.is_busy and found_command.changes_context:
        return CommandResult(
            f"A turn is running: stop it, or repeat /{name} when it is over.",
            failed=True,
        )
    scope = CommandScope(owner.conversation if owner else agent, store, owner)  # type: ignore[arg-type]  # one or the other
    try:
        return await found_command.handler(scope, argument)
    except EverthreadError as error:
        return CommandResult(f"/{name} failed: {error}", {"error": str(error)}, failed=True)


def _reply_unknown(name: str) -> CommandResult:
    names = [candidate.name for candidate in COMMANDS]
    similar_names = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    similar_names += [
        longer_name
        for longer_name in names
        if longer_name.startswith(name) and longer_name not in similar_names
    ]
    hint = ""
    if similar_names:
        hint = f" Did you mean {' or '.join(f'/{similar}' for similar in similar_names)}?"
    return CommandResult(
        f"There is no command /{name}.{hint} /help lists them all.",
        {"near": similar_names},
        failed=True,
    )


def join_paragraphs(*blocks: str | Sequence[str]) -> str:
    """Join Markdown blocks with blank lines; a list is one block, empty blocks are skipped."""
    texts = [
        block if isinstance(block, str) else "\n".join(f"- {item}" for item in block)
        for block in blocks
    ]
    return "\n\n".join(text for text in texts if text)


@command("/help [COMMAND]", "list the commands")
async def show_help(_scope: CommandScope, argument: str) -> CommandResult:
    name = _resolve_name(argument.lstrip("/"))
    shown_commands = [candidate for candidate in COMMANDS if name in ("", candidate.name)]
    if not shown_commands:
        return _reply_unknown(name)
    lines = [f"- `{candidate.usage}`: {candidate.help}" for candidate in shown_commands]
    data = {
        "commands": [
            {"name": candidate.name, "usage": candidate.usage, "help": candidate.help}
            for candidate in shown_commands
        ]
    }
    return CommandResult("\n".join(lines), data)
