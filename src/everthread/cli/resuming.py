"""`--resume [ID]` and `--continue`: which thread goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.models import ThreadRow
    from everthread.store.store import Store

PLATFORM = "terminal"
"""Where these sessions come from, as accounts have it."""
NO_ID = "?"
"""What `--resume` means where no id follows it. No id looks like this."""

Resume = Annotated[
    str | None,
    typer.Option("--resume", "-r", metavar="[ID]", help="Go on with a thread; without an id, with one of the last."),
]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Go on with the thread that was used last.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="The model's name. Default: the configured one.")]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Where its tools work.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Allow every command and every write, unasked.")]


class Resuming(TyperCommand):
    """A command whose `--resume` may stand without an id."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_ids(args))


def with_ids(args: list[str]) -> list[str]:
    """The arguments with a stand-in for the id where none follows."""
    given: list[str] = []
    for at, word in enumerate(args):
        given.append(word)
        if word == "--":
            return [*given, *args[at + 1 :]]
        if word in ("--resume", "-r") and (at + 1 == len(args) or args[at + 1].startswith("-")):
            given.append(NO_ID)
    return given


async def recent(store: Store, count: int) -> list[ThreadRow]:
    """Threads in which something was said, the last used first; those of subagents are no threads of a person."""
    rows = await store.list_threads(limit=4 * count)
    return [row for row in rows if row.first.kind != "subagent" and row.messages][:count]


async def latest(store: Store) -> str:
    """The thread that was used last."""
    found = await recent(store, 1)
    if not found:
        raise InputError("there is no thread to go on with yet; leave --continue and --resume out")
    return found[0].first.id
