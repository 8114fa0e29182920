"""The option `--upstream NAME=URL` of `serve` and `wrap`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.gateway.contracts import Mode
    from everthread.gateway.router import Upstream


def parse_upstream(text: str, mode: Mode) -> Upstream:
    """Read `NAME=URL` of the command line. The upstream gets the clients' own keys."""
    from everthread.factory.upstreams import is_local
    from everthread.gateway.router import Upstream

    name, _, url = text.partition("=")
    if is_local(url or name):
        return Upstream(name.partition(":")[0], url or name, mode=mode)
    parts = urlsplit(url)
    if not name or parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise InputError(
            "--upstream is not NAME=URL, such as vllm=http://127.0.0.1:8000/v1, without a password in it"
        )
    if "anthropic" in name.lower():
        return Upstream(name, url, ("claude-*",), "anthropic", mode=mode)
    return Upstream(name, url, mode=mode)
