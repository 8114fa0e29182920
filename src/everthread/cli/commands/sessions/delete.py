"""`everthread sessions delete`: delete a thread and those of its subagents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_text
from everthread.cli.session_texts import load_short_title
from everthread.cli.shared_options import AsJson, SessionId, StoreUrl, Tenant
from everthread.cli.store_access import with_store
from everthread.core.messages import count_noun
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.store import Store


def delete(
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a thread and its subagents' for good. Its costs stay in the accounts; branches keep what they share."""

    async def describe(store: Store) -> tuple[str, str]:
        session = await store.resolve(session_id, tenant=tenant)
        subagents = len(await store.subagents(session.thread))
        subagents_text = f" and {count_noun(subagents, 'subagent thread')}" if subagents else ""
        title = await load_short_title(store, session)
        return (
            session.thread,
            f"thread {shorten_id(session.thread)}{subagents_text}"
            + (f" ({title})" if title else ""),
        )

    thread, description = with_store(store_url, describe)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"deleting {description} needs --yes, as nobody can be asked here")
        if not typer.confirm(f"Delete {description} for good?", err=True):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
    count = with_store(store_url, lambda store: store.delete_thread(thread))
    if as_json:
        print_json({"thread": thread, "sessions": count})
    else:
        print_text(f"deleted: {description}, {count_noun(count, 'session')}")
