"""Run a command in a shell."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from typing import Any

from everthread.agent import processes
from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.agent.workspace import Workspace, explained, quoted
from everthread.errors import InputError

SECONDS, MOST_SECONDS = 120, 600
LONGEST = 100_000
"""Bytes of a command: what a system passes on in one argument."""
SCHEMA = given.schema(
    "terminal",
    "Run a command in a shell and read what it prints (standard output and error together, the exit code first). There "
    "is no standard input and no screen: use options that ask nothing. What is started with & goes on when the command "
    "ends, until the agent is closed; send its output to a file to read it later. Of very long output the middle is "
    "left out.",
    {
        "command": {"type": "string", "description": "The command line."},
        "timeout": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_SECONDS,
            "description": f"Seconds after which it is ended with everything it started (default {SECONDS}).",
        },
        "workdir": {"type": "string", "description": "The folder to run in, inside the workspace (default: its top)."},
    },
    ["command"],
)


class Terminal:
    """The tool `terminal`."""

    name = "terminal"
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Every command needs leave; where it runs matters, too."""
        space, command = Workspace(context.workspace), _command(arguments)
        return _permission(command, space.shown(space.resolve(given.text(arguments, "workdir", default="."))))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        command = _command(arguments)
        seconds = given.number(arguments, "timeout", default=SECONDS, least=1, most=MOST_SECONDS)
        space = Workspace(context.workspace)
        workdir = given.text(arguments, "workdir", default=".")
        folder = space.resolve(workdir)
        if context.allowed not in (None, _permission(command, space.shown(folder))):
            raise InputError(f"the workdir {quoted(workdir)} is no longer the folder that was shown; nothing was run")
        if context.environment is None:
            return ToolReply("Commands cannot be run here.", failed=True)
        with explained(workdir):
            if not folder.is_dir():
                raise InputError(f"the workdir {quoted(workdir)} is no folder")
        processes.seal(context.environment)
        shell = shutil.which("bash") or "/bin/sh"
        done = await processes.run(
            [shell, "-c", command], folder=folder, environment=context.environment, seconds=seconds
        )
        return ToolReply(_told(done, seconds), failed=done.exit_code != 0)


def _permission(command: str, folder: str) -> Permission:
    return Permission("command", command, "" if folder == "." else f"in {quoted(folder)}")


def _command(arguments: Mapping[str, Any]) -> str:
    given.check_names(arguments, SCHEMA)
    command = given.text(arguments, "command")
    if "\0" in command or not command.strip():
        raise InputError("the command is empty or holds a NUL character")
    if len(given.encoded(command, "command")) > LONGEST:
        raise InputError(f"the command is longer than {LONGEST:,} bytes; write it to a file and run that")
    return command


def _told(done: processes.ProcessExit, seconds: int) -> str:
    if done.exit_code is None:
        first = f"exit code: none; it timed out after {seconds} s and was ended with everything it had started"
    elif done.exit_code < 0:
        first = f"exit code: {128 - done.exit_code} (ended by {_signal(-done.exit_code)})"
    else:
        first = f"exit code: {done.exit_code}"
    last = (
        f"\n[something it started still runs in the background; to end it: kill -- {' '.join(map(str, done.running))}]"
        if done.running
        else ""
    )
    return f"{first}\n{done.output.rstrip() or '(no output)'}{last}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
