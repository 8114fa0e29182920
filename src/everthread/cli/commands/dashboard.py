"""`everthread dashboard`: serve the gateway's pages for a store, without a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.end_signals import leave_on_interrupt, watch_end_signals
from everthread.cli.output import encode_json, escape_controls
from everthread.cli.shared_options import JsonOption, PortOption, StoreOption
from everthread.cli.store_access import with_store
from everthread.config import load_config

if TYPE_CHECKING:
    from everthread.store.store import Store


def dashboard(
    store_url: StoreOption = None,
    port: PortOption = 8485,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """See your context: threads, windows, calls, compactions and their cost, as pages in a browser.

    It reads the store and listens on this machine only; the link works once. Ctrl-C ends it.
    """
    leave_on_interrupt()
    from everthread.factory.dashboards import open_dashboard
    from everthread.lab.replay.trial import run_trial

    config = load_config()

    async def serve_pages(store: Store) -> None:
        stop_event = watch_end_signals()
        address = ""

        def announce(path: str) -> None:
            typer.echo(f"A link that works once: {address}{path}")

        async with open_dashboard(config, store, port=port, trial=run_trial, announce=announce) as (
            url,
            pages,
        ):
            address = url
            link = f"{url}{pages.login.make_login_link()}"
            if as_json:
                typer.echo(encode_json({"url": url, "link": link}))
            else:
                typer.echo(escape_controls(f"See your context: {link}"))
                typer.echo("The link works once. Ctrl-C ends it.")
            if open_browser:
                import webbrowser

                webbrowser.open(link)
            await stop_event.wait()

    with_store(store_url, serve_pages, empty_if_missing=True)
