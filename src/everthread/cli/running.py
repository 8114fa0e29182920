"""A command's work against the store: opened, used, always closed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from everthread.config import load_config
from everthread.errors import InputError, NoStoreError

if TYPE_CHECKING:
    from everthread.store.store import Store

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
    from everthread import factory

    return url or factory.store_url(load_config())


def with_store(
    url: str | None, work: Callable[[Store], Awaitable[T]], *, create: bool = False, or_empty: bool = False
) -> T:
    """What `work` makes of the store at `url`, or of the configured one. Commands print afterwards.

    `create`: the store is made if there is none. `or_empty`: who never said where conversations are kept, and has none
    yet, is shown an empty store, not an error; it is gone afterwards.
    """
    from everthread import factory

    try:
        store = factory.open_store(store_address(url), create=create)
    except NoStoreError:
        if not or_empty or url or load_config().store.url:
            raise
        with tempfile.TemporaryDirectory(prefix="everthread-") as folder:
            return _worked(factory.open_store(Path(folder) / factory.STORE_FILE), work)
    return _worked(store, work)


def _worked(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except UnicodeEncodeError as error:
        raise InputError(f"what was given is no valid text: {error.object!r}") from error
