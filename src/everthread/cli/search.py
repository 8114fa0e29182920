"""`everthread sessions search TEXT`: what was said and what tools returned."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from everthread.cli.output import console, excerpt, print_json, short, visible
from everthread.cli.running import AsJson, Limit, Offset, StoreUrl, Tenant, with_store
from everthread.cli.times import Since, Until, ago, iso, read_time
from everthread.core.terms import phrase_terms

if TYPE_CHECKING:
    from everthread.store.models import SearchHit
    from everthread.store.store import Store

MARK = "bold reverse"


def search(
    text: Annotated[str, typer.Argument(help='Words, "phrases", prefix*; anything else is taken literally.')],
    role: Annotated[str | None, typer.Option(help="Only what this role said: user, assistant, tool.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls and results of this tool.")] = None,
    path: Annotated[str | None, typer.Option(help="Only calls with this path, or a part of one, and results.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only this thread.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find what was said and what tools returned, the best match first."""
    from everthread.store.models import DEFAULT_TENANT, SearchQuery

    now = time.time()
    first, last = read_time(since, now), read_time(until, now)

    async def work(opened: Store) -> list[SearchHit]:
        in_thread = await opened.resolve(thread, tenant=tenant) if thread is not None else None
        in_session = await opened.resolve(session, tenant=tenant) if session is not None else None
        named = in_session or in_thread
        query = SearchQuery(
            text,
            tenant=tenant or (named.tenant if named else DEFAULT_TENANT),
            thread=in_thread.thread if in_thread else None,
            session=in_session.id if in_session else None,
            role=role,
            tool=tool,
            path=path,
            since=first,
            until=last,
            limit=limit + 1,
            offset=offset,
        )
        return await opened.search(query)

    hits = with_store(store, work)
    shown, more = hits[:limit], len(hits) > limit
    if as_json:
        print_json({"hits": [_plain(hit) for hit in shown], "offset": offset, "more": more})
        return
    if not shown:
        console.print("nothing found")
    for hit in shown:
        _print(hit, text, now)
    if more:
        console.print(f"… there are more (--offset {offset + limit} shows them)")


def _plain(hit: SearchHit) -> dict[str, Any]:
    names = ("message", "output", "thread", "session", "role", "tool", "snippet", "score")
    return {name: getattr(hit, name) for name in names} | {"created": iso(hit.created)}


def _print(hit: SearchHit, query: str, now: float) -> None:
    place = f"#{hit.message}" if hit.message is not None else hit.output or ""
    facts = [short(hit.session), place, hit.role, hit.tool, ago(hit.created, now)]
    console.print(Text(" · ".join(visible(fact) for fact in facts if fact), "dim"), soft_wrap=True)
    console.print(_marked(Text(f"  {excerpt(hit.snippet, 400)}"), query), soft_wrap=True)


def _marked(snippet: Text, query: str) -> Text:
    """The snippet with the words of the query marked: as typed, or else each of a word's terms."""
    for word in query.replace('"', " ").replace("*", " ").split():
        if not snippet.highlight_words([word], MARK, case_sensitive=False):
            snippet.highlight_words(phrase_terms(word), MARK, case_sensitive=False)
    return snippet
