"""`everthread serve`: the gateway, until it is told to end."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from everthread.cli.output import json_text, visible
from everthread.config import Config, load_config
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.gateway.base import Auth, Mode
    from everthread.gateway.router import Upstream
    from everthread.gateway.server import Gateway


def serve(
    host: Annotated[str | None, typer.Option(help="Where to listen. Default: gateway.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 finds a free one. Default: gateway.port.")
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL",
            help="A provider to stand in front of, instead of the configured ones; `local`: the small model here.",
        ),
    ] = None,
    mode: Annotated[
        Literal["managed", "observe", "off"] | None,
        typer.Option(help="Rewrite where needed, only record, or neither. Default: gateway.mode."),
    ] = None,
    auth: Annotated[
        Literal["keys", "passthrough", "none"] | None,
        typer.Option(
            help="Let in who shows a key, a credential for the upstream, or anybody here. Default: gateway.auth."
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"],
        typer.Option(help="How to log on standard error: `json` has a line for each request, with its id and thread."),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print where it listens as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for each request and compaction.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on standard error.")] = False,
) -> None:
    """Serve an endpoint that gives any client an unlimited conversation.

    Ctrl-C ends it, after what is being answered.
    """
    from everthread.factory.gateway import open_gateway, upstreams_of, with_keys
    from everthread.gateway.observability import set_up_logs
    from everthread.lab.replay.trial import Trials

    config = load_config()
    known = [named_upstream(text, mode or config.gateway.mode) for text in upstream or []] or upstreams_of(config, mode)
    set_up_logs(log, verbose=verbose, quiet=quiet or as_json)
    known = with_keys(known, auth or config.gateway.auth)

    async def run() -> None:
        enough = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, enough.set)
        url = ""

        def announce(path: str) -> None:
            typer.echo(f"See your context, with a link that works once: {url}{path}", err=as_json)

        opened = open_gateway(
            config, host=host, port=port, upstreams=known, auth=auth, trial=Trials().run, announce=announce
        )
        async with opened as gateway:
            url = gateway.url
            _tell(gateway, known, config, auth or config.gateway.auth, as_json=as_json)
            await enough.wait()

    asyncio.run(run())


def named_upstream(text: str, mode: Mode) -> Upstream:
    """What was named on the command line; the clients' own keys go there."""
    from everthread.factory.gateway import is_local
    from everthread.gateway.router import Upstream

    name, _, url = text.partition("=")
    if is_local(url or name):
        return Upstream(name.partition(":")[0], url or name, mode=mode)
    parts = urlsplit(url)
    if not name or parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise InputError("--upstream is not NAME=URL, such as vllm=http://127.0.0.1:8000/v1, without a password in it")
    if "anthropic" in name.lower():
        return Upstream(name, url, ("claude-*",), "anthropic", mode=mode)
    return Upstream(name, url, mode=mode)


def _tell(gateway: Gateway, upstreams: list[Upstream], config: Config, auth: Auth, *, as_json: bool) -> None:
    if as_json:
        listed = [{"name": one.name, "url": one.root, "mode": one.mode} for one in upstreams]
        typer.echo(json_text({"url": gateway.url, "upstreams": listed, "page": gateway.page()}))
        return
    width = max(len(one.name) for one in upstreams)
    lines = [f"Everthread listens on {gateway.url} in front of"]
    lines += [f"  {one.name:{width}}  {one.root} ({one.mode}); {_key_of(one, auth)}" for one in upstreams]
    lines += ["Set in a client:", f"  OPENAI_BASE_URL={gateway.url}/v1", f"  ANTHROPIC_BASE_URL={gateway.url}"]
    lines.append(_writer_of(config))
    page = gateway.page()
    if page is None:
        lines.append("The pages at / are off: set gateway.dashboard.key_env to see your context.")
    else:
        lines.append(f"See your context{' (the link works once)' if auth == 'none' else ''}: {page}")
    lines.append("Ctrl-C ends it.")
    typer.echo(visible("\n".join(lines)))


def _key_of(upstream: Upstream, auth: Auth) -> str:
    """Which key goes there."""
    if upstream.api_key is not None:
        return "its own key goes there, for clients that show one of ours"
    return "no key goes there" if auth == "keys" else "the client's own key goes there"


def _writer_of(config: Config) -> str:
    """Who writes summaries."""
    if not config.compression.enabled:
        return "compression.enabled is false: nothing is compacted."
    auxiliary = config.auxiliary.compression
    if auxiliary.model:
        return f"Summaries are written by {auxiliary.model}, else by the journal, which calls no model."
    if auxiliary.provider == "main":
        return "Summaries are written by the client's own model, else by the journal, which calls no model."
    return "Summaries are written by the journal, which calls no model."
