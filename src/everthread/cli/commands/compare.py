"""`everthread compare [LOG…]`: measure the summaries that agents made of their own sessions, beside Everthread's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import explain_write_errors, print_json, print_text
from everthread.cli.progress import show_progress
from everthread.cli.shared_options import JsonOption, number_option
from everthread.cli.tables import print_table

if TYPE_CHECKING:
    from everthread.lab.summary_comparison import ComparedCompaction, Comparison

MAX_NAME_CHARS = 24
"""Characters of a log's name in the table; most are ids."""
COLUMNS = (
    "log",
    "context after the compaction",
    "names used next>",
    "your messages, whole>",
    "tokens>",
)


def compare(
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG",
            help="Logs of Claude Code, Codex, Copilot CLI, Gemini CLI, pi or opencode. Default: the newest here.",
        ),
    ] = None,
    newest: Annotated[
        int,
        number_option(minimum=1, help_text="Without LOG: this many of the newest logs."),
    ] = 20,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the summaries that agents made of their own sessions with Everthread's.

    For each compaction in a log: which of the names that the agent used next, and which of the user's messages, were in
    the client's new context, and which in Everthread's of the same size and of the default size. No model is asked.
    """
    from everthread.lab.importers.find_logs import find_latest_logs
    from everthread.lab.importers.read_logs import read_log
    from everthread.lab.summary_comparison import compare_log, describe

    sources = logs or find_latest_logs(limit=newest)
    comparisons = []
    with show_progress(len(sources)) as start_piece:
        for number, source in enumerate(sources):
            report_step = start_piece(number, source)
            comparisons.append(compare_log(read_log(source)))
            report_step(1, 1)
    sentence = describe(comparisons)
    if html is not None:
        _write_page(html, comparisons, sentence)
    if as_json:
        print_json(
            {
                "sentence": sentence,
                "logs": [asdict(comparison) for comparison in comparisons],
            }
        )
        return
    print_text(sentence)
    print_table(
        "",
        COLUMNS,
        [row for comparison in comparisons for row in _list_rows(comparison)],
    )
    _print_notes(comparisons)
    if html is not None:
        print_text(f"The page: {html}")


def _list_rows(comparison: Comparison) -> list[list[object]]:
    """Return three rows for each compaction: the client's context, and Everthread's in two sizes."""
    name = Path(comparison.source).name
    if len(name) > MAX_NAME_CHARS:
        name = f"{name[: MAX_NAME_CHARS - 1]}…"
    return [
        row
        for compaction in comparison.compactions
        for row in _list_compaction_rows(name, compaction)
    ]


def _list_compaction_rows(log: str, compaction: ComparedCompaction) -> list[list[object]]:
    from everthread.lab.summary_comparison import DEFAULT_SIZE, OWN_CONTEXT, SAME_SIZE

    contexts = {
        OWN_CONTEXT: "the client's own",
        SAME_SIZE: "Everthread, same size",
        DEFAULT_SIZE: "Everthread, default size",
    }
    rows: list[list[object]] = []
    for variant, context in contexts.items():
        kept_counts = compaction.held[variant]
        names_text = f"{kept_counts.names} of {compaction.names} ({kept_counts.names / compaction.names:.0%})"
        is_hidden = variant == OWN_CONTEXT and not compaction.is_readable
        rows.append(
            [
                f"{log}, {compaction.number + 1}" if variant == OWN_CONTEXT else "",
                context,
                "encrypted" if is_hidden else names_text,
                f"{kept_counts.user_messages} of {compaction.user_messages}",
                kept_counts.tokens,
            ]
        )
    return rows


def _print_notes(comparisons: list[Comparison]) -> None:
    skipped_count = sum(comparison.skipped for comparison in comparisons)
    if skipped_count:
        print_text(
            f"Not measured, because too little came before or after: {skipped_count:,} of the compactions."
        )
    if any(
        not compaction.is_readable
        for comparison in comparisons
        for compaction in comparison.compactions
    ):
        print_text("Encrypted summaries cannot be read; they do not count in the sentence above.")
    print_text(
        "Names used next: file names and identifiers from before the compaction that the agent typed in a call "
        "afterwards, before any result showed them again."
    )


def _write_page(file: str, comparisons: list[Comparison], sentence: str) -> None:
    from everthread.lab.replay.report import render_table_page

    rows: list[list[Any]] = [row for comparison in comparisons for row in _list_rows(comparison)]
    headings = [column.rstrip(">") for column in COLUMNS]
    page = render_table_page("Summaries compared", sentence, headings, rows)
    with explain_write_errors(file):
        Path(file).write_text(page, "utf-8")
