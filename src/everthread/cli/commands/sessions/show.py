"""`everthread sessions show`: the messages of a thread."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.formats import shorten_id
from everthread.cli.output import console, escape_controls, page_output, print_json, print_text
from everthread.cli.shared_options import (
    JsonOption,
    SessionArgument,
    StoreOption,
    TenantOption,
    number_option,
)
from everthread.cli.store_access import with_session
from everthread.cli.times import format_age, format_iso
from everthread.core.field_values import pick_fields
from everthread.core.messages import (
    REASONING_BLOCK_KINDS,
    Message,
    calls_of,
    content_text,
    iterate_images,
    kind_of,
    parts_of,
    results_of,
    text_of,
)
from everthread.core.secrets.json_redaction import redact_value
from everthread.core.text import count_noun, excerpt
from everthread.errors import InputError, UnknownIdError

if TYPE_CHECKING:
    from everthread.store.records import Session, StoredMessage
    from everthread.store.store import Store


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
    number_option(help_text="One message in full, by the number `show` and `search` print."),
]
OutputOption = Annotated[
    str | None,
    typer.Option(help="One stored tool output in full, by its `output:…` id."),
]
FullOption = Annotated[bool, typer.Option("--full", help="Long texts and tool results in full.")]
RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Also show credentials, which are redacted otherwise."),
]
MessageLimitOption = Annotated[
    int | None,
    number_option(minimum=1, maximum=100_000, help_text="Show at most N messages."),
]
MessageOffsetOption = Annotated[int, number_option(help_text="Skip the first N messages.")]


def show(
    session_id: SessionArgument,
    context: ContextOption = False,
    message: MessageOption = None,
    output: OutputOption = None,
    full: FullOption = False,
    raw: RawOption = False,
    limit: MessageLimitOption = None,
    offset: MessageOffsetOption = 0,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all messages of a thread, through any number of compactions."""
    if sum((context, message is not None, output is not None)) > 1:
        raise InputError("--context, --message and --output exclude each other")

    async def load(store: Store, session: Session) -> ShownThread:
        last_session = await store.load_session(await store.get_compression_tip(session.id))
        thread_view = ShownThread(session, last_session, with_system=context)
        if output is not None:
            thread_view.output = await _load_output(store, session, output)
        elif message is not None:
            history = await store.load_history(session.id)
            thread_view.messages = [await _load_message(store, session, history, message)]
            thread_view.tool_name_by_call_id = _map_call_ids_to_tool_names(history)
        else:
            load_messages = store.list_messages if context else store.load_history
            shown_session_id = last_session.id if context else session.id
            thread_view.messages = await load_messages(shown_session_id, start=offset, limit=limit)
            thread_view.tool_name_by_call_id = _map_call_ids_to_tool_names(thread_view.messages)
        return thread_view

    thread_view = with_session(store_url, session_id, load, tenant=tenant)
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
    last_session: Session
    with_system: bool
    messages: list[StoredMessage] = field(default_factory=list)
    tool_name_by_call_id: dict[str, str] = field(default_factory=dict)
    output: str | None = None

    def redact(self) -> None:
        self.session = replace(self.session, title=redact_value(self.session.title))
        self.last_session = replace(
            self.last_session, system=redact_value(self.last_session.system)
        )
        self.output = redact_value(self.output)
        self.messages = [
            replace(message, body=redact_value(message.body)) for message in self.messages
        ]

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "thread": self.session.thread,
            "session": self.last_session.id,
            "title": self.session.title,
            "model": self.last_session.model,
        }
        if self.output is not None:
            return values | {"output": self.output}
        if self.with_system:
            values["system"] = self.last_session.system
        return values | {"messages": list(map(_message_as_json, self.messages))}

    def print(self, *, full: bool) -> None:
        if self.output is not None:
            console.out(escape_controls(self.output))
            return
        facts = (
            excerpt(self.session.title, 100),
            shorten_id(self.session.thread),
            self.session.kind,
            self.last_session.model,
            "live" if self.last_session.is_live else "ended",
        )
        print_text((" · ".join(filter(None, facts)), "bold"))
        if self.with_system and self.last_session.system is not None:
            print_text(("\nsystem", COLOURS["system"]))
            limits = None if full else PREVIEW_LIMITS["text"]
            _print_part(content_text(self.last_session.system), limits)
        if not self.messages:
            print_text("no messages")
        for message in self.messages:
            _print_message(message, self.tool_name_by_call_id, full=full)


