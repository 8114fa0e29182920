"""The text that `serve` prints at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from everthread.cli.commands.serve.serve_task import ServeTask
from everthread.cli.output import encode_json, escape_controls

if TYPE_CHECKING:
    from everthread.gateway.contracts import Auth
    from everthread.gateway.router import Upstream


class StartMessage:
    """Prints the gateway's address at the start, and later links that open its pages."""

    def __init__(self, task: ServeTask, *, as_json: bool) -> None:
        self._task = task
        self._as_json = as_json
        self._url = ""

    def print_start(self, url: str, page: str | None, workers: int = 1) -> None:
        listens_everywhere = replace_wildcard_host(url) != url
        upstreams = self._task.upstreams
        self._url = url = replace_wildcard_host(url)
        page = None if page is None else replace_wildcard_host(page)
        if self._as_json:
            self._print_start_as_json(page, workers)
            return
        auth = self._task.auth
        width = max(len(upstream.name) for upstream in upstreams)
        address = (
            f"port {urlsplit(url).port} of every address of this machine"
            if listens_everywhere
            else url
        )
        lines = [
            f"Everthread listens on {address}{f' with {workers} workers' if workers > 1 else ''} in front of"
        ]
        lines += [
            f"  {upstream.name:{width}}  {upstream.root_url} ({upstream.mode}); {_describe_key(upstream, auth)}"
            for upstream in upstreams
        ]
        variables = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_BASE_URL": url,
            "GOOGLE_GEMINI_BASE_URL": url,
        }
        lines += [
            "Set in a client:",
            *(f"  {name}={value}" for name, value in variables.items()),
        ]
        if listens_everywhere:
            lines.append(
                f"On another machine, put this one's name or address for {urlsplit(url).hostname}."
            )
        from everthread.cli.summary_writer import describe_client_writer

        writer = describe_client_writer(self._task.config)
        lines.append(f"Summaries: written by {writer}.")
        if page is None:
            lines.append(
                "The pages at / are off: set gateway.dashboard.key_env to see your context."
            )
        else:
            lines.append(
                f"See your context{' (the link works once)' if auth == 'none' else ''}: {page}"
            )
        lines.append("Ctrl-C ends it.")
        typer.echo(escape_controls("\n".join(lines)))

    def _print_start_as_json(self, page: str | None, workers: int) -> None:
        upstream_values = [
            {"name": upstream.name, "url": upstream.root_url, "mode": upstream.mode}
            for upstream in self._task.upstreams
        ]
        values = {
            "url": self._url,
            "upstreams": upstream_values,
            "page": page,
            "workers": workers,
        }
        typer.echo(encode_json(values))

    def announce(self, path: str) -> None:
        typer.echo(
            f"See your context, with a link that works once: {self._url}{path}",
            err=self._as_json,
        )


def replace_wildcard_host(url: str) -> str:
    """Replace 0.0.0.0 or [::], which mean every address, by a loopback address that a client can use."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:", 1).replace("//[::]:", "//[::1]:", 1)


def _describe_key(upstream: Upstream, auth: Auth) -> str:
    """Describe which key is sent to an upstream."""
    if upstream.api_key is not None:
        return "its own key goes there, for clients that show one of ours"
    if upstream.serves_chatgpt_logins:
        return "logins with ChatGPT go there"
    return "no key goes there" if auth == "keys" else "the client's own key goes there"
