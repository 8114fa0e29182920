"""The `everthread` command: one file a command.

Exit codes: 0 done, 1 failed, 2 bad input. Bad input is one clear line on standard error.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper

import typer

from everthread._version import __version__
from everthread.cli.loading import LazyGroup, announce
from everthread.errors import EverthreadError, InputError

app = typer.Typer(
    name="everthread",
    cls=LazyGroup,
    help="Keeps a conversation with a language model going past the model's context window.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
announce(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"everthread {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command; turn our errors into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")  # what a terminal's encoding lacks is no reason to end
    try:
        app()
    except InputError as error:
        sys.exit(_told(error, 2))
    except EverthreadError as error:
        sys.exit(_told(error, 1))
    except BrokenPipeError:
        # The reader (head, less) has left; that is its right. Keep the interpreter from complaining at exit.
        sys.stderr.close()
        sys.exit(1)


def _told(error: EverthreadError, code: int) -> int:
    from everthread.cli.output import visible

    typer.echo(visible(f"everthread: {error}"), err=True)
    return code
