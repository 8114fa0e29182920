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
    Since,
    StoreUrl,
    Tenant,
    Until,
    number_option,
)
from everthread.cli.output import (
    WordConsole,
    console,
    format_share,
    page_output,
    print_json,
    print_more,
    print_text,
    shorten_id,
    visible,
)
from everthread.cli.store_access import with_store
from everthread.cli.times import format_age, format_iso, parse_time
from everthread.compaction.journal.journal import name_author
from everthread.core.messages import (
    REASONING_BLOCKS,
    Message,
    calls_of,
    content_text,
    count_noun,
    excerpt,
    iterate_images,
    kind_of,
    parts_of,
    results_of,
    text_of,
)
from everthread.core.search.terms import phrase_terms
from everthread.core.secrets.redacted_values import redact_value
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
    """Every thread's id, the newest first. Sorted by start: a thread in use must not move between pages."""
    threads: dict[str, None] = {}
    offset = 0
    while page := await store.list_sessions(
        tenant=tenant, limit=SESSIONS_PER_QUERY, offset=offset
    ):
        threads |= dict.fromkeys(session.thread for session in page)
        offset += len(page)
    return list(threads)


async def short_title(store: Store, session: Session) -> str:
    """A session's title, or the first words of the user, in one line."""
    return excerpt(await load_title(store, session), 100)


def state_of(session: Session) -> str:
    return (
        "live"
        if session.live
        else f"ended ({excerpt(session.end_reason or 'unknown', 20)})"
    )


MAX_SHOWN = {
    "said": (4_000, 60),
    "thought": (400, 6),
    "called": (400, 6),
    "returned": (800, 10),
}
"""How many characters and lines are shown of each kind of text without `--full`."""
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
    number_option(text="One message in full, by the number `show` and `search` print."),
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
    number_option(least=1, most=100_000, text="Show at most N messages."),
]
OffsetOption = Annotated[int, number_option(text="Skip the first N messages.")]


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
        shown = ShownThread(session, tip, with_system=context)
        if output is not None:
            shown.output = await _load_output(opened, session, output)
        elif message is not None:
            history = await opened.history(session.id)
            shown.messages = [await _load_message(opened, session, history, message)]
            shown.tool_names = _tool_names(history)
        else:
            load_page = opened.messages if context else opened.history
            shown_id = tip.id if context else session.id
            shown.messages = await load_page(shown_id, start=offset, limit=limit)
            shown.tool_names = _tool_names(shown.messages)
        return shown

    shown = with_store(store, load)
    if not raw:
        shown.redact()
    if as_json:
        print_json(shown.as_dict())
        return
    with page_output():
        shown.print(full=full or message is not None)


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
            console.out(visible(self.output))
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
            most = None if full else MAX_SHOWN["said"]
            _print_part(content_text(self.tip.system), most)
        if not self.messages:
            print_text("no messages")
        for item in self.messages:
            _print_message(item, self.tool_names, full=full)


async def _load_message(
    store: Store, session: Session, history: Sequence[StoredMessage], message_id: int
) -> StoredMessage:
    """A message of this thread, or of the thread it branched from."""
    message = await store.message(message_id, tenant=session.tenant)
    if (
        await store.session(message.session)
    ).thread != session.thread and message_id not in (m.id for m in history):
        raise UnknownIdError(
            f"thread {shorten_id(session.thread)} has no message {message_id}"
        )
    return message


async def _load_output(store: Store, session: Session, output_id: str) -> str:
    if output_id not in (stored.id for stored in await store.outputs(session.thread)):
        raise UnknownIdError(
            f"thread {shorten_id(session.thread)} has no stored output {output_id!r}"
        )
    return await store.output(output_id, tenant=session.tenant)


def _tool_names(messages: Iterable[StoredMessage]) -> dict[str, str]:
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
    for sort, text in _message_parts(item.body, names):
        _print_part(text, None if full else MAX_SHOWN[sort])


