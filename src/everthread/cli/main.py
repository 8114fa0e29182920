"""The `everthread` command: its list of commands, each loaded when it is called.

Exit codes: 0 done, 1 failed, 2 bad input. Bad input prints one clear line on standard error.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from everthread._version import __version__
from everthread.errors import EverthreadError, InputError

COMMAND_GROUPS = {
    "Start": {
        "init": "Set up the model, its key and the gateway.",
        "doctor": "Diagnose your setup and suggest fixes.",
        "config": "The configuration: show, change and check it.",
        "models": "Models: their windows and prices, the one in use, and the one on this machine.",
    },
    "Chat": {
        "chat": "Talk with a model that has tools, in this directory.",
        "run": "Do one task and print the answer.",
    },
    "In front of other programs": {
        "serve": "Serve an endpoint that gives any client an unlimited conversation.",
        "wrap": "Start another agent behind a gateway, and print a summary when it exits.",
        "dashboard": (
            "See your context: threads, windows, calls, compactions and their cost, as pages in a browser."
        ),
        "keys": "Keys of the gateway: who may use it, for what, and how much a day.",
        "mcp": "Search, read and pin past conversations from any MCP client.",
        "statusline": "Print one line about a session: context used, threshold, cache, dollars.",
        "hook": "Answer a hook of an agent: keep the context over a compaction, shorten large results.",
    },
    "Stored conversations": {
        "sessions": "Stored conversations: find, read, move and undo them.",
        "usage": "Show the tokens and the cost of a thread, or of all.",
        "insights": (
            "Show usage and cost by day, model, platform, task and tool, and what compaction saved. Days are UTC."
        ),
        "db": "The store: check, migrate, back up and compact it.",
    },
    "Recorded conversations": {
        "tokens": "Count the tokens of a conversation: by role, by tool, by message.",
        "inspect": "Show turns, tool groups, validity problems and what repair would do.",
        "compress": "Compact a conversation: prune, cut, summarise, verify, assemble.",
        "replay": "Replay recorded conversations: context, compactions, cache, cost and facts kept.",
        "tune": "Propose a threshold for each model, from replays of your own sessions.",
        "continue": "Continue a session of one agent in another: write its compacted context as a log of the other.",
        "compare": "Compare the summaries that agents made of their own sessions with Everthread's.",
    },
    "More": {
        "plugins": "Context engines: list them, and choose one.",
        "lab": "Try it out: a simulated provider.",
    },
}
"""The panels of the help, with the first words of each command's own help; a test compares them."""
COMMANDS = {name: text for commands in COMMAND_GROUPS.values() for name, text in commands.items()}
KEYWORD_COMMANDS = {"continue": "continue_"}
"""Commands whose name is a keyword of Python: the name of their function and file."""
EXAMPLES = """Examples:

everthread wrap claude (run Claude Code past its context window)

everthread replay --latest (what did your newest session cost, and what would it have cost?)

everthread init, then everthread chat (set up a model and talk to it)

everthread serve (a URL that gives any client an unlimited conversation)

everthread sessions import --from claude-code (make past sessions searchable)
"""
HELP_OPTION_NAMES = ["-h", "--help"]
_LINE_BREAK_PATTERN = re.compile(r"(?<!\n)\n(?!\n)")
"""A line break within a paragraph."""


class LazyGroup(TyperGroup):
    """A group that loads a command when it is called, so that `--help` loads none."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """Load a command: the `app` of its module or package if it has one, else the function of that name.

    A module's `TYPER_OPTIONS` holds further arguments for Typer.
    """
    function_name = KEYWORD_COMMANDS.get(name, name)
    module = import_module(f"everthread.cli.commands.{function_name}")
    parent_app = typer.Typer()
    if hasattr(module, "app"):
        parent_app.add_typer(module.app, name=name)
    else:
        parent_app.command(name, **getattr(module, "TYPER_OPTIONS", {}))(
            getattr(module, function_name)
        )
        parent_app.callback()(_do_nothing)
    command = get_group(parent_app).commands[name]
    _format_help(command)
    return command


def _format_help(command: Any) -> None:
    """Show the name of a value (`--model MODEL`) instead of its type, and nothing after a flag.

    Also join the lines of each paragraph of the help, so that it is wrapped to the terminal's width.
    """
    command.help = _LINE_BREAK_PATTERN.sub(" ", command.help or "")
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        if parameter.metavar is None:
            parameter.metavar = (
                "" if not is_argument and parameter.is_flag else parameter.name.upper()
            )
        if is_argument:
            parameter.display_type_rich = _hide_type
    command.get_help_option(
        typer.Context(command, help_option_names=HELP_OPTION_NAMES)
    ).metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _format_help(subcommand)


def _hide_type(ctx: Any) -> None:
    """Show no type beside an argument: each is a text."""


def _do_nothing() -> None:
    """Do nothing: registered for each command until it is loaded."""


app = typer.Typer(
    name="everthread",
    cls=LazyGroup,
    help="Keeps a conversation with a language model going past the model's context window.",
    epilog=EXAMPLES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_OPTION_NAMES},
)
for panel, commands in COMMAND_GROUPS.items():
    for name, text in commands.items():
        app.command(name, help=text, rich_help_panel=panel)(_do_nothing)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"everthread {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        metavar="",
        callback=_print_version,
        is_eager=True,
        help="Print the version.",
    ),
) -> None:
    pass


def main() -> None:
    """Run the command; turn errors of Everthread into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            # A character the terminal lacks must not end the command.
            stream.reconfigure(errors="replace")
    try:
        app()
    except EverthreadError as error:
        from everthread.cli.output import print_error

        print_error(f"everthread: {error}")
        sys.exit(2 if isinstance(error, InputError) else 1)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe. Keep the interpreter from complaining at exit.
        sys.stderr.close()
        sys.exit(1)
