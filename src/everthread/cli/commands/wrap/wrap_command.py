"""`everthread wrap`: start another agent with a gateway of its own, without changing the user's files."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from everthread.cli.commands.wrap.client_run import (
    ClientRun,
    GatewayOverrides,
    run_with_own_gateway,
    run_with_running_gateway,
)
from everthread.cli.commands.wrap.wrapped_clients import (
    CLIENTS,
    URL_PLACEHOLDER,
    WrappedClient,
    format_settings,
    make_settings,
)
from everthread.cli.output import encode_json, indent_further_lines
from everthread.cli.shared_options import JsonOption, LogFileOption, UpstreamOption
from everthread.errors import InputError

TYPER_OPTIONS = {"context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}}


ClientArgument = Annotated[str, typer.Argument(help=f"One of {', '.join(CLIENTS)}.")]
GatewayOption = Annotated[
    str | None,
    typer.Option(help="Use this gateway, which is running, instead of a new one."),
]


ListOption = Annotated[bool, typer.Option("--list", help="The clients, and which are installed.")]
PrintOption = Annotated[
    bool, typer.Option("--print", help="Print what would be set, and start nothing.")
]
McpOption = Annotated[
    bool,
    typer.Option(
        "--mcp",
        help="Attach our MCP server, if the client accepts one, instead of the tool recall.",
    ),
]
IdleOption = Annotated[
    bool,
    typer.Option(
        "--idle",
        help="Compact during pauses, shortly before the provider's cache expires.",
    ),
]
PassiveOption = Annotated[
    bool,
    typer.Option(
        "--passive",
        help="Only watch: record threads and figures, and change no request.",
    ),
]


def wrap(
    context: typer.Context,
    client: ClientArgument = "",
    gateway: GatewayOption = None,
    upstream: UpstreamOption = None,
    list_clients: ListOption = False,
    print_only: PrintOption = False,
    mcp: McpOption = False,
    idle: IdleOption = False,
    passive: PassiveOption = False,
    log: LogFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start another agent behind a gateway, and print a summary when it exits.

    Arguments after `--` are passed to the agent; `{url}` in them is replaced with the
    gateway's address, which is also in EVERTHREAD_URL. Only this process is changed:
    variables, flags, a configuration in a temporary folder.
    """
    if list_clients:
        _print_clients(as_json=as_json)
        return
    wrapped_client = _find_client(client, with_mcp=mcp)
    if gateway and (idle or passive):
        raise InputError(
            "--idle and --passive are options of a new gateway, not of one that is running"
        )
    overrides = GatewayOverrides(should_compact_when_idle=idle, is_passive=passive, log_file=log)
    with tempfile.TemporaryDirectory(prefix="everthread-") as name:
        run = ClientRun(wrapped_client, context.args, Path(name), with_mcp=mcp)
        url = gateway.rstrip("/") if gateway else ""
        if print_only:
            _print_settings(run, url or URL_PLACEHOLDER, as_json=as_json)
            return
        if shutil.which(wrapped_client.program) is None:
            raise InputError(f"{wrapped_client.program} is not installed, or not in PATH")
        if url:
            exit_code = asyncio.run(run_with_running_gateway(run, url))
        else:
            exit_code = asyncio.run(run_with_own_gateway(run, upstream or [], overrides))
    raise typer.Exit(exit_code)


def _print_clients(*, as_json: bool) -> None:
    """Print every client and whether it is installed."""
    rows = [
        {
            "client": client.name,
            "installed": shutil.which(client.program) is not None,
            "note": client.note,
        }
        for client in CLIENTS.values()
    ]
    if as_json:
        typer.echo(encode_json(rows))
        return
    for row in rows:
        state = "installed" if row["installed"] else "–"
        note = indent_further_lines(str(row["note"]), indent=21)
        typer.echo(f"{row['client']:9} {state:9}  {note}")


def _find_client(name: str, *, with_mcp: bool) -> WrappedClient:
    """Return the client of this name. Raise `InputError` if there is none, or if it cannot take an MCP server."""
    client = CLIENTS.get(name)
    if client is None:
        problem = f"{name} is not a client that can be wrapped" if name else "name a client"
        raise InputError(f"{problem}: {', '.join(CLIENTS)}")
    if with_mcp and not client.takes_mcp:
        names = ", ".join(candidate.name for candidate in CLIENTS.values() if candidate.takes_mcp)
        raise InputError(f"{client.name} takes no MCP server for one run; these do: {names}")
    return client


def _print_settings(run: ClientRun, url: str, *, as_json: bool) -> None:
    if not as_json:
        typer.echo(format_settings(run.client, run.folder, url, with_mcp=run.with_mcp))
        return
    variables, arguments = make_settings(run.client, url, run.folder, with_mcp=run.with_mcp)
    program = run.client.program
    settings = {"program": program, "variables": variables, "arguments": arguments}
    typer.echo(encode_json(settings))
