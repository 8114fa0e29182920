"""`everthread dashboard`: the pages for people on a store, without a gateway."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.options import StoreUrl, number_option, with_store
from everthread.cli.output import json_text, visible
from everthread.config import load_config

if TYPE_CHECKING:
    from everthread.store.store import Store


def dashboard(
    store: StoreUrl = None,
    port: Annotated[int, number_option(most=65535, text="0 finds a free one.")] = 8485,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """See your context: threads, windows, calls, compactions and what they cost, as pages in a browser.

    It reads the store and listens on this machine only; the link works once. Ctrl-C ends it.
    """
    from everthread.factory.dashboard import open_dashboard
    from everthread.lab.replay.trial import Trials

    config = load_config()

    async def run(held: Store) -> None:
        enough = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, enough.set)
        address = ""

        def announce(path: str) -> None:
            typer.echo(f"A link that works once: {address}{path}")

        trials = Trials()
        async with open_dashboard(config, held, port=port, trial=trials.run, announce=announce) as (url, pages):
            address = url
            link = f"{url}{pages.new_link()}"
            typer.echo(json_text({"url": url, "link": link}) if as_json else visible(f"See your context: {link}"))
            if not as_json:
                typer.echo("The link works once. Ctrl-C ends it.")
            if open_browser:
                webbrowser.open(link)
            await enough.wait()

    with_store(store, run, or_empty=True)
