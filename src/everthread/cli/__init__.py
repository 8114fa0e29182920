"""The `everthread` command: one file a command.

Exit codes: 0 done, 1 failed, 2 bad input. Bad input is one clear line on standard error.
"""

from __future__ import annotations

import sys

import typer

from everthread._version import __version__
from everthread.cli import compress, config, db, insights, inspect, lab, models, plugins, sessions, tokens, usage
from everthread.cli.output import visible
from everthread.errors import EverthreadError, InputError

app = typer.Typer(
    name="everthread",
    help="Keeps a conversation with a language model going past the model's context window.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("tokens")(tokens.tokens)
app.command("inspect")(inspect.inspect)
app.command("compress")(compress.compress)
app.add_typer(sessions.app, name="sessions")
app.command("usage")(usage.usage)
app.command("insights")(insights.insights)
app.add_typer(plugins.app, name="plugins")
app.add_typer(config.app, name="config")
app.add_typer(models.app, name="models")
app.add_typer(db.app, name="db")
app.add_typer(lab.app, name="lab")


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
    try:
        app()
    except InputError as error:
        typer.echo(visible(f"everthread: {error}"), err=True)
        sys.exit(2)
    except EverthreadError as error:
        typer.echo(visible(f"everthread: {error}"), err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader (head, less) has left; that is its right. Keep the interpreter from complaining at exit.
        sys.stderr.close()
        sys.exit(1)
