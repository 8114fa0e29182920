"""A command's work against the store: opened, used, always closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from everthread.config import load_config
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.stores.base import Store

T = TypeVar("T")

StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Another store: a URL or a SQLite file. Default: the configured one."),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only what belongs to this tenant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="Show at most so many.")]
Offset = Annotated[int, typer.Option(min=0, max=2**31, help="Leave out so many first.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="A session's id, or how it begins.")]


def store_address(url: str | None) -> str:
    """The store a command works on: the one it was given, or the configured one."""
    from everthread import compose

    return url or compose.store_url(load_config())


def with_store(url: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """What `work` makes of the store at `url`, or of the configured one. Commands print afterwards."""
    from everthread import compose

    store = compose.open_store(store_address(url))

    async def run() -> T:
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except UnicodeEncodeError as error:
        raise InputError(f"what was given is no valid text: {error.object!r}") from error