def _message_parts(
    body: Message, names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The parts of a message in reading order: thoughts, text, images, calls, results."""
    for thought in _thoughts(body):
        yield "thought", f"(thinking) {thought}"
    if body.get("role") != "tool" and text_of(body):
        yield "said", text_of(body)
    images = sum(1 for _ in iterate_images(body.get("content")))
    if images:
        yield "said", f"[{images} image{'s' * (images > 1)}]"
    for call in calls_of(body):
        yield "called", f"→ {call.name} {call.arguments}"
    for result in results_of(body):
        yield (
            "returned",
            f"← {result.name or names.get(result.call_id, '')}: {result.text}",
        )


def _thoughts(body: Mapping[str, Any]) -> Iterator[str]:
    blocks: Sequence[Any] = [
        part for part in parts_of(body) if kind_of(part) in REASONING_BLOCKS
    ]
    for thought in (
        body.get("reasoning_content"),
        *(part.get("thinking") or part.get("text") for part in blocks),
    ):
        if isinstance(thought, str) and thought:
            yield thought


def _print_part(text: str, most: tuple[int, int] | None) -> None:
    """Print a text, cut to `most` characters and lines, with a note of the cut."""
    start = text if most is None else "\n".join(text[: most[0]].split("\n")[: most[1]])
    console.out(visible(start))
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

    async def work(opened: Store) -> list[FamilySession]:
        return await load_family(
            opened, (await opened.resolve(session_id, tenant=tenant)).thread
        )

    members = with_store(store, work)
    if as_json:
        print_json(
            {
                "thread": members[0].session.thread,
                "sessions": [_member_as_json(member) for member in members],
            }
        )
    else:
        # Wrapped on a terminal; elsewhere each session is one whole line.
        shown_on = (
            console
            if console.is_terminal
            else WordConsole(highlight=False, emoji=False, width=MAX_LINE_CHARS)
        )
        shown_on.print(_draw_tree(members, time.time()))


async def load_family(store: Store, thread: str) -> list[FamilySession]:
    """Every session of a thread and of the threads that began in it, recursively."""
    members: list[FamilySession] = []
    threads = {thread}
    queue = [thread]
    while queue:
        current = queue.pop()
        compactions = {
            record.session: record for record in await store.compactions(current)
        }
        sessions = await store.thread_sessions(current)
        title = await short_title(store, sessions[0])
        members += [
            FamilySession(session, compactions.get(session.id), title)
            for session in sessions
        ]
        children = [
            child.id
            for child in await store.started_by(current)
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
    plain = {name: getattr(session, name) for name in names} | {
        "title": member.title,
        "compaction": None,
    }
    plain |= {
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
        plain["compaction"] = {name: getattr(record, name) for name in figures} | {
            "covered": len(record.covered),
            "cost": None if record.cost is None else float(record.cost),
            "warnings": list(record.warnings),
            "reverted": format_iso(compaction.reverted),
        }
    return plain


def _draw_tree(members: list[FamilySession], now: float) -> Tree:
    """Continuations are listed below each other: a hundred compactions are a list, not a staircase."""
    top = Tree(Text())
    threads: dict[str, Tree] = {}
    nodes: dict[str, Tree] = {}
    for member in members:
        session = member.session
        parent = nodes.get(session.parent or "")
        if not threads:
            top.label = Text(
                f"thread {shorten_id(session.thread)}  {member.title}", "bold"
            )
            threads[session.thread] = top
        elif session.thread not in threads:
            label = Text(
                f"{session.kind} {shorten_id(session.thread)}  {member.title}", "bold"
            )
            threads[session.thread] = (parent or top).add(label)
        under = (
            parent if session.kind == "reverted" and parent else threads[session.thread]
        )
        nodes[session.id] = under.add(_label(member, now))
    return top


def _label(member: FamilySession, now: float) -> Text:
    session = member.session
    facts = [
        count_noun(session.messages, "message"),
        state_of(session),
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


MARK = "bold reverse"


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
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Search messages and tool outputs, the best match first, each with the message before and after."""
    from everthread.store.records import SearchQuery

    now = time.time()
    first = parse_time(since, now)
    last = parse_time(until, now)

    async def work(opened: Store) -> tuple[HitPage, str]:
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
            since=first,
            until=last,
            limit=limit,
            offset=offset,
        )
        page = await opened.find(query)
        return page, "" if page.hits else await _searched_text(opened, tenant, scope)

    page, searched = with_store(store, work, or_empty=True)
    hits = page.hits
    if as_json:
        rows = [_hit_as_json(hit) for hit in hits]
        print_json(
            {"hits": rows, "offset": offset, "more": page.more, "near": page.near}
        )
        return
    if not hits:
        print_text(f"nothing found {searched}")
    if page.near:
        print_text(("No message holds every word. The closest:", "dim"))
    found = {hit.message for hit in hits}
    for hit in hits:
        _print_hit(hit, text, found)
    if page.more:
        print_more(offset + limit)


def _print_hit(hit: SearchHit, query: str, found: Collection[int | None]) -> None:
    number = f"#{hit.message}" if hit.message is not None else hit.output
    facts = (
        shorten_id(hit.session),
        number,
        hit.role,
        hit.tool,
        format_age(hit.created, time.time()),
    )
    print_text((" · ".join(filter(None, facts)), "dim"))
    _print_neighbour("before", hit.before, found)
    print_text(_highlight(Text(f"  {excerpt(hit.snippet, 400)}"), query))
    _print_neighbour("after", hit.after, found)


async def _resolve_optional(
    store: Store, session_id: str | None, tenant: str | None
) -> Session | None:
    if session_id is None:
        return None
    return await store.resolve(session_id, tenant=tenant)


async def _searched_text(
    store: Store, tenant: str | None, scope: Session | None
) -> str:
    """Say where a search looked, and which threads it left out."""
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
    beside = {
        "before": hit.before and asdict(hit.before),
        "after": hit.after and asdict(hit.after),
    }
    return (
        {name: getattr(hit, name) for name in names}
        | {"created": format_iso(hit.created)}
        | beside
    )


def _print_neighbour(
    side: str, neighbour: Neighbour | None, found: Collection[int | None]
) -> None:
    """One line, cut at the edge of a terminal."""
    if neighbour is not None:
        line = visible(f"    {side} {neighbour.as_line(found)}")
        console.print(
            Text(line, "dim"),
            no_wrap=True,
            overflow="ellipsis" if console.is_terminal else "ignore",
        )


def _highlight(snippet: Text, query: str) -> Text:
    """Highlight the words of the query in the snippet: as typed, or else each of a word's terms."""
    for word in query.replace('"', " ").replace("*", " ").split():
        if not snippet.highlight_words([word], MARK, case_sensitive=False):
            snippet.highlight_words(phrase_terms(word), MARK, case_sensitive=False)
    return snippet
