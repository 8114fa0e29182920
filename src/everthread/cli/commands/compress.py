"""`everthread compress FILE`: compact a conversation and print the effect of each phase."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from everthread.cli.output import (
    explain_write_errors,
    print_json,
    print_notes,
    print_text,
    print_unknown_roles,
)
from everthread.cli.shared_options import (
    CountingModelOption,
    JsonOption,
    WindowOption,
    number_option,
    resolve_window_option,
)
from everthread.cli.tables import print_table
from everthread.compaction.compaction_result import Compaction
from everthread.compaction.journal.journal import describe_author
from everthread.compaction.summary.sections import TemplateName
from everthread.config import load_config
from everthread.core.field_values import pick_fields
from everthread.core.text import count_noun, excerpt
from everthread.core.tool_outputs import replace_reader_name
from everthread.core.types import ModelRequest
from everthread.errors import ConfigError
from everthread.lab.importers.conversation_file import (
    FILE_HELP,
    ConversationFile,
    read_conversation,
)
from everthread.wire import anthropic, openai_chat, openai_responses

CODECS = {codec.API: codec for codec in (anthropic, openai_chat, openai_responses)}
FileArgument = Annotated[str, typer.Argument(help=FILE_HELP)]
FocusOption = Annotated[str | None, typer.Option(help="Keep full detail for this topic.")]
SummarizerOption = Annotated[
    str,
    typer.Option(
        help="Who writes the summary: auto (the auxiliary model, if one is configured) or journal."
    ),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(help="The summary's layout: handoff or classic. Default: the configured one."),
]
PreviewOption = Annotated[
    bool,
    typer.Option("--preview", help="Show what would be kept, cut and summarised."),
]
ShowOption = Annotated[bool, typer.Option("--show", help="Print the summary.")]
OutOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--out",
        help="Write the compacted conversation to this file (`-`: standard output), and cited outputs beside it.",
    ),
]
TimesOption = Annotated[
    int, number_option(minimum=1, maximum=100, help_text="Compact N times in a row.")
]


def compress(
    file: FileArgument,
    window: WindowOption = None,
    focus: FocusOption = None,
    summarizer: SummarizerOption = "auto",
    template: TemplateOption = None,
    preview: PreviewOption = False,
    show: ShowOption = False,
    out: OutOption = None,
    times: TimesOption = 1,
    model: CountingModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compact a conversation: prune, cut, summarise, verify, assemble."""
    recording = read_conversation(file)
    print_notes(recording.warnings)
    print_unknown_roles(recording.request.messages)
    window_tokens, source = resolve_window_option(window)
    config = load_config()
    if not config.compression.enabled:
        raise ConfigError(
            "compression is disabled (compression.enabled: false); nothing was changed"
        )
    request, results = _compact_repeatedly(
        recording.request,
        times,
        window=window_tokens,
        model=model or recording.request.model or None,
        focus=focus,
        summarizer=summarizer,
        template=cast(TemplateName | None, template),
        preview=preview,
        config=config,
    )
    if out is not None and not preview:
        _write_conversation(out, dataclasses.replace(recording, request=request), results)
        if out == "-":
            return  # standard output holds the conversation alone
    if as_json:
        print_json({"compactions": [_result_as_json(result) for result in results]})
    else:
        for result in results:
            _print_result(recording, result)
            if show and result.summary:
                print_text(result.summary)
        window_source = "" if source == "option" else f" (from the {source})"
        print_text((f"For a window of {window_tokens:,} tokens{window_source}.", "dim"))
        if out is not None and not preview:
            print_text(f"Written: {out}")


def _compact_repeatedly(
    request: ModelRequest, times: int, **options: Any
) -> tuple[ModelRequest, list[Compaction]]:
    """Compact a request's messages up to `times` times, and return the last request and each result."""
    from everthread.factory import compress as compact

    results: list[Compaction] = []
    # On standard error, so that standard output holds the result alone.
    with Console(stderr=True).status("compacting …"):
        for _ in range(times):
            result = compact(
                request.messages,
                system=request.system,
                tools=request.tools,
                force=True,
                **options,
            )
            results.append(result)
            if not result.changed:
                break
            request = dataclasses.replace(request, messages=result.messages)
    return request, results


def _write_conversation(
    target: str, recording: ConversationFile, results: Sequence[Compaction]
) -> None:
    """Write the conversation in the format it was read in, and its outputs beside the file, as `OUT.outputs/ID.txt`.

    The text names no tool that reads the outputs, because there is none.
    """
    body = replace_reader_name(CODECS[recording.api].encode_request(recording.request), None)
    outputs = {item.id: item.text for result in results for item in result.to_store}
    outputs |= {node.id: node.body for result in results for node in result.nodes}
    value = body["messages"] if recording.is_message_list else body
    text = f"{json.dumps(value, ensure_ascii=False, indent=1)}\n"
    if target == "-":
        typer.echo(text, nl=False)
        if outputs:
            outputs_text = count_noun(len(outputs), "cited output")
            Console(stderr=True).print(
                f"Not written: {outputs_text}; `--out FILE` writes them beside the file"
            )
        return
    folder = Path(f"{target}.outputs")
    with explain_write_errors(target):
        Path(target).write_text(text, "utf-8")
        if outputs:
            folder.mkdir(exist_ok=True)
        for name, content in outputs.items():
            (folder / f"{name.rpartition(':')[2]}.txt").write_text(content, "utf-8")


def _result_as_json(result: Compaction) -> dict[str, Any]:
    names = ("changed", "reason", "tokens_before", "tokens_after", "author", "duration", "summary")
    return pick_fields(result, names) | {
        "messages": len(result.messages),
        "phases": [dataclasses.asdict(phase) for phase in result.phases],
        "verification": dataclasses.asdict(result.verification),
        "covered": list(result.covered),
        "steps": list(result.steps),
        "warnings": list(result.warnings),
    }


def _print_result(recording: ConversationFile, result: Compaction) -> None:
    if not result.changed and result.reason != "preview":
        print_text(f"nothing was changed: {result.reason}")
        return
    rows = [(phase.name, phase.before, phase.after, phase.note) for phase in result.phases]
    print_table(recording.source, ["phase", "tokens before>", "after>", "what~"], rows)
    verification = result.verification
    if verification.facts or verification.checked:
        print_table(
            "verification",
            ["what", "figure>"],
            [
                ("top facts of the sources", verification.facts),
                ("in the summary as written", verification.present),
                ("added from the sources", verification.added),
                ("names looked up", verification.checked),
                ("marked as unverified", verification.unverified),
            ],
        )
    warnings = [f"warning: {warning}" for warning in result.warnings]
    for line in (*result.steps, *warnings):
        print_text(f"  {excerpt(line, 200)}")
    output_count = len(result.to_store) + len(result.nodes)
    if output_count:
        print_text(
            f"  {count_noun(output_count, 'output')} cited; `--out FILE` writes them to FILE.outputs"
        )
    change = "old outputs made short"
    if result.covered:
        verb = "is" if len(result.covered) == 1 else "are"
        if result.reason == "preview":
            verb = "would be"
        author = f" by {describe_author(result.author)}" if result.author else ""
        change = f"{count_noun(len(result.covered), 'message')} {verb} summarised{author}"
    figures = f"{result.tokens_before:,} → {result.tokens_after:,}"
    print_text((figures, "bold"), f" tokens; {change} in {result.duration * 1000:.0f} ms")
