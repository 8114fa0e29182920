"""`everthread serve`: run the gateway until Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib
from typing import Annotated, Literal

import typer

from everthread.cli.commands.serve.serve_task import ServeTask
from everthread.cli.commands.serve.start_message import StartMessage
from everthread.cli.commands.serve.workers import serve_with_workers
from everthread.cli.end_signals import leave_on_interrupt, watch_end_signals
from everthread.cli.shared_options import (
    JsonOption,
    LogFileOption,
    ModeOption,
    UpstreamOption,
    number_option,
    parse_upstream,
)
from everthread.config import Config, load_config

HostOption = Annotated[
    str | None, typer.Option(help="The address to listen on. Default: gateway.host.")
]
ServePortOption = Annotated[
    int | None,
    number_option(
        maximum=65535, help_text="The port to listen on; 0 finds a free one. Default: gateway.port."
    ),
]
AuthOption = Annotated[
    Literal["keys", "passthrough", "none"] | None,
    typer.Option(
        metavar="AUTH",
        help="`keys`: clients need a key of this gateway; `passthrough`: a credential for the upstream; `none`: "
        "nothing, on this machine only. Default: gateway.auth.",
    ),
]
WorkersOption = Annotated[
    int | None,
    number_option(
        minimum=1,
        maximum=64,
        help_text="Processes that share the port. Default: gateway.workers.",
    ),
]
LogFormatOption = Annotated[
    Literal["text", "json"],
    typer.Option(
        metavar="FORMAT",
        help="How to log on standard error: `text`, or `json` with a line for each request, its id and thread.",
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No line for each request and compaction."),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print more on standard error.")
]


def serve(
    host: HostOption = None,
    port: ServePortOption = None,
    upstream: UpstreamOption = None,
    mode: ModeOption = None,
    auth: AuthOption = None,
    workers: WorkersOption = None,
    log: LogFileOption = None,
    log_format: LogFormatOption = "text",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Serve an endpoint that gives any client an unlimited conversation.

    Ctrl-C ends it after the answers that are under way.
    """
    leave_on_interrupt()
    from everthread.factory.upstreams import add_keys, list_upstreams

    config = load_config()
    _require_auxiliary_sdk(config)
    given_upstreams = [parse_upstream(text, mode or config.gateway.mode) for text in upstream or []]
    auth = auth or config.gateway.auth
    upstreams = add_keys(given_upstreams or list_upstreams(config, mode), auth)
    task = ServeTask(
        config=config,
        upstreams=upstreams,
        host=host or config.gateway.host,
        auth=auth,
        log_format=log_format,
        log_file=log,
        verbose=verbose,
        quiet=quiet or as_json,
    )
    task.set_up_logs()
    port = config.gateway.port if port is None else port
    worker_count = workers or config.gateway.workers
    start_message = StartMessage(task, as_json=as_json)
    if worker_count == 1:
        # Import it now: during the start a signal would wait until the gateway has started.
        importlib.import_module("everthread.factory.gateways")
        asyncio.run(_serve_alone(task, port, start_message))
    else:
        asyncio.run(serve_with_workers(task, port, worker_count, start_message))


def _require_auxiliary_sdk(config: Config) -> None:
    """Raise `MissingPackageError` if the SDK of the auxiliary model is not installed."""
    from everthread.factory.model_setup import check_choice
    from everthread.providers.clients import require_sdk

    auxiliary = config.auxiliary.compression
    if auxiliary.provider == "main" or not (auxiliary.model or auxiliary.base_url):
        return
    choice, _ = check_choice(auxiliary, auxiliary.model or config.model.default)
    if choice is not None:
        require_sdk(choice.api)


async def _serve_alone(task: ServeTask, port: int, start_message: StartMessage) -> None:
    stop_event = watch_end_signals()
    async with task.open_gateway(port=port, announce=start_message.announce) as gateway:
        start_message.print_start(gateway.url, gateway.find_dashboard_url())
        await stop_event.wait()
