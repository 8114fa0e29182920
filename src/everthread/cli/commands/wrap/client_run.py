"""Run a client through a gateway of its own, or through one that is already running."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from everthread.cli.commands.wrap.notices import (
    CHANGES_NOTICE,
    PASSIVE_NOTICE,
    describe_managed_run,
    uses_subscription,
)
from everthread.cli.commands.wrap.receipt import (
    ReceiptFigures,
    format_receipt,
    format_shared_receipt,
    read_figures,
)
from everthread.cli.commands.wrap.wrapped_clients import WrappedClient, make_settings
from everthread.cli.output import escape_controls
from everthread.cli.shared_options import parse_upstream
from everthread.config import load_config

if TYPE_CHECKING:
    from everthread.config import Config


@dataclass(frozen=True, slots=True)
class ClientRun:
    """One run of a client, with its arguments and a temporary folder for its settings."""

    client: WrappedClient
    arguments: list[str]
    folder: Path
    with_mcp: bool


async def run_with_own_gateway(
    run: ClientRun, upstreams: list[str], overrides: GatewayOverrides
) -> int:
    """Run the client with a gateway of its own, and print the receipt."""
    from everthread.factory.dashboards import make_thread_costs
    from everthread.factory.gateways import open_gateway
    from everthread.factory.stores import open_store, store_url
    from everthread.gateway.monitoring.log_lines import set_up_logs

    config = overrides.apply(load_config())
    set_up_logs("text", verbose=False, quiet=True, file=overrides.log_file)
    named_upstreams = [parse_upstream(text, config.gateway.mode) for text in upstreams] or None
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
        insights = await store.usage.load_insights(
            since=started_at, until=time.time() + 1, platform="gateway"
        )
        comparison = await make_thread_costs(config, store).load_savings(started_at)
        managed_run_text = ""
        if overrides.is_passive:
            managed_run_text = await describe_managed_run(config, store, started_at)
    finally:
        await store.close()
    receipt_text = format_receipt(
        run.client.name, ReceiptFigures.from_insights(insights), comparison
    )
    typer.echo(escape_controls(f"{receipt_text}\n{managed_run_text}".rstrip()), err=True)
    return exit_code


async def run_with_running_gateway(run: ClientRun, url: str) -> int:
    """Run the client with a gateway that is already running, and print that gateway's figures."""
    started_at = time.time()
    figures_before = await read_figures(url, started_at)
    exit_code = await _run_client(run, url)
    figures_after = await read_figures(url, started_at)
    receipt = format_shared_receipt(run.client.name, url, figures_before, figures_after)
    typer.echo(escape_controls(receipt), err=True)
    return exit_code


async def _run_client(run: ClientRun, url: str) -> int:
    """Run the client on this terminal, where only the client reacts to Ctrl-C, and return its exit code."""
    variables, arguments = make_settings(run.client, url, run.folder, with_mcp=run.with_mcp)
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
    """The settings in which the gateway of one run differs from the configured one."""

    should_compact_when_idle: bool
    """Whether to compact shortly before the provider's cache expires."""
    is_passive: bool
    """Whether to leave every request unchanged."""
    log_file: Path | None

    def apply(self, config: Config) -> Config:
        """Return the configuration with these differences."""
        if self.should_compact_when_idle:
            compression = config.compression.model_copy(update={"idle": True})
            config = config.model_copy(update={"compression": compression})
        if not self.is_passive:
            return config
        upstreams = [
            upstream.model_copy(update={"mode": "observe"}) for upstream in config.gateway.upstreams
        ]
        updates = {"mode": "observe", "upstreams": upstreams}
        gateway = config.gateway.model_copy(update=updates)
        return config.model_copy(update={"gateway": gateway})
