"""`everthread mcp`: a Model Context Protocol server for past conversations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.options import StoreUrl, store_address, watch_end_signals
from everthread.cli.output import visible
from everthread.errors import ConfigError, InputError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from everthread.gateway.mcp import LookupReach
    from everthread.store.store import Store


def mcp(
    thread: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this thread: its id or the first characters of it. Default: all."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant of the conversations. Default: the thread's, or `default`.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve HTTP there instead of standard input and output.")
    ] = None,
    store: StoreUrl = None,
) -> None:
    """Search, read and pin past conversations from any MCP client.

    A client starts it by itself: claude mcp add everthread -- everthread mcp
    """
    try:
        from everthread.gateway import mcp as server
    except ImportError as error:
        raise ConfigError(
            f"`everthread mcp` needs a package that is not here ({error}): pip install 'everthread[mcp]'"
        ) from error
    from everthread import factory
    from everthread.gateway.mcp import LookupTools

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    address = _parse_address(http) if http is not None else None
    opened = factory.open_store(store_address(store))

    async def run() -> None:
        try:
            app = server.make_server(LookupTools(opened), await _reach(opened, tenant, thread))
            await (_listen(app, *address) if address else server.serve_streams(app))
        finally:
            await opened.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


async def _reach(store: Store, tenant: str | None, thread: str | None) -> LookupReach:
    from everthread.gateway.mcp import LookupReach
    from everthread.store.models import DEFAULT_TENANT

    if thread is None:
        return LookupReach(tenant or DEFAULT_TENANT)
    session = await store.resolve(thread, tenant=tenant)
    return LookupReach(session.tenant, session.thread, confined=True)


def _parse_address(text: str) -> tuple[str, int]:
    from everthread.gateway.middleware import is_loopback

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


async def _listen(app: Server[Any], host: str, port: int) -> None:
    from everthread.gateway.mcp import serve_http

    ended = watch_end_signals()
    async with serve_http(app, host, port) as url:
        typer.echo(visible(f"Everthread answers MCP clients at {url}. Ctrl-C ends it."), err=True)
        await ended.wait()
