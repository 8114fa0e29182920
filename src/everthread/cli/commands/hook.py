"""`everthread hook CLIENT`: answer a hook of Claude Code or Codex, or a plug-in of opencode or pi."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import escape_controls
from everthread.cli.shared_options import StoreOption
from everthread.cli.store_access import with_store
from everthread.errors import EverthreadError, InputError

if TYPE_CHECKING:
    from everthread.store.store import Store


def hook(
    client: Annotated[
        str,
        typer.Argument(help="The program that calls the hook: claude-code, codex, opencode or pi."),
    ],
    store_url: StoreOption = None,
) -> None:
    """Answer a hook of an agent: keep the context over a compaction, shorten large results.

    The hook's JSON is read from standard input, the answer is written to standard output. The plug-ins call it. A
    failure exits with 1: to these programs, 2 would mean that the compaction or the result is refused.
    """
    try:
        answer = _answer_hook(client, store_url)
    except EverthreadError as error:
        typer.echo(escape_controls(f"everthread: {error}"), err=True)
        raise typer.Exit(1) from error
    if answer is not None:
        typer.echo(json.dumps(answer))


def _answer_hook(client: str, store_url: str | None) -> dict[str, Any] | None:
    from everthread.config import home_directory
    from everthread.lab.extension_hooks import EXTENSIONS, ExtensionHooks
    from everthread.lab.hooks import CLIENTS, Hooks

    known_clients = (*CLIENTS, *EXTENSIONS)
    if client not in known_clients:
        raise InputError(f"{client!r} is unknown; use one of: {', '.join(known_clients)}")
    try:
        hook_input = json.load(sys.stdin)
    except ValueError as error:
        raise InputError(f"standard input is not the JSON of a hook: {error}") from error
    if not isinstance(hook_input, dict):
        raise InputError("standard input is not the JSON of a hook: it is not an object")

    async def run(store: Store) -> dict[str, Any] | None:
        if client in EXTENSIONS:
            return await ExtensionHooks(client, store).answer(hook_input)
        return await Hooks(client, store, home_directory() / "hooks").answer(hook_input)

    return with_store(store_url, run, create=True)
