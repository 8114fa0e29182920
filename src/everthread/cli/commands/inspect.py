"""`everthread inspect FILE`: the structure of a conversation and its problems."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from everthread.cli.output import print_json, print_notes, print_text
from everthread.cli.shared_options import JsonOption
from everthread.cli.tables import MAX_ROWS, print_table
from everthread.core.message_repair import repair
from everthread.core.messages import Messages
from everthread.core.summary_marks import is_summary
from everthread.core.text import count_noun, excerpt
from everthread.core.turns import TurnSpan, find_call_groups, split_into_turns, user_text
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
    as_json: JsonOption = False,
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
        "turns": [_describe_turn(messages, turn) for turn in split_into_turns(messages)],
        "groups": [
            {
                "assistant": group.assistant_index,
                "calls": len(group.call_ids),
                "results": len(group.result_indexes),
                "missing": group.unanswered_ids,
            }
            for group in find_call_groups(messages)
        ],
        "summaries": [index for index, message in enumerate(messages) if is_summary(message)],
        "problems": {
            api: [asdict(problem) for problem in validate_messages(messages, api=api)]
            for api in ("openai", "anthropic")
        },
        "repair": repair(messages).actions,
    }


def _describe_turn(messages: Messages, turn: TurnSpan) -> dict[str, Any]:
    user_index = turn.user_index
    return {
        "start": turn.start,
        "end": turn.end,
        "messages": turn.end - turn.start,
        "groups": len(find_call_groups(messages[turn.start : turn.end])),
        "user": "" if user_index is None else excerpt(user_text(messages[user_index])),
    }


def _print_report(report: dict[str, Any], max_rows: int | None) -> None:
    counts_text = f"{count_noun(len(report['turns']), 'turn')}, {count_noun(len(report['groups']), 'tool group')}"
    summary_count = len(report["summaries"])
    print_text(
        (report["source"], "bold"),
        f": {count_noun(report['messages'], 'message')} ({report['api']}), {counts_text}, "
        f"{summary_count:,} {'summary' if summary_count == 1 else 'summaries'}",
    )
    turn_rows = [
        (turn["start"], turn["messages"], turn["groups"], turn["user"]) for turn in report["turns"]
    ]
    print_table(
        "turns",
        ["from>", "messages>", "tool groups>", "the user…"],
        turn_rows,
        max_rows=max_rows,
    )
    problems_by_api = report["problems"]
    if all(problems == problems_by_api["openai"] for problems in problems_by_api.values()):
        problems_by_api = {" and ".join(problems_by_api): problems_by_api["openai"]}
    for api, problems in problems_by_api.items():
        if problems:
            columns = ["#>", "rule", "times>", "what~"]
            rows = _group_problems(problems)
            print_table(f"problems for {api}", columns, rows, max_rows=max_rows)
        else:
            print_text(f"valid for {api}")
    repair_count = len(report["repair"])
    if repair_count:
        print_text(f"repair would make {count_noun(repair_count, 'change')} (--json lists)")
    else:
        print_text("repair would change nothing")


def _group_problems(problems: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a row for each message and broken rule, with the number of cases and the text of the first."""
    texts_by_case: dict[tuple[int, str], list[str]] = {}
    for problem in problems:
        key = problem["index"], problem["rule"]
        texts_by_case.setdefault(key, []).append(problem["message"])
    return [
        (index, rule, len(messages), messages[0])
        for (index, rule), messages in texts_by_case.items()
    ]
