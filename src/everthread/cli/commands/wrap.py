"""`everthread wrap`: start another agent with a gateway of its own, without changing the user's files."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.commands.serve import parse_upstream
from everthread.cli.output import encode_json, escape_controls, indent_further_lines
from everthread.cli.passive_watch import (
    CHANGES_NOTICE,
    PASSIVE_NOTICE,
    describe_managed_run,
    uses_subscription,
)
from everthread.cli.wrap_receipt import (
    ReceiptFigures,
    read_figures,
    write_receipt,
    write_shared_receipt,
)
from everthread.cli.wrapped_clients import (
    CLIENTS,
    URL_PLACEHOLDER,
    WrappedClient,
    format_settings,
    make_settings,
)
from everthread.config import load_config
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.config import Config

COMMAND = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}
}


ClientArgument = Annotated[str, typer.Argument(help=f"One of {', '.join(CLIENTS)}.")]
GatewayOption = Annotated[
    str | None,
    typer.Option(help="Use this gateway, which is running, instead of a new one."),
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=URL", help="A provider, instead of the configured ones."
    ),
]
ListOption = Annotated[
    bool, typer.Option("--list", help="The clients, and which are installed.")
]
PrintOption = Annotated[
    bool, typer.Option("--print", help="Say what would be set, and start nothing.")
]
McpOption = Annotated[
    bool,
    typer.Option(
        "--mcp",
        help="Attach our MCP server, where the client takes one, instead of the tool recall.",
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
LogOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a JSON line there for each request and compaction.",
    ),
]
AsJsonOption = Annotated[
    bool, typer.Option("--json", help="The list or what would be set as JSON.")
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
    log: LogOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Start another agent behind a gateway, and print a summary when it exits.

    Arguments after `--` are passed to the agent; `{url}` in them is replaced by the
    gateway's address, which is also in EVERTHREAD_URL. Only this process is changed:
    variables, flags, a configuration in a temporary folder.
    """
    if list_clients:
        _print_clients(as_json=as_json)
        return
    wrapped_client = _find_client(client, with_mcp=mcp)
    if gateway and (idle or passive):
        raise InputError("--idle and --passive are settings of the gateway that runs")
    overrides = GatewayOverrides(
        should_compact_when_idle=idle, is_passive=passive, log=log
    )
    with tempfile.TemporaryDirectory(prefix="everthread-") as name:
        run = ClientRun(wrapped_client, context.args, Path(name), with_mcp=mcp)
        url = gateway and gateway.rstrip("/")
        if print_only:
            _print_settings(run, url or URL_PLACEHOLDER, as_json=as_json)
            return
        if shutil.which(wrapped_client.program) is None:
            raise InputError(
                f"{wrapped_client.program} is not installed, or not in PATH"
            )
        exit_code = asyncio.run(
            _run_with_running_gateway(run, url)
            if url
            else _run_with_own_gateway(run, upstream or [], overrides)
        )
    raise typer.Exit(exit_code)


def _print_clients(*, as_json: bool) -> None:
    """Print every client and whether it is installed."""
    rows = [
        {
            "client": values.name,
            "installed": shutil.which(values.program) is not None,
            "note": values.note,
        }
        for values in CLIENTS.values()
    ]
    if as_json:
        typer.echo(encode_json(rows))
        return
    for values in rows:
        state = "installed" if values["installed"] else "–"
        note = indent_further_lines(str(values["note"]), indent=21)
        typer.echo(f"{values['client']:9} {state:9}  {note}")


def _find_client(name: str, *, with_mcp: bool) -> WrappedClient:
    """Return the client of this name; raise `InputError` if there is none, or if it cannot take an MCP server."""
    client = CLIENTS.get(name)
    if client is None:
        problem = (
            f"{name} is not a client that can be wrapped" if name else "name a client"
        )
        raise InputError(f"{problem}: {', '.join(CLIENTS)}")
    if with_mcp and not client.takes_mcp:
        names = ", ".join(
            candidate.name for candidate in CLIENTS.values() if candidate.takes_mcp
        )
        raise InputError(
            f"{client.name} takes no MCP server for one run; these do: {names}"
        )
    return client


@dataclass(frozen=True, slots=True)
class ClientRun:
    """One run of a client: its arguments, a temporary folder for its settings, and whether it gets our MCP server."""

    client: WrappedClient
    arguments: list[str]
    folder: Path
    with_mcp: bool


