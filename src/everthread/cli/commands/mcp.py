"""`everthread mcp`: a Model Context Protocol server for past conversations."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.end_signals import watch_end_signals
from everthread.cli.output import escape_controls
from everthread.cli.shared_options import StoreOption
from everthread.cli.store_access import with_store
from everthread.core.packages import require_package
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.store import Store


def mcp(
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only this thread: its id or the first characters of it. Default: all.",
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Only the conversations of this tenant. Default: all."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve HTTP at this address instead of standard input and output.",
        ),
    ] = None,
    store_url: StoreOption = None,
) -> None:
    """Search, read and pin past conversations from any MCP client.

    A client starts it by itself: claude mcp add everthread -- everthread mcp
    """
    address = _parse_address(http) if http is not None else None
    require_package("mcp", extra="mcp")
    from everthread.gateway import mcp_server as server
    from everthread.gateway.mcp_tools import LookupReach, LookupTools

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    async def serve(store: Store) -> None:
        reach = LookupReach(tenant)
        if thread is not None:
            session = await store.resolve(thread, tenant=tenant)
            reach = LookupReach(session.tenant, session.thread, is_confined=True)
        app = server.make_server(LookupTools(store), reach)
        if address is None:
            await server.serve_streams(app)
            return
        stop_event = watch_end_signals()
        async with server.serve_http(app, *address) as url:
            typer.echo(
                escape_controls(f"Everthread answers MCP clients at {url}. Ctrl-C ends it."),
                err=True,
            )
            await stop_event.wait()

    with contextlib.suppress(KeyboardInterrupt):
        with_store(store_url, serve, create=True)


def _parse_address(text: str) -> tuple[str, int]:
    from everthread.gateway.site_policy import is_loopback

    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8485")
    if not is_loopback(host):
        raise InputError(
            f"without keys it listens on this machine only, not on {host}; for others use `everthread serve` with "
            "keys, which answers at /mcp"
        )
    return host, int(port)
