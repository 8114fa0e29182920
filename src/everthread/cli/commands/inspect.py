"""`everthread inspect FILE`: the structure of a conversation and its problems; `everthread tokens FILE`: its size."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from everthread.cli.output import (
    MAX_ROWS,
    format_share,
    print_json,
    print_notes,
    print_table,
    print_text,
)
from everthread.cli.shared_options import (
    MIN_WINDOW,
    AsJson,
    number_option,
    resolve_window_option,
)
from everthread.core.message_repair import repair
from everthread.core.messages import (
    Message,
    Messages,
    calls_of,
    count_noun,
    excerpt,
    results_of,
    text_of,
)
from everthread.core.summary_marks import is_summary
from everthread.core.tokens import TokenCounter
from everthread.core.turns import (
    TurnSpan,
    find_call_groups,
    split_into_turns,
    user_text,
)
from everthread.core.validation import validate_messages
from everthread.lab.importers.conversation_file import (
    FILE_HELP,
    ConversationFile,
    read_conversation,
)


def inspect(
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    show_all: Annotated[
        bool, typer.Option("--all", help="Every row, not only the first twenty.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show turns, tool groups, validity problems and what repair would do."""
    conversation = read_conversation(file)
    print_notes(conversation.warnings)
    report = inspect_conversation(conversation)
    if as_json:
        print_json(report)
    else:
        _print_report(report, None if show_all else MAX_ROWS)


def inspect_conversation(conversation: ConversationFile) -> dict[str, Any]:
    """Return the turns, tool groups, summaries, problems and repairs of a conversation, as JSON values."""
    messages = conversation.request.messages
    return {
        "source": conversation.source,
        "api": conversation.api,
        "messages": len(messages),
        "turns": [
            _describe_turn(messages, turn) for turn in split_into_turns(messages)
        ],
        "groups": [
            {
                "assistant": group.assistant_index,
                "calls": len(group.call_ids),
                "results": len(group.result_indexes),
                "missing": group.unanswered_ids,
            }
            for group in find_call_groups(messages)
        ],
        "summaries": [
            index for index, message in enumerate(messages) if is_summary(message)
        ],
        "problems": {
            api: [asdict(problem) for problem in validate_messages(messages, api=api)]
            for api in ("openai", "anthropic")
        },
        "repair": repair(messages).actions,
    }


def _describe_turn(messages: Messages, turn: TurnSpan) -> dict[str, Any]:
    user = turn.user_index
    return {
        "start": turn.start,
        "end": turn.end,
        "messages": turn.end - turn.start,
        "groups": len(find_call_groups(messages[turn.start : turn.end])),
        "user": "" if user is None else excerpt(user_text(messages[user])),
    }


def _print_report(report: dict[str, Any], max_rows: int | None) -> None:
    counts_text = f"{count_noun(len(report['turns']), 'turn')}, {count_noun(len(report['groups']), 'tool group')}"
    summaries = len(report["summaries"])
    print_text(
        (report["source"], "bold"),
        f": {count_noun(report['messages'], 'message')} ({report['api']}), {counts_text}, "
        f"{summaries:,} {'summary' if summaries == 1 else 'summaries'}",
    )
    turn_rows = [
        (turn["start"], turn["messages"], turn["groups"], turn["user"])
        for turn in report["turns"]
    ]
    print_table(
        "turns",
        ["from>", "messages>", "tool groups>", "the user…"],
        turn_rows,
        max_rows=max_rows,
    )
    by_api = report["problems"]
    if all(problems == by_api["openai"] for problems in by_api.values()):
        by_api = {" and ".join(by_api): by_api["openai"]}
    for api, problems in by_api.items():
        if problems:
            columns = ["#>", "rule", "times>", "what~"]
            rows = _group_problems(problems)
            print_table(f"problems for {api}", columns, rows, max_rows=max_rows)
        else:
            print_text(f"valid for {api}")
    repairs = len(report["repair"])
    if repairs:
        print_text(f"repair would make {count_noun(repairs, 'change')} (--json lists)")
    else:
        print_text("repair would change nothing")