def _print_settings(run: ClientRun, url: str, *, as_json: bool) -> None:
    if not as_json:
        typer.echo(format_settings(run.client, run.folder, url, with_mcp=run.with_mcp))
        return
    variables, arguments = make_settings(
        run.client, url, run.folder, with_mcp=run.with_mcp
    )
    typer.echo(
        encode_json(
            {
                "program": run.client.program,
                "variables": variables,
                "arguments": arguments,
            }
        )
    )


async def _run_with_own_gateway(
    run: ClientRun, upstreams: list[str], overrides: GatewayOverrides
) -> int:
    """Run the client with a gateway of its own, and print the receipt."""
    from everthread.factory.dashboards import make_thread_costs
    from everthread.factory.gateways import open_gateway
    from everthread.factory.stores import open_store, store_url
    from everthread.gateway.monitoring.log_lines import set_up_logs

    config = overrides.apply(load_config())
    set_up_logs("text", verbose=False, quiet=True, file=overrides.log)
    named_upstreams = [
        parse_upstream(text, config.gateway.mode) for text in upstreams
    ] or None
    store = await asyncio.to_thread(open_store, store_url(config))
    started_at = time.time()
    try:
        gateway_context = open_gateway(
            config,
            host="127.0.0.1",
            port=0,
            auth="none",
            store=store,
            upstreams=named_upstreams,
        )
        if overrides.is_passive:
            typer.echo(PASSIVE_NOTICE, err=True)
        elif uses_subscription(run.client.name, os.environ, Path.home()):
            typer.echo(CHANGES_NOTICE, err=True)
        async with gateway_context as gateway:
            exit_code = await _run_client(run, gateway.url)
        insights = await store.insights(
            since=started_at, until=time.time() + 1, platform="gateway"
        )
        comparison = await make_thread_costs(config, store).load_savings(started_at)
        managed_run_text = ""
        if overrides.is_passive:
            managed_run_text = await describe_managed_run(config, store, started_at)
    finally:
        await store.close()
    receipt_text = write_receipt(
        run.client.name, ReceiptFigures.from_insights(insights), comparison
    )
    typer.echo(
        escape_controls(f"{receipt_text}\n{managed_run_text}".rstrip()), err=True
    )
    return exit_code


async def _run_with_running_gateway(run: ClientRun, url: str) -> int:
    """Run the client with a gateway that is already running, and print that gateway's figures."""
    started_at = time.time()
    figures_before = await read_figures(url, started_at)
    exit_code = await _run_client(run, url)
    figures_after = await read_figures(url, started_at)
    receipt = write_shared_receipt(run.client.name, url, figures_before, figures_after)
    typer.echo(escape_controls(receipt), err=True)
    return exit_code


async def _run_client(run: ClientRun, url: str) -> int:
    """Run the client on this terminal; only the client reacts to Ctrl-C. Return its exit code."""
    variables, arguments = make_settings(
        run.client, url, run.folder, with_mcp=run.with_mcp
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    process = await asyncio.create_subprocess_exec(
        shutil.which(run.client.program) or run.client.program,
        *arguments,
        *(argument.replace("{url}", url) for argument in run.arguments),
        env={**os.environ, **variables},
    )
    loop.add_signal_handler(signal.SIGTERM, process.terminate)
    return await process.wait()


@dataclass(frozen=True, slots=True)
class GatewayOverrides:
    """How the gateway of one run differs from the configured one."""

    should_compact_when_idle: bool
    """Whether to compact shortly before the provider's cache expires."""
    is_passive: bool
    """Whether to leave every request unchanged."""
    log: Path | None

    def apply(self, config: Config) -> Config:
        """Return the configuration with these differences."""
        if self.should_compact_when_idle:
            compression = config.compression.model_copy(update={"idle": True})
            config = config.model_copy(update={"compression": compression})
        if not self.is_passive:
            return config
        upstreams = [
            upstream.model_copy(update={"mode": "observe"})
            for upstream in config.gateway.upstreams
        ]
        updates = {"mode": "observe", "upstreams": upstreams}
        gateway = config.gateway.model_copy(update=updates)
        return config.model_copy(update={"gateway": gateway})
