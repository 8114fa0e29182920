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
    """The message with the gateway's address, and later messages with links that open its pages."""

    def __init__(self, task: ServeTask, *, as_json: bool) -> None:
        self._task = task
        self._as_json = as_json
        self._url = ""

    def print_start(self, url: str, page_url: str | None, worker_count: int = 1) -> None:
        listens_everywhere = replace_wildcard_host(url) != url
        self._url = replace_wildcard_host(url)
        if page_url is not None:
            page_url = replace_wildcard_host(page_url)
        if self._as_json:
            self._print_start_as_json(page_url, worker_count)
            return
        from everthread.cli.summary_writer import describe_client_writer

        lines = [
            *self._describe_addresses(
                listens_everywhere=listens_everywhere, worker_count=worker_count
            ),
            f"Summaries: written by {describe_client_writer(self._task.config)}.",
        ]
        if page_url is None:
            lines.append(
                "The pages at / are off: set gateway.dashboard.key_env to see your context."
            )
        elif self._task.auth == "none":
            lines.append(f"See your context (the link works once): {page_url}")
        else:
            lines.append(f"See your context: {page_url}")
        lines.append("Ctrl-C ends it.")
        typer.echo(escape_controls("\n".join(lines)))

    def _describe_addresses(self, *, listens_everywhere: bool, worker_count: int) -> list[str]:
        """Return lines with the gateway's address, its upstreams, and what to set in a client."""
        url = self._url
        upstreams = self._task.upstreams
        host = urlsplit(url).hostname
        address = url
        if listens_everywhere:
            address = f"port {urlsplit(url).port} of every address of this machine"
        if worker_count > 1:
            address += f" with {worker_count} workers"
        width = max(len(upstream.name) for upstream in upstreams)
        lines = [f"Everthread listens on {address} in front of"]
        for upstream in upstreams:
            key_text = _describe_key(upstream, self._task.auth)
            lines.append(
                f"  {upstream.name:{width}}  {upstream.root_url} ({upstream.mode}); {key_text}"
            )
        lines += [
            "Set in a client:",
            f"  OPENAI_BASE_URL={url}/v1",
            f"  ANTHROPIC_BASE_URL={url}",
            f"  GOOGLE_GEMINI_BASE_URL={url}",
        ]
        if listens_everywhere:
            lines.append(f"On another machine, use this one's name or address instead of {host}.")
        return lines

    def _print_start_as_json(self, page_url: str | None, worker_count: int) -> None:
        upstream_values = [
            {"name": upstream.name, "url": upstream.root_url, "mode": upstream.mode}
            for upstream in self._task.upstreams
        ]
        values = {
            "url": self._url,
            "upstreams": upstream_values,
            "page": page_url,
            "workers": worker_count,
        }
        typer.echo(encode_json(values))

    def announce(self, path: str) -> None:
        typer.echo(
            f"See your context, with a link that works once: {self._url}{path}",
            err=self._as_json,
        )


def replace_wildcard_host(url: str) -> str:
    """Replace 0.0.0.0 or [::], which mean every address, with a loopback address that a client can use."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:", 1).replace("//[::]:", "//[::1]:", 1)


def _describe_key(upstream: Upstream, auth: Auth) -> str:
    """Describe which key is sent to an upstream."""
    if upstream.api_key is not None:
        return "with its own key, for clients with a key of this gateway"
    if upstream.serves_chatgpt_logins:
        return "with the client's ChatGPT login"
    return "without a key" if auth == "keys" else "with the client's own key"
