"""`everthread sessions show|tree|search`: one thread, its relations, and a search in all of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from everthread.cli.options import (
    AsJson,
    Limit,
    Offset,
    SessionId,
    SinceOption,
    StoreUrl,
    Tenant,
    UntilOption,
    number_option,
)
from everthread.cli.output import (
    WrappingConsole,
    console,
    escape_controls,
    format_share,
    page_output,
    print_json,
    print_next_page_hint,
    print_text,
    shorten_id,
)
from everthread.cli.store_access import with_store
from everthread.cli.times import format_age, format_iso, parse_time
from everthread.compaction.journal import name_author
from everthread.core.messages import (
    REASONING_BLOCKS,
    Message,
    calls_of,
    content_text,
    count_noun,
    excerpt,
    images_in,
    kind_of,
    parts_of,
    results_of,
    text_of,
)
from everthread.core.redacted_values import redact_value
from everthread.core.search.terms import phrase_terms
from everthread.errors import InputError, UnknownIdError
from everthread.thread.facts import load_title

if TYPE_CHECKING:
    from everthread.core.search.lookup import Neighbour
    from everthread.store.records import (
        CompactionRecord,
        HitPage,
        SearchHit,
        Session,
        StoredMessage,
    )
    from everthread.store.store import Store

SESSIONS_PER_QUERY = 2_000
MAX_LINE_CHARS = 1_000


async def list_thread_ids(store: Store, tenant: str | None) -> list[str]:
    """Return every thread's id, the newest first. Sorted by start: a thread in use must not move between pages."""
    threads: dict[str, None] = {}
    offset = 0
    while page := await store.list_sessions(
        tenant=tenant, limit=SESSIONS_PER_QUERY, offset=offset
    ):
        threads |= dict.fromkeys(session.thread for session in page)
        offset += len(page)
    return list(threads)


async def load_short_title(store: Store, session: Session) -> str:
    """Return a session's title, or the first words of the user, in one line."""
    return excerpt(await load_title(store, session), 100)


def describe_state(session: Session) -> str:
    return (
        "live"
        if session.live
        else f"ended ({excerpt(session.end_reason or 'unknown', 20)})"
    )


PREVIEW_LIMITS = {
    "text": (4_000, 60),
    "thinking": (400, 6),
    "call": (400, 6),
    "result": (800, 10),
}
"""Characters and lines shown of each kind of text without `--full`."""
COLOURS = {
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "bold yellow",
    "system": "bold magenta",
}


ContextOption = Annotated[
    bool,
    typer.Option("--context", help="What the model sees now, with its summary."),
]
MessageOption = Annotated[
    int | None,
    number_option(
        help_text="One message in full, by the number `show` and `search` print."
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option(help="One stored tool output in full, by its `output:…` id."),
]
FullOption = Annotated[
    bool, typer.Option("--full", help="Long texts and tool results as a whole.")
]
RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Also show credentials, which are redacted otherwise."),
]
LimitOption = Annotated[
    int | None,
    number_option(minimum=1, maximum=100_000, help_text="Show at most N messages."),
]
OffsetOption = Annotated[int, number_option(help_text="Skip the first N messages.")]


