"""`everthread inspect FILE`: what a conversation is made of, and what is wrong with it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from everthread.cli.conversation_file import FILE_HELP, ConversationFile, read_conversation
from everthread.cli.output import console, print_json, print_table
from everthread.core.messages import Messages, excerpt
from everthread.core.transcript import TurnSpan, groups, is_summary, turns, user_text
from everthread.core.validation import repair, validate_messages

SHOWN = 20


def inspect(
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    every: Annotated[bool, typer.Option("--all", help="Every row, not only the first twenty.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show turns, tool groups, validity problems and what repair would do."""
    recording = read_conversation(file)
    report = examine(recording)
    if as_json:
        print_json(report)
    else:
        _print(report, None if every else SHOWN)


def examine(recording: ConversationFile) -> dict[str, Any]:
    """The findings, as plain values."""
    messages = recording.request.messages
    found = groups(messages)
    return {
        "source": recording.source,
        "api": recording.api,
        "messages": len(messages),
        "turns": [_turn(messages, turn) for turn in turns(messages)],
        "groups": [
            {
                "assistant": group.assistant,
                "calls": len(group.call_ids),
                "results": len(group.results),
                "missing": group.missing,
            }
            for group in found
        ],
        "summaries": [index for index, message in enumerate(messages) if is_summary(message)],
        "problems": {
            api: [
                {"index": p.index, "rule": p.rule, "message": p.message} for p in validate_messages(messages, api=api)
            ]
            for api in ("openai", "anthropic")
        },
        "repair": repair(messages).actions,
    }


def _turn(messages: Messages, turn: TurnSpan) -> dict[str, Any]:
    user = turn.user
    return {
        "start": turn.start,
        "end": turn.end,
        "messages": turn.end - turn.start,
        "groups": len(groups(messages[turn.start : turn.end])),
        "user": "" if user is None else excerpt(user_text(messages[user])),
    }


def _print(report: dict[str, Any], most: int | None) -> None:
    console.print(
        f"[bold]{escape(report['source'])}[/bold]: {report['messages']:,} messages ({report['api']}), "
        f"{len(report['turns']):,} turns, {len(report['groups']):,} tool groups, "
        f"{len(report['summaries']):,} summaries",
        soft_wrap=True,
    )
    rows = [(turn["start"], turn["messages"], turn["groups"], turn["user"]) for turn in report["turns"]]
    _limited("turns", ["from>", "messages>", "tool groups>", "the user…"], rows, most)
    open_groups = [(g["assistant"], ", ".join(g["missing"])) for g in report["groups"] if g["missing"]]
    if open_groups:
        _limited("groups with open calls", ["#>", "unanswered~"], open_groups, most)
    for api, problems in report["problems"].items():
        if problems:
            _limited(
                f"problems for {api}",
                ["#>", "rule", "what~"],
                [(p["index"], p["rule"], p["message"]) for p in problems],
                most,
            )
        else:
            console.print(f"valid for {api}")
    if report["repair"]:
        _limited("repair would do", ["what~"], [(action,) for action in report["repair"]], most)
    else:
        console.print("repair would change nothing")


def _limited(title: str, columns: list[str], rows: list[tuple[Any, ...]], most: int | None) -> None:
    print_table(title, columns, rows[:most])
    if most is not None and len(rows) > most:
        console.print(f"… and {len(rows) - most:,} more (--all shows them)\n")
