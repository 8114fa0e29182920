"""The small model on this machine as an upstream of the gateway: `local`, or `local:` and a model's name or file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from everthread.config import Config, home_directory

if TYPE_CHECKING:
    from everthread.gateway.router import Upstream

LOCAL = "local"


def is_local(url: str) -> bool:
    return url == LOCAL or url.startswith(f"{LOCAL}:")


async def with_local(upstreams: Sequence[Upstream], config: Config, stack: AsyncExitStack) -> list[Upstream]:
    """The upstreams, with a local model started for each that names one; it ends with the stack."""
    return [await _served(one, config, stack) if is_local(one.url) else one for one in upstreams]


async def _served(upstream: Upstream, config: Config, stack: AsyncExitStack) -> Upstream:
    from everthread.providers.local import SMOLLM2, LocalModel, find_model

    name = upstream.url.partition(":")[2] or None
    path = find_model(name, home_directory())
    own = name is None or not name.lower().endswith(".gguf")
    window = config.model.context_length or SMOLLM2.trained_window
    model = LocalModel(path, name=SMOLLM2.name if own else None, window=window)
    stack.push_async_callback(model.aclose)
    address, key = await model.serve()
    return replace(upstream, url=address, api_key=key)
