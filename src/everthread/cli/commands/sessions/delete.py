"""`everthread sessions delete`: delete a thread and its subagents' threads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import JsonOption, SessionArgument, StoreOption, TenantOption
from everthread.cli.store_access import load_short_title, with_session, with_store
from everthread.core.text import count_noun
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.records import Session
    from everthread.store.store import Store


def delete(
    session_id: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a thread and its subagents' for good. Its costs stay in the accounts; branches keep what they share."""

    async def describe(store: Store, session: Session) -> tuple[str, str]:
        description = f"thread {shorten_id(session.thread)}"
        subagent_count = len(await store.list_subagents(session.thread))
        if subagent_count:
            description += f" and {count_noun(subagent_count, 'subagent thread')}"
        title = await load_short_title(store, session)
        if title:
            description += f" ({title})"
        return session.thread, description

    thread_id, description = with_session(store_url, session_id, describe, tenant=tenant)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                f"deleting {description} needs --yes, as there is no terminal to ask on"
            )
        if not typer.confirm(f"Delete {description} for good?", err=True):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
    session_count = with_store(store_url, lambda store: store.delete_thread(thread_id))
    if as_json:
        print_json({"thread": thread_id, "sessions": session_count})
    else:
        print_text(f"deleted: {description}, {count_noun(session_count, 'session')}")
