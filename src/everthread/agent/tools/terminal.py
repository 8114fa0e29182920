"""Run a command in a shell."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from typing import Any

from everthread.agent.child_environment import hide_environment
from everthread.agent.processes import ProcessExit, run_program
from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import Workspace, explain_os_errors, quote_name
from everthread.core.tool_schemas import build_schema
from everthread.errors import InputError

DEFAULT_TIMEOUT_SECONDS = 120
MAX_TIMEOUT_SECONDS = 600
MAX_COMMAND_BYTES = 100_000
"""Maximum bytes of a command, because systems limit one argument."""
TERMINAL_SCHEMA = build_schema(
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
            "maximum": MAX_TIMEOUT_SECONDS,
            "description": "Seconds after which it is ended with everything it started "
            f"(default {DEFAULT_TIMEOUT_SECONDS}).",
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
    schema = TERMINAL_SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Return the permission that a command needs, in the folder it runs in."""
        workspace = Workspace(context.workspace)
        command = _read_command(arguments)
        return _make_permission(
            command,
            workspace.make_relative_name(
                workspace.resolve(args.read_text(arguments, "workdir", default="."))
            ),
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        command = _read_command(arguments)
        timeout_seconds = args.read_int(
            arguments,
            "timeout",
            default=DEFAULT_TIMEOUT_SECONDS,
            minimum=1,
            maximum=MAX_TIMEOUT_SECONDS,
        )
        workspace = Workspace(context.workspace)
        workdir = args.read_text(arguments, "workdir", default=".")
        folder = workspace.resolve(workdir)
        if context.allowed not in (
            None,
            _make_permission(command, workspace.make_relative_name(folder)),
        ):
            raise InputError(
                f"the workdir {quote_name(workdir)} is no longer the folder that was shown; nothing was run"
            )
        if context.environment is None:
            return ToolReply("Commands cannot be run here.", failed=True)
        with explain_os_errors(workdir):
            if not folder.is_dir():
                raise InputError(f"the workdir {quote_name(workdir)} is no folder")
        hide_environment(context.environment)
        shell = shutil.which("bash") or "/bin/sh"
        process_exit = await run_program(
            [shell, "-c", command],
            folder=folder,
            environment=context.environment,
            timeout_seconds=timeout_seconds,
        )
        return ToolReply(
            _describe_exit(process_exit, timeout_seconds), failed=process_exit.exit_code != 0
        )


def _make_permission(command: str, folder: str) -> Permission:
    return Permission("command", command, "" if folder == "." else f"in {quote_name(folder)}")


def _read_command(arguments: Mapping[str, Any]) -> str:
    args.check_names(arguments, TERMINAL_SCHEMA)
    command = args.read_text(arguments, "command")
    if "\0" in command or not command.strip():
        raise InputError("the command is empty or holds a NUL character")
    if len(args.encode_text(command, "command")) > MAX_COMMAND_BYTES:
        raise InputError(
            f"the command is longer than {MAX_COMMAND_BYTES:,} bytes; write it to a file and run that"
        )
    return command


def _describe_exit(process_exit: ProcessExit, timeout_seconds: int) -> str:
    if process_exit.exit_code is None:
        exit_line = (
            f"exit code: none; it timed out after {timeout_seconds} s "
            "and was ended with everything it had started"
        )
    elif process_exit.exit_code < 0:
        exit_line = f"exit code: {128 - process_exit.exit_code} (ended by {_get_signal_name(-process_exit.exit_code)})"
    else:
        exit_line = f"exit code: {process_exit.exit_code}"
    background_note = ""
    if process_exit.running_processes:
        ids = " ".join(map(str, process_exit.running_processes))
        background_note = (
            f"\n[something it started still runs in the background; to end it: kill -- {ids}]"
        )
    return f"{exit_line}\n{process_exit.output.rstrip() or '(no output)'}{background_note}"


def _get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