def show(
    session_id: SessionId,
    context: ContextOption = False,
    message: MessageOption = None,
    output: OutputOption = None,
    full: FullOption = False,
    raw: RawOption = False,
    limit: LimitOption = None,
    offset: OffsetOption = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all messages of a thread, through any number of compactions."""
    if sum((context, message is not None, output is not None)) > 1:
        raise InputError("--context, --message and --output exclude each other")

    async def load(opened: Store) -> ShownThread:
        session = await opened.resolve(session_id, tenant=tenant)
        tip = await opened.session(await opened.get_compression_tip(session.id))
        thread_view = ShownThread(session, tip, with_system=context)
        if output is not None:
            thread_view.output = await _load_output(opened, session, output)
        elif message is not None:
            history = await opened.history(session.id)
            thread_view.messages = [
                await _load_message(opened, session, history, message)
            ]
            thread_view.tool_names = _map_tool_names(history)
        else:
            load_messages = opened.messages if context else opened.history
            shown_id = tip.id if context else session.id
            thread_view.messages = await load_messages(
                shown_id, start=offset, limit=limit
            )
            thread_view.tool_names = _map_tool_names(thread_view.messages)
        return thread_view

    thread_view = with_store(store, load)
    if not raw:
        thread_view.redact()
    if as_json:
        print_json(thread_view.as_dict())
        return
    with page_output():
        thread_view.print(full=full or message is not None)


@dataclass(slots=True)
class ShownThread:
    """The parts of a thread that `show` prints: messages, or one stored output."""

    session: Session
    tip: Session
    with_system: bool
    messages: list[StoredMessage] = field(default_factory=list)
    tool_names: dict[str, str] = field(default_factory=dict)
    output: str | None = None

    def redact(self) -> None:
        self.session = replace(self.session, title=redact_value(self.session.title))
        self.tip = replace(self.tip, system=redact_value(self.tip.system))
        self.output = redact_value(self.output)
        self.messages = [
            replace(item, body=redact_value(item.body)) for item in self.messages
        ]

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "thread": self.session.thread,
            "session": self.tip.id,
            "title": self.session.title,
            "model": self.tip.model,
        }
        if self.output is not None:
            return values | {"output": self.output}
        if self.with_system:
            values["system"] = self.tip.system
        return values | {"messages": list(map(_message_as_json, self.messages))}

    def print(self, *, full: bool) -> None:
        if self.output is not None:
            console.out(escape_controls(self.output))
            return
        facts = (
            excerpt(self.session.title, 100),
            shorten_id(self.session.thread),
            self.session.kind,
            self.tip.model,
            "live" if self.tip.live else "ended",
        )
        print_text((" · ".join(filter(None, facts)), "bold"))
        if self.with_system and self.tip.system is not None:
            print_text(("\nsystem", COLOURS["system"]))
            limits = None if full else PREVIEW_LIMITS["text"]
            _print_part(content_text(self.tip.system), limits)
        if not self.messages:
            print_text("no messages")
        for item in self.messages:
            _print_message(item, self.tool_names, full=full)


async def _load_message(
    store: Store, session: Session, history: Sequence[StoredMessage], message_id: int
) -> StoredMessage:
    """Return a message of this thread, or of the thread it branched from."""
    message = await store.message(message_id, tenant=session.tenant)
    if (
        await store.session(message.session)
    ).thread != session.thread and message_id not in (m.id for m in history):
        raise UnknownIdError(
            f"thread {shorten_id(session.thread)} has no message {message_id}"
        )
    return message


async def _load_output(store: Store, session: Session, output_id: str) -> str:
    if output_id not in (output.id for output in await store.outputs(session.thread)):
        raise UnknownIdError(
            f"thread {shorten_id(session.thread)} has no stored output {output_id!r}"
        )
    return await store.output(output_id, tenant=session.tenant)


def _map_tool_names(messages: Iterable[StoredMessage]) -> dict[str, str]:
    return {call.id: call.name for item in messages for call in calls_of(item.body)}


def _message_as_json(item: StoredMessage) -> dict[str, Any]:
    values = {
        name: getattr(item, name) for name in ("id", "session", "seq", "kind", "tokens")
    }
    return values | {"created": format_iso(item.created), "body": item.body}


def _print_message(
    item: StoredMessage, names: Mapping[str, str], *, full: bool
) -> None:
    role = excerpt(str(item.body.get("role")), 20)
    kind = "" if item.kind == "message" else item.kind
    tokens = "" if item.tokens is None else f"{item.tokens:,} tokens"
    facts = [f"#{item.id}", kind, format_age(item.created, time.time()), tokens]
    print_text(
        "\n",
        (role, COLOURS.get(role, "bold")),
        "  ",
        (" · ".join(filter(None, facts)), "dim"),
    )
    for kind_of_part, text in _split_message(item.body, names):
        _print_part(text, None if full else PREVIEW_LIMITS[kind_of_part])


def _split_message(
    body: Message, names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each part of a message: thoughts, text, images, calls, results."""
    for thought in _list_thoughts(body):
        yield "thinking", f"(thinking) {thought}"
    if body.get("role") != "tool" and text_of(body):
        yield "text", text_of(body)
    images = sum(1 for _ in images_in(body.get("content")))
    if images:
        yield "text", f"[{count_noun(images, 'image')}]"
    for call in calls_of(body):
        yield "call", f"→ {call.name} {call.arguments}"
    for result in results_of(body):
        yield (
            "result",
            f"← {result.name or names.get(result.call_id, '')}: {result.text}",
        )


def _list_thoughts(body: Mapping[str, Any]) -> Iterator[str]:
    blocks: Sequence[Any] = [
        part for part in parts_of(body) if kind_of(part) in REASONING_BLOCKS
    ]
    for thought in (
        body.get("reasoning_content"),
        *(part.get("thinking") or part.get("text") for part in blocks),
    ):
        if isinstance(thought, str) and thought:
            yield thought


def _print_part(text: str, limits: tuple[int, int] | None) -> None:
    """Print a text, cut to `limits` (characters, lines), with a note of the cut."""
    start = (
        text
        if limits is None
        else "\n".join(text[: limits[0]].split("\n")[: limits[1]])
    )
    console.out(escape_controls(start))
    if len(start) < len(text):
        print_text(
            (f"… {len(text) - len(start):,} more characters (--full shows them)", "dim")
        )


@dataclass(frozen=True, slots=True)
class FamilySession:
    """A session of a thread's family, and the compaction that started it."""

    session: Session
    compaction: CompactionRecord | None
    title: str


def tree(
    session_id: SessionId,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a thread's continuations, reverted sessions, branches and subagents, with what compactions saved."""

    async def load(opened: Store) -> list[FamilySession]:
        return await load_family(
            opened, (await opened.resolve(session_id, tenant=tenant)).thread
        )

    members = with_store(store, load)
    if as_json:
        print_json(
            {
                "thread": members[0].session.thread,
                "sessions": [_member_as_json(member) for member in members],
            }
        )
    else:
        # Wrapped on a terminal; elsewhere each session is one whole line.
        target_console = (
            console
            if console.is_terminal
            else WrappingConsole(highlight=False, emoji=False, width=MAX_LINE_CHARS)
        )
        target_console.print(_draw_tree(members, time.time()))


async def load_family(store: Store, thread: str) -> list[FamilySession]:
    """Return every session of a thread and of the threads that began in it, recursively."""
    members: list[FamilySession] = []
    threads = {thread}
    queue = [thread]
    while queue:
        next_thread = queue.pop()
        compactions = {
            record.session: record for record in await store.compactions(next_thread)
        }
        sessions = await store.thread_sessions(next_thread)
        title = await load_short_title(store, sessions[0])
        members += [
            FamilySession(session, compactions.get(session.id), title)
            for session in sessions
        ]
        children = [
            child.id
            for child in await store.started_by(next_thread)
            if child.id not in threads
        ]
        threads |= set(children)
        queue += children
    return members


def _member_as_json(member: FamilySession) -> dict[str, Any]:
    session = member.session
    compaction = member.compaction
    names = (
        "id",
        "thread",
        "parent",
        "kind",
        "model",
        "messages",
        "end_reason",
        "branched_at",
    )
    values = {name: getattr(session, name) for name in names} | {
        "title": member.title,
        "compaction": None,
    }
    values |= {
        "started": format_iso(session.started),
        "ended": format_iso(session.ended),
    }
    if compaction is not None:
        record = compaction.record
        figures = (
            "tokens_before",
            "tokens_after",
            "author",
            "reason",
            "focus",
            "duration",
        )
        values["compaction"] = {name: getattr(record, name) for name in figures} | {
            "covered": len(record.covered),
            "cost": None if record.cost is None else float(record.cost),
            "warnings": list(record.warnings),
            "reverted": format_iso(compaction.reverted),
        }
    return values


def _draw_tree(members: list[FamilySession], now: float) -> Tree:
    """Draw continuations below each other: a hundred compactions are a list, not a staircase."""
    root = Tree(Text())
    threads: dict[str, Tree] = {}
    nodes: dict[str, Tree] = {}
    for member in members:
        session = member.session
        parent = nodes.get(session.parent or "")
        if not threads:
            root.label = Text(
                f"thread {shorten_id(session.thread)}  {member.title}", "bold"
            )
            threads[session.thread] = root
        elif session.thread not in threads:
            label = Text(
                f"{session.kind} {shorten_id(session.thread)}  {member.title}", "bold"
            )
            threads[session.thread] = (parent or root).add(label)
        parent_node = (
            parent if session.kind == "reverted" and parent else threads[session.thread]
        )
        nodes[session.id] = parent_node.add(_render_label(member, now))
    return root


def _render_label(member: FamilySession, now: float) -> Text:
    session = member.session
    facts = [
        count_noun(session.messages, "message"),
        describe_state(session),
        format_age(session.started, now),
    ]
    label = Text.assemble(
        (shorten_id(session.id), "cyan"),
        f" {session.kind}",
        ("  " + " · ".join(facts), "dim"),
    )
    if member.compaction is not None:
        record = member.compaction.record
        label.append(
            f"  {record.tokens_before:,} → {record.tokens_after:,} tokens", "green"
        )
        saved = format_share(
            record.tokens_before - record.tokens_after, record.tokens_before
        )
        author = (
            f", by {excerpt(name_author(record.author), 30)}" if record.author else ""
        )
        label.append(f" ({saved} saved{author}, {record.duration:.1f} s)", "dim")
    return label


HIGHLIGHT_STYLE = "bold reverse"


TextArgument = Annotated[
    str,
    typer.Argument(help='Words, "phrases", prefix*; anything else is taken literally.'),
]
RoleOption = Annotated[
    str | None,
    typer.Option(help="Only messages of this role: user, assistant, tool."),
]
ToolOption = Annotated[
    str | None, typer.Option(help="Only calls and results of this tool.")
]
PathOption = Annotated[
    str | None,
    typer.Option(help="Only calls with this path, or a part of one, and results."),
]
ThreadOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="Only this thread and the others of its client session."
    ),
]
SessionOption = Annotated[
    str | None, typer.Option(metavar="ID", help="Only this session.")
]