async def _load_message(
    store: Store, session: Session, history: Sequence[StoredMessage], message_id: int
) -> StoredMessage:
    """Return a message of this thread, or of the thread it branched from."""
    message = await store.load_message(message_id, tenant=session.tenant)
    if (await store.load_session(message.session)).thread != session.thread and message_id not in (
        stored_message.id for stored_message in history
    ):
        raise UnknownIdError(f"thread {shorten_id(session.thread)} has no message {message_id}")
    return message


async def _load_output(store: Store, session: Session, output_id: str) -> str:
    if output_id not in (output.id for output in await store.outputs.list_outputs(session.thread)):
        raise UnknownIdError(
            f"thread {shorten_id(session.thread)} has no stored output {output_id!r}"
        )
    return await store.outputs.load_output(output_id, tenant=session.tenant)


def _map_call_ids_to_tool_names(messages: Iterable[StoredMessage]) -> dict[str, str]:
    return {call.id: call.name for message in messages for call in calls_of(message.body)}


def _message_as_json(message: StoredMessage) -> dict[str, Any]:
    fields = pick_fields(message, ("id", "session", "seq", "kind", "tokens"))
    return fields | {"created": format_iso(message.created), "body": message.body}


def _print_message(
    message: StoredMessage, tool_name_by_call_id: Mapping[str, str], *, full: bool
) -> None:
    role = excerpt(str(message.body.get("role")), 20)
    kind = "" if message.kind == "message" else message.kind
    tokens_text = "" if message.tokens is None else f"{message.tokens:,} tokens"
    facts = [f"#{message.id}", kind, format_age(message.created, time.time()), tokens_text]
    print_text(
        "\n",
        (role, COLOURS.get(role, "bold")),
        "  ",
        (" · ".join(filter(None, facts)), "dim"),
    )
    for kind_of_part, text in _split_message(message.body, tool_name_by_call_id):
        _print_part(text, None if full else PREVIEW_LIMITS[kind_of_part])


def _split_message(
    body: Message, tool_name_by_call_id: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each part of a message: thoughts, text, images, calls, results."""
    for thought in _list_thoughts(body):
        yield "thinking", f"(thinking) {thought}"
    if body.get("role") != "tool" and text_of(body):
        yield "text", text_of(body)
    image_count = sum(1 for _ in iterate_images(body.get("content")))
    if image_count:
        yield "text", f"[{count_noun(image_count, 'image')}]"
    for call in calls_of(body):
        yield "call", f"→ {call.name} {call.arguments}"
    for result in results_of(body):
        name = result.tool_name or tool_name_by_call_id.get(result.call_id, "")
        yield "result", f"← {name}: {result.text}"


def _list_thoughts(body: Mapping[str, Any]) -> Iterator[str]:
    blocks: list[Any] = [part for part in parts_of(body) if kind_of(part) in REASONING_BLOCK_KINDS]
    thoughts = [body.get("reasoning_content")]
    thoughts += [block.get("thinking") or block.get("text") for block in blocks]
    for thought in thoughts:
        if isinstance(thought, str) and thought:
            yield thought


def _print_part(text: str, limits: tuple[int, int] | None) -> None:
    """Print a text, cut to `limits` (characters, lines), with a note of the cut."""
    shown_text = text
    if limits is not None:
        max_chars, max_lines = limits
        shown_text = "\n".join(text[:max_chars].split("\n")[:max_lines])
    console.out(escape_controls(shown_text))
    if len(shown_text) < len(text):
        print_text(
            (f"… {len(text) - len(shown_text):,} more characters (--full shows them)", "dim")
        )
