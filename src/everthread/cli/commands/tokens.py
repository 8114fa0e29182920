"""`everthread tokens FILE`: the size of a conversation."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from everthread.cli.formats import format_share
from everthread.cli.output import print_json, print_notes, print_text
from everthread.cli.shared_options import (
    CountingModelOption,
    JsonOption,
    WindowOption,
    number_option,
    resolve_window_option,
)
from everthread.cli.tables import print_table
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.core.text import excerpt
from everthread.core.tokens import TokenCounter
from everthread.lab.importers.conversation_file import (
    FILE_HELP,
    ConversationFile,
    read_conversation,
)


def tokens(
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    model: CountingModelOption = None,
    window: WindowOption = None,
    top: Annotated[int, number_option(help_text="How many of the biggest messages to show.")] = 10,
    messages: Annotated[bool, typer.Option("--messages", help="List every message.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count the tokens of a conversation: by role, by tool, by message."""
    conversation = read_conversation(file)
    print_notes(conversation.warnings)
    model = model or conversation.request.model or None
    window_tokens, source = resolve_window_option(window)
    report = count_tokens(conversation, TokenCounter(model)) | {
        "model": model,
        "window": window_tokens,
        "window_source": source,
    }
    if as_json:
        rows = report["messages"] if messages else []
        print_json({**report, "biggest": report["biggest"][:top], "messages": rows})
    else:
        _print_tokens(conversation.source, report, top=top, show_all=messages)


def count_tokens(conversation: ConversationFile, counter: TokenCounter) -> dict[str, Any]:
    """Return the tokens of a conversation by role, by tool and by message, as JSON values."""
    request = conversation.request
    tool_name_by_call_id = {
        call.id: call.name for message in request.messages for call in calls_of(message)
    }
    rows = [
        _count_message(index, message, tool_name_by_call_id, counter)
        for index, message in enumerate(request.messages)
    ]
    figures_by_role: dict[str, dict[str, int]] = {}
    tokens_by_tool: Counter[str] = Counter()
    for row, message in zip(rows, request.messages, strict=True):
        role_figures = figures_by_role.setdefault(row["role"], {"messages": 0, "tokens": 0})
        role_figures["messages"] += 1
        role_figures["tokens"] += row["tokens"]
        tokens_by_tool.update(_split_by_tool(message, row["tokens"], tool_name_by_call_id))
    return {
        "source": conversation.source,
        "api": conversation.api,
        "total": counter.request(request.messages, system=request.system, tools=request.tools),
        "system": counter.system(request.system),
        "tool_schemas": counter.tools(request.tools),
        "by_role": figures_by_role,
        "by_tool": dict(tokens_by_tool.most_common()),
        "biggest": sorted(rows, key=lambda row: -int(row["tokens"])),
        "messages": rows,
    }


def _split_by_tool(
    message: Message, tokens: int, tool_name_by_call_id: dict[str, str]
) -> dict[str, int]:
    """Split a message's tokens among its tools by the length of each call or result."""
    lengths = [(call.name, len(call.arguments) + 1) for call in calls_of(message)]
    lengths += [
        (result.tool_name or tool_name_by_call_id.get(result.call_id, "?"), len(result.text) + 1)
        for result in results_of(message)
    ]
    total_length = sum(length for _, length in lengths)
    tokens_by_tool: Counter[str] = Counter()
    for name, length in lengths:
        tokens_by_tool[name] += tokens * length // total_length
    return tokens_by_tool


def _count_message(
    index: int, message: Message, tool_name_by_call_id: dict[str, str], counter: TokenCounter
) -> dict[str, Any]:
    calls = calls_of(message)
    results = results_of(message)
    tool_names = [call.name for call in calls] + [
        result.tool_name or tool_name_by_call_id.get(result.call_id, "") for result in results
    ]
    text = (
        text_of(message)
        or " ".join(result.text for result in results)
        or " ".join(call.arguments for call in calls)
    )
    return {
        "index": index,
        "role": message["role"],
        "tools": ", ".join(dict.fromkeys(filter(None, tool_names))),
        "tokens": counter.message(message),
        "text": excerpt(text),
    }


def _print_tokens(source: str, report: dict[str, Any], *, top: int, show_all: bool) -> None:
    total = report["total"]
    window = report["window"]

    def with_share(tokens: int) -> tuple[int, str]:
        return tokens, format_share(tokens, total)

    rows: list[tuple[object, ...]] = [
        (role, entry["messages"], *with_share(entry["tokens"]))
        for role, entry in report["by_role"].items()
    ]
    other_parts = (
        ("system prompt", report["system"]),
        ("tool schemas", report["tool_schemas"]),
    )
    rows += [(name, "", *with_share(tokens)) for name, tokens in other_parts if tokens]
    print_table(source, ["role", "messages>", "tokens>", "share>"], rows)
    if report["by_tool"]:
        tool_rows = [(name, *with_share(tokens)) for name, tokens in report["by_tool"].items()]
        print_table("by tool", ["tool", "tokens>", "share>"], tool_rows)
    messages = report["messages"] if show_all else report["biggest"][:top]
    if messages:
        print_table(
            "every message" if show_all else "the biggest messages",
            ["#>", "role", "tool", "tokens>", "share>", "begins…"],
            [
                (
                    row["index"],
                    row["role"],
                    row["tools"],
                    *with_share(row["tokens"]),
                    row["text"],
                )
                for row in messages
            ],
        )
    window_source = (
        "" if report["window_source"] == "option" else f" (from the {report['window_source']})"
    )
    print_text(
        (f"{total:,}", "bold"),
        f" tokens, {format_share(total, window)} of a window of {window:,}{window_source}",
    )
