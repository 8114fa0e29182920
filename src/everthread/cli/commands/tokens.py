"""`everthread tokens FILE`: what fills the window."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from everthread.cli.conversation_file import FILE_HELP, ConversationFile, read_conversation
from everthread.cli.options import number_option, window_or_default
from everthread.cli.output import console, print_json, print_table, share
from everthread.core.messages import Message, calls_of, excerpt, results_of, text_of
from everthread.core.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """One message's share: where it stands, who speaks, with which tools, how many tokens."""

    index: int
    role: str
    tools: str
    tokens: int
    text: str


def tokens(
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    model: Annotated[str | None, typer.Option(help="Count as this model does. Default: the one in the file.")] = None,
    window: Annotated[int | None, number_option(least=1, text="The model's window, for the share.")] = None,
    top: Annotated[int, number_option(text="How many of the biggest messages to show.")] = 10,
    messages: Annotated[bool, typer.Option("--messages", help="List every message.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the tokens of a conversation: by role, by tool, by message."""
    recording = read_conversation(file)
    model = model or recording.request.model or None
    size, source = window_or_default(window)
    report = count(recording, TokenCounter(model)) | {
        "model": model,
        "window": size,
        "window_source": source,
    }
    if as_json:
        listed = report["messages"] if messages else []
        print_json({**report, "biggest": report["biggest"][:top], "messages": listed})
    else:
        _print(recording.source, report, top=top, every=messages)


def count(recording: ConversationFile, counter: TokenCounter) -> dict[str, Any]:
    """The figures, as plain values."""
    request = recording.request
    names = {call.id: call.name for message in request.messages for call in calls_of(message)}
    rows = [_row(index, message, names, counter) for index, message in enumerate(request.messages)]
    roles: Counter[str] = Counter()
    tools: Counter[str] = Counter()
    for row, message in zip(rows, request.messages, strict=True):
        roles[row.role] += row.tokens
        tools.update(_by_tool(message, row.tokens, names))
    parts = {"system": counter.system(request.system), "tools": counter.tools(request.tools)}
    total = counter.request(request.messages, system=request.system, tools=request.tools)
    biggest = sorted(rows, key=lambda row: -row.tokens)
    return {
        "source": recording.source,
        "api": recording.api,
        "total": total,
        "system": parts["system"],
        "tool_schemas": parts["tools"],
        "by_role": {
            role: {"messages": sum(row.role == role for row in rows), "tokens": n} for role, n in roles.items()
        },
        "by_tool": dict(tools.most_common()),
        "biggest": [_plain(row) for row in biggest],
        "messages": [_plain(row) for row in rows],
    }


def _by_tool(message: Message, tokens: int, names: dict[str, str]) -> dict[str, int]:
    """A message's tokens shared out among the tools in it, by how much each call or result says."""
    pieces = [(call.name, len(call.arguments) + 1) for call in calls_of(message)]
    pieces += [(result.name or names.get(result.call_id, "?"), len(result.text) + 1) for result in results_of(message)]
    whole = sum(size for _, size in pieces)
    shares: Counter[str] = Counter()
    for name, size in pieces:
        shares[name] += tokens * size // whole
    return shares


def _row(index: int, message: Message, names: dict[str, str], counter: TokenCounter) -> MessageTokens:
    used = [call.name for call in calls_of(message)]
    used += [result.name or names.get(result.call_id, "") for result in results_of(message)]
    tools = ", ".join(dict.fromkeys(name for name in used if name))
    said = text_of(message) or " ".join(result.text for result in results_of(message))
    said = said or " ".join(call.arguments for call in calls_of(message))
    return MessageTokens(index, message["role"], tools, counter.message(message), excerpt(said))


def _plain(row: MessageTokens) -> dict[str, Any]:
    return {"index": row.index, "role": row.role, "tools": row.tools, "tokens": row.tokens, "text": row.text}


def _print(source: str, report: dict[str, Any], *, top: int, every: bool) -> None:
    total, window = report["total"], report["window"]
    rows = [
        (role, entry["messages"], entry["tokens"], share(entry["tokens"], total))
        for role, entry in report["by_role"].items()
    ]
    rows += [
        (name, "", report[key], share(report[key], total))
        for name, key in (("system prompt", "system"), ("tool schemas", "tool_schemas"))
        if report[key]
    ]
    print_table(source, ["role", "messages>", "tokens>", "share>"], rows)
    if report["by_tool"]:
        print_table(
            "by tool",
            ["tool", "tokens>", "share>"],
            [(name, n, share(n, total)) for name, n in report["by_tool"].items()],
        )
    listed = report["messages"] if every else report["biggest"][:top]
    if listed:
        print_table(
            "every message" if every else "the biggest messages",
            ["#>", "role", "tool", "tokens>", "share>", "begins…"],
            [
                (row["index"], row["role"], row["tools"], row["tokens"], share(row["tokens"], total), row["text"])
                for row in listed
            ],
        )
    where = "" if report["window_source"] == "option" else f", {report['window_source']}"
    console.print(f"[bold]{total:,}[/bold] tokens, {share(total, window)} of a window of {window:,}{where}")
