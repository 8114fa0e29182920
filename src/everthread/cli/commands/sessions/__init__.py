"""`everthread sessions …`: find, read, move and undo stored conversations. One file a subcommand."""

from __future__ import annotations

import typer

from everthread.cli.commands.sessions.delete import delete
from everthread.cli.commands.sessions.export_threads import export_threads
from everthread.cli.commands.sessions.import_files import import_files
from everthread.cli.commands.sessions.list_threads import list_threads
from everthread.cli.commands.sessions.search import search
from everthread.cli.commands.sessions.show import show
from everthread.cli.commands.sessions.state import state
from everthread.cli.commands.sessions.tree import tree
from everthread.cli.commands.sessions.undo import undo

app = typer.Typer(
    help="Stored conversations: find, read, move and undo them.", no_args_is_help=True
)
app.command("list")(list_threads)
app.command()(state)
app.command()(undo)
app.command()(delete)
app.command("export")(export_threads)
app.command("import")(import_files)
app.command()(show)
app.command()(tree)
app.command()(search)