def _group_problems(problems: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a row for each message and rule: how often, and the first case."""
    grouped: dict[tuple[int, str], list[str]] = {}
    for problem in problems:
        key = problem["index"], problem["rule"]
        grouped.setdefault(key, []).append(problem["message"])
    return [
        (index, rule, len(messages), messages[0])
        for (index, rule), messages in grouped.items()
    ]


def tokens(
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    model: Annotated[
        str | None,
        typer.Option(help="Count as this model does. Default: the one in the file."),
    ] = None,
    window: Annotated[
        int | None,
        number_option(
            minimum=MIN_WINDOW, help_text="The model's window, for the share."
        ),
    ] = None,
    top: Annotated[
        int, number_option(help_text="How many of the biggest messages to show.")
    ] = 10,
    messages: Annotated[
        bool, typer.Option("--messages", help="List every message.")
    ] = False,
    as_json: AsJson = False,
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


def count_tokens(
    conversation: ConversationFile, counter: TokenCounter
) -> dict[str, Any]:
    """Return the tokens of a conversation by role, by tool and by message, as JSON values."""
    request = conversation.request
    names = {
        call.id: call.name for message in request.messages for call in calls_of(message)
    }
    rows = [
        _count_message(index, message, names, counter)
        for index, message in enumerate(request.messages)
    ]
    by_role: dict[str, dict[str, int]] = {}
    by_tool: Counter[str] = Counter()
    for row, message in zip(rows, request.messages, strict=True):
        role = by_role.setdefault(row["role"], {"messages": 0, "tokens": 0})
        role["messages"] += 1
        role["tokens"] += row["tokens"]
        by_tool.update(_split_by_tool(message, row["tokens"], names))
    return {
        "source": conversation.source,
        "api": conversation.api,
        "total": counter.request(
            request.messages, system=request.system, tools=request.tools
        ),
        "system": counter.system(request.system),
        "tool_schemas": counter.tools(request.tools),
        "by_role": by_role,
        "by_tool": dict(by_tool.most_common()),
        "biggest": sorted(rows, key=lambda row: -int(row["tokens"])),
        "messages": rows,
    }


def _split_by_tool(
    message: Message, tokens: int, names: dict[str, str]
) -> dict[str, int]:
    """Split a message's tokens among its tools, by the length of each call or result."""
    lengths = [(call.name, len(call.arguments) + 1) for call in calls_of(message)]
    lengths += [
        (result.name or names.get(result.call_id, "?"), len(result.text) + 1)
        for result in results_of(message)
    ]
    total = sum(length for _, length in lengths)
    shares: Counter[str] = Counter()
    for name, length in lengths:
        shares[name] += tokens * length // total
    return shares


def _count_message(
    index: int, message: Message, names: dict[str, str], counter: TokenCounter
) -> dict[str, Any]:
    calls = calls_of(message)
    results = results_of(message)
    tools = [call.name for call in calls] + [
        result.name or names.get(result.call_id, "") for result in results
    ]
    text = (
        text_of(message)
        or " ".join(result.text for result in results)
        or " ".join(call.arguments for call in calls)
    )
    return {
        "index": index,
        "role": message["role"],
        "tools": ", ".join(dict.fromkeys(filter(None, tools))),
        "tokens": counter.message(message),
        "text": excerpt(text),
    }


def _print_tokens(
    source: str, report: dict[str, Any], *, top: int, show_all: bool
) -> None:
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
        tools = [
            (name, *with_share(tokens)) for name, tokens in report["by_tool"].items()
        ]
        print_table("by tool", ["tool", "tokens>", "share>"], tools)
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
        ""
        if report["window_source"] == "option"
        else f" (from the {report['window_source']})"
    )
    print_text(
        (f"{total:,}", "bold"),
        f" tokens, {format_share(total, window)} of a window of {window:,}{window_source}",
    )