def search(
    text: TextArgument,
    role: RoleOption = None,
    tool: ToolOption = None,
    path: PathOption = None,
    thread: ThreadOption = None,
    session: SessionOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Search messages and tool outputs, the best match first, each with the message before and after."""
    from everthread.store.records import SearchQuery

    now = time.time()
    since_time = parse_time(since, now)
    until_time = parse_time(until, now)

    async def find(opened: Store) -> tuple[HitPage, str]:
        in_thread = await _resolve_optional(opened, thread, tenant)
        in_session = await _resolve_optional(opened, session, tenant)
        scope = in_session or in_thread
        query = SearchQuery(
            text,
            tenant=tenant or (scope.tenant if scope else None),
            thread=in_thread.thread if in_thread else None,
            family=in_thread is not None,
            session=in_session.id if in_session else None,
            role=role,
            tool=tool,
            path=path,
            since=since_time,
            until=until_time,
            limit=limit,
            offset=offset,
        )
        page = await opened.find(query)
        return page, "" if page.hits else await _describe_scope(opened, tenant, scope)

    page, scope_text = with_store(store, find, empty_if_missing=True)
    hits = page.hits
    if as_json:
        rows = [_hit_as_json(hit) for hit in hits]
        print_json(
            {"hits": rows, "offset": offset, "more": page.more, "near": page.near}
        )
        return
    if not hits:
        print_text(f"nothing found {scope_text}")
    if page.near:
        print_text(("No message holds every word. The closest:", "dim"))
    hit_ids = {hit.message for hit in hits}
    for hit in hits:
        _print_hit(hit, text, hit_ids)
    if page.more:
        print_next_page_hint(offset + limit)


def _print_hit(hit: SearchHit, query: str, hit_ids: Collection[int | None]) -> None:
    number = f"#{hit.message}" if hit.message is not None else hit.output
    facts = (
        shorten_id(hit.session),
        number,
        hit.role,
        hit.tool,
        format_age(hit.created, time.time()),
    )
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


async def _describe_scope(
    store: Store, tenant: str | None, scope: Session | None
) -> str:
    """Describe which threads a search covered, and which it left out."""
    total = await store.count_threads()
    if not total:
        return "(there are no threads yet)"
    if scope is not None:
        return f"in thread {shorten_id(scope.thread)}; other threads were not searched"
    count = await store.count_threads(tenant=tenant)
    threads = f"in {count:,} thread{'' if count == 1 else 's'}"
    if tenant is None:
        return f"{threads} of {store.database.location}"
    return f"{threads} of tenant {tenant}; {total - count:,} of other tenants were not searched"


def _hit_as_json(hit: SearchHit) -> dict[str, Any]:
    names = (
        "message",
        "output",
        "thread",
        "session",
        "role",
        "tool",
        "snippet",
        "score",
    )
    neighbours = {
        "before": hit.before and asdict(hit.before),
        "after": hit.after and asdict(hit.after),
    }
    return (
        {name: getattr(hit, name) for name in names}
        | {"created": format_iso(hit.created)}
        | neighbours
    )


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
    """Highlight the words of the query in the snippet: as typed, or else each of a word's terms."""
    for word in query.replace('"', " ").replace("*", " ").split():
        if not snippet.highlight_words([word], HIGHLIGHT_STYLE, case_sensitive=False):
            snippet.highlight_words(
                phrase_terms(word), HIGHLIGHT_STYLE, case_sensitive=False
            )
    return snippet
