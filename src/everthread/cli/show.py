"""`everthread sessions show ID`: a conversation as a person reads it, or as the model sees it now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from everthread.cli.output import console, excerpt, paged, print_json, short, visible
from everthread.cli.running import AsJson, SessionId, StoreUrl, Tenant, with_store
from everthread.cli.times import ago, iso
from everthread.core.messages import (
    REASONING_BLOCKS,
    Message,
    calls_of,
    content_text,
    images_in,
    kind_of,
    parts_of,
    results_of,
    text_of,
)
from everthread.core.redaction import redact_value
from everthread.errors import InputError, UnknownIdError

if TYPE_CHECKING:
    from everthread.store.models import Session, StoredMessage
    from everthread.store.store import Store

MOST = {"said": (4_000, 60), "thought": (400, 6), "called": (400, 6), "returned": (800, 10)}
"""How many characters and lines are shown of each kind of text, unless all is asked for."""
COLOURS = {"user": "bold cyan", "assistant": "bold green", "tool": "bold yellow", "system": "bold magenta"}


@dataclass(frozen=True, slots=True)
class View:
    """What was asked for: the thread, where it goes on, and the messages to show."""

    session: Session
    tip: Session
    messages: list[StoredMessage]
    names: Mapping[str, str]
    """Tool call id -> the tool's name."""
    output: str | None = None


def show(
    session_id: SessionId,
    context: Annotated[bool, typer.Option("--context", help="What the model sees now, with its summary.")] = False,
    message: Annotated[
        int | None, typer.Option(min=0, max=2**62, help="One message in full, by the number `show` and `search` print.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="One stored tool output in full, by its `output:…` id.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Long texts and tool results as a whole.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Credentials too, which are left out otherwise.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, max=2**31, help="Show at most so many messages.")] = None,
    offset: Annotated[int, typer.Option(min=0, max=2**31, help="Leave out so many messages first.")] = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that was said in a thread, through any number of compactions."""
    if sum((context, message is not None, output is not None)) > 1:
        raise InputError("--context, --message and --output exclude each other")

    async def work(opened: Store) -> View:
        session = await opened.resolve(session_id, tenant=tenant)
        tip = await opened.session(await opened.get_compression_tip(session.id))
        if output is not None:
            return View(session, tip, [], {}, await _output(opened, session, output))
        if message is not None:
            return await _one(opened, session, tip, message)
        read, whose = (opened.messages, tip.id) if context else (opened.history, session.id)
        found = await read(whose, start=offset, limit=limit)
        return View(session, tip, found, _names(item.body for item in found))

    view = with_store(store, work)
    if as_json:
        print_json(_plain(view, context=context, raw=raw))
        return
    with paged():
        if view.output is not None:
            _print_text(_clean(view.output, raw=raw), None)
            return
        _print_heading(view, context=context, raw=raw, full=full)
        for item in view.messages:
            _print_message(item, view.names, raw=raw, full=full or message is not None)


async def _one(store: Store, session: Session, tip: Session, message_id: int) -> View:
    """A message of this thread, or of the one it branched from."""
    found = await store.message(message_id, tenant=session.tenant)
    history = await store.history(session.id)
    if (await store.session(found.session)).thread != session.thread and message_id not in (m.id for m in history):
        raise UnknownIdError(f"thread {short(session.thread)} has no message {message_id}")
    return View(session, tip, [found], _names(item.body for item in history))


async def _output(store: Store, session: Session, output_id: str) -> str:
    if output_id not in (stored.id for stored in await store.outputs(session.thread)):
        raise UnknownIdError(f"thread {short(session.thread)} has no stored output {output_id!r}")
    return await store.output(output_id, tenant=session.tenant)


def _names(bodies: Iterable[Message]) -> dict[str, str]:
    return {call.id: call.name for body in bodies for call in calls_of(body)}


def _clean(value: Any, *, raw: bool) -> Any:
    return value if raw else redact_value(value)


def _plain(view: View, *, context: bool, raw: bool) -> dict[str, Any]:
    heading = {
        "thread": view.session.thread,
        "session": view.tip.id,
        "title": _clean(view.session.title, raw=raw),
        "model": view.tip.model,
    }
    if view.output is not None:
        return heading | {"output": _clean(view.output, raw=raw)}
    system = {"system": _clean(view.tip.system, raw=raw)} if context else {}
    messages = [
        {
            "id": item.id,
            "session": item.session,
            "seq": item.seq,
            "kind": item.kind,
            "created": iso(item.created),
            "tokens": item.tokens,
            "body": _clean(item.body, raw=raw),
        }
        for item in view.messages
    ]
    return heading | system | {"messages": messages}


def _print_heading(view: View, *, context: bool, raw: bool, full: bool) -> None:
    title = excerpt(_clean(view.session.title, raw=raw), 100)
    facts = [short(view.session.thread), view.session.kind, view.tip.model, "live" if view.tip.live else "ended"]
    console.print(Text(" · ".join(visible(fact) for fact in (title, *facts) if fact), "bold"), soft_wrap=True)
    if context and view.tip.system is not None:
        console.print(Text("\nsystem", COLOURS["system"]))
        _print_text(content_text(_clean(view.tip.system, raw=raw)), None if full else MOST["said"])
    if not view.messages:
        console.print("no messages")


def _print_message(item: StoredMessage, names: Mapping[str, str], *, raw: bool, full: bool) -> None:
    role = excerpt(str(item.body.get("role")), 20)
    kind = "" if item.kind == "message" else item.kind
    tokens = "" if item.tokens is None else f"{item.tokens:,} tokens"
    facts = [f"#{item.id}", kind, ago(item.created, time.time()), tokens]
    heading = Text.assemble("\n", (role, COLOURS.get(role, "bold")), "  ", (" · ".join(filter(None, facts)), "dim"))
    console.print(heading, soft_wrap=True)
    for sort, text in pieces(_clean(item.body, raw=raw), names):
        _print_text(text, None if full else MOST[sort])


def pieces(body: Message, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a message holds, in the order it is read: thoughts, words, images, calls, results."""
    for thought in _thoughts(body):
        yield "thought", f"(thinking) {thought}"
    results = results_of(body)
    if body.get("role") != "tool" and text_of(body):
        yield "said", text_of(body)
    images = sum(1 for _ in images_in(body.get("content")))
    if images:
        yield "said", f"[{images} image{'s' * (images > 1)}]"
    for call in calls_of(body):
        yield "called", f"→ {call.name} {call.arguments}"
    for result in results:
        yield "returned", f"← {result.name or names.get(result.call_id, '')}: {result.text}"


def _thoughts(body: Mapping[str, Any]) -> Iterator[str]:
    said = body.get("reasoning_content")
    blocks: Sequence[Any] = [part for part in parts_of(body) if kind_of(part) in REASONING_BLOCKS]
    for thought in (said, *(part.get("thinking") or part.get("text") for part in blocks)):
        if isinstance(thought, str) and thought:
            yield thought


def _print_text(text: str, most: tuple[int, int] | None) -> None:
    """The text as it is, however long its lines; cut where it is longer than wanted, and saying so."""
    shown = text if most is None else "\n".join(text[: most[0]].split("\n")[: most[1]])
    console.out(visible(shown))
    if len(shown) < len(text):
        more = f"… {len(text) - len(shown):,} more characters (--full shows them)"
        console.print(Text(more, "dim"), soft_wrap=True)
