"""`everthread sessions search`: search all stored messages."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from everthread.cli.formats import shorten_id
from everthread.cli.output import (
    console,
    escape_controls,
    print_json,
    print_next_page_hint,
    print_text,
)
from everthread.cli.shared_options import (
    JsonOption,
    LimitOption,
    OffsetOption,
    SinceOption,
    StoreOption,
    TenantOption,
    UntilOption,
)
from everthread.cli.store_access import with_store
from everthread.cli.times import format_age, format_iso, parse_time
from everthread.core.field_values import pick_fields
from everthread.core.search.terms import list_phrase_terms
from everthread.core.text import count_noun, excerpt

if TYPE_CHECKING:
    from everthread.core.search.search_results import Neighbour
    from everthread.store.records import Session
    from everthread.store.search_records import HitPage, SearchHit
    from everthread.store.store import Store


HIGHLIGHT_STYLE = "bold reverse"
TextArgument = Annotated[
    str,
    typer.Argument(help='Words, "phrases", prefix*; anything else is taken literally.'),
]
RoleOption = Annotated[
    str | None,
    typer.Option(help="Only messages of this role: user, assistant, tool."),
]
ToolOption = Annotated[str | None, typer.Option(help="Only calls and results of this tool.")]
PathOption = Annotated[
    str | None,
    typer.Option(help="Only calls with this path or a part of it, and their results."),
]
ThreadOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Only this thread and the others of its client session."),
]
SessionOption = Annotated[str | None, typer.Option(metavar="ID", help="Only this session.")]


def search(
    text: TextArgument,
    role: RoleOption = None,
    tool: ToolOption = None,
    path: PathOption = None,
    thread: ThreadOption = None,
    session: SessionOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = 20,
    offset: OffsetOption = 0,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search messages and tool outputs, the best match first, each with the message before and after."""
    from everthread.store.search_records import SearchQuery

    now = time.time()
    since_time = parse_time(since, now)
    until_time = parse_time(until, now)

    async def find(store: Store) -> tuple[HitPage, str]:
        thread_session = await _resolve_optional(store, thread, tenant)
        chosen_session = await _resolve_optional(store, session, tenant)
        scope = chosen_session or thread_session
        query = SearchQuery(
            text,
            tenant=tenant or (scope.tenant if scope else None),
            thread=thread_session.thread if thread_session else None,
            include_family=thread_session is not None,
            session=chosen_session.id if chosen_session else None,
            role=role,
            tool=tool,
            path=path,
            since=since_time,
            until=until_time,
            limit=limit,
            offset=offset,
        )
        page = await store.find(query)
        return page, "" if page.hits else await _describe_scope(store, tenant, scope)

    page, scope_text = with_store(store_url, find, empty_if_missing=True)
    if as_json:
        print_json(
            {
                "hits": [_hit_as_json(hit) for hit in page.hits],
                "offset": offset,
                "more": page.has_more,
                "near": page.is_approximate,
            }
        )
        return
    if not page.hits:
        print_text(f"nothing found {scope_text}")
    _print_hits(page, text)
    if page.has_more:
        print_next_page_hint(offset + limit)


def _print_hits(page: HitPage, query: str) -> None:
    if page.is_approximate:
        print_text(("No message holds every word. The closest:", "dim"))
    hit_ids = {hit.message for hit in page.hits}
    for hit in page.hits:
        _print_hit(hit, query, hit_ids)


def _print_hit(hit: SearchHit, query: str, hit_ids: Collection[int | None]) -> None:
    number = f"#{hit.message}" if hit.message is not None else hit.output
    age = format_age(hit.created, time.time())
    facts = (shorten_id(hit.session), number, hit.role, hit.tool, age)
    print_text((" · ".join(filter(None, facts)), "dim"))
    _print_neighbour("before", hit.before, hit_ids)
    print_text(_highlight(Text(f"  {excerpt(hit.snippet, 400)}"), query))
    _print_neighbour("after", hit.after, hit_ids)


async def _resolve_optional(
    store: Store, session_id: str | None, tenant: str | None
) -> Session | None:
    if session_id is None:
        return None
    return await store.resolve(session_id, tenant=tenant)


async def _describe_scope(store: Store, tenant: str | None, scope: Session | None) -> str:
    """Describe which threads a search covered and which it left out."""
    total_count = await store.count_threads()
    if not total_count:
        return "(there are no threads yet)"
    if scope is not None:
        return f"in thread {shorten_id(scope.thread)}; other threads were not searched"
    tenant_count = await store.count_threads(tenant=tenant)
    scope_text = f"in {count_noun(tenant_count, 'thread')}"
    if tenant is None:
        return f"{scope_text} of {store.database.location}"
    return f"{scope_text} of tenant {tenant}; {total_count - tenant_count:,} of other tenants were not searched"


def _hit_as_json(hit: SearchHit) -> dict[str, Any]:
    names = ("message", "output", "thread", "session", "role", "tool", "snippet", "score")
    return pick_fields(hit, names) | {
        "created": format_iso(hit.created),
        "before": hit.before and asdict(hit.before),
        "after": hit.after and asdict(hit.after),
    }


def _print_neighbour(
    side: str, neighbour: Neighbour | None, hit_ids: Collection[int | None]
) -> None:
    """Print a neighbouring message in one line, cut at the edge of a terminal."""
    if neighbour is not None:
        line = escape_controls(f"    {side} {neighbour.as_line(hit_ids)}")
        console.print(
            Text(line, "dim"),
            no_wrap=True,
            overflow="ellipsis" if console.is_terminal else "ignore",
        )


def _highlight(snippet: Text, query: str) -> Text:
    """Highlight the words of the query in the snippet, as typed or else each of a word's terms."""
    for word in query.replace('"', " ").replace("*", " ").split():
        if not snippet.highlight_words([word], HIGHLIGHT_STYLE, case_sensitive=False):
            snippet.highlight_words(list_phrase_terms(word), HIGHLIGHT_STYLE, case_sensitive=False)
    return snippet
