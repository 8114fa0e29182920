"""Run a command in a shell."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from typing import Any

from everthread.agent import processes
from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import Workspace, explain_os_errors, quote_name
from everthread.errors import InputError

SECONDS = 120
MAX_SECONDS = 600
MAX_COMMAND_BYTES = 100_000
"""Longest command in bytes: the most a system passes in one argument."""
SCHEMA = args.build_schema(
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
            "maximum": MAX_SECONDS,
            "description": f"Seconds after which it is ended with everything it started (default {SECONDS}).",
        },
        "workdir": {
            "type": "string",
            "description": "The folder to run in, inside the workspace (default: its top).",
        },
    },
    ["command"],
)


class Terminal:
    """The tool `terminal`."""

    name = "terminal"
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Return the permission that a command needs, in the folder it runs in."""
        space = Workspace(context.workspace)
        command = _read_command(arguments)
        return _permission(
            command,
            space.relative(
                space.resolve(args.read_text(arguments, "workdir", default="."))
            ),
        )

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        command = _read_command(arguments)
        seconds = args.read_int(
            arguments, "timeout", default=SECONDS, minimum=1, maximum=MAX_SECONDS
        )
        space = Workspace(context.workspace)
        workdir = args.read_text(arguments, "workdir", default=".")
        folder = space.resolve(workdir)
        if context.allowed not in (None, _permission(command, space.relative(folder))):
            raise InputError(
                f"the workdir {quote_name(workdir)} is no longer the folder that was shown; nothing was run"
            )
        if context.environment is None:
            return ToolReply("Commands cannot be run here.", failed=True)
        with explain_os_errors(workdir):
            if not folder.is_dir():
                raise InputError(f"the workdir {quote_name(workdir)} is no folder")
        processes.hide_environment(context.environment)
        shell = shutil.which("bash") or "/bin/sh"
        ended = await processes.run(
            [shell, "-c", command],
            folder=folder,
            environment=context.environment,
            seconds=seconds,
        )
        return ToolReply(_describe_exit(ended, seconds), failed=ended.exit_code != 0)


def _permission(command: str, folder: str) -> Permission:
    return Permission(
        "command", command, "" if folder == "." else f"in {quote_name(folder)}"
    )


def _read_command(arguments: Mapping[str, Any]) -> str:
    args.check_names(arguments, SCHEMA)
    command = args.read_text(arguments, "command")
    if "\0" in command or not command.strip():
        raise InputError("the command is empty or holds a NUL character")
    if len(args.encode_text(command, "command")) > MAX_COMMAND_BYTES:
        raise InputError(
            f"the command is longer than {MAX_COMMAND_BYTES:,} bytes; write it to a file and run that"
        )
    return command


def _describe_exit(ended: processes.ProcessExit, seconds: int) -> str:
    if ended.exit_code is None:
        first = f"exit code: none; it timed out after {seconds} s and was ended with everything it had started"
    elif ended.exit_code < 0:
        first = f"exit code: {128 - ended.exit_code} (ended by {_signal_name(-ended.exit_code)})"
    else:
        first = f"exit code: {ended.exit_code}"
    last = (
        f"\n[something it started still runs in the background; to end it: kill -- {' '.join(map(str, ended.running))}]"
        if ended.running
        else ""
    )
    return f"{first}\n{ended.output.rstrip() or '(no output)'}{last}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
