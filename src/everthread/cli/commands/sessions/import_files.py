"""`everthread sessions import`: read exported threads, and other programs' logs."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_notes
from everthread.cli.shared_options import JsonOption, StoreOption
from everthread.cli.store_access import with_store
from everthread.core.text import count_noun
from everthread.errors import InputError, TranscriptError

if TYPE_CHECKING:
    from everthread.lab.importers.log import LogStream
    from everthread.store.store import Store


def import_files(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Exports, conversations or logs of other programs; `-`: standard input.",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PROGRAM",
            help="Every session of claude-code, codex, pi or opencode on this machine.",
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant of the imported threads.")] = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import exported threads, or conversations of other programs.

    If a conversation is stored already, only its new messages are added. An exported thread that is stored already is
    refused.
    """
    from everthread.lab.importers.find_logs import find_logs

    if bool(files) == (client is not None):
        raise InputError("give the files to import, or --from with the name of a program")
    sources = find_logs(client) if client else list(files or ())
    imported_threads, skip_reasons, notes = _import_all(
        sources, store_url, tenant, skip_bad=client is not None or len(sources) > 1
    )
    if as_json:
        print_json(
            {
                "threads": [thread_id for thread_id, _ in imported_threads],
                "skipped": skip_reasons,
                "notes": notes,
            }
        )
        return
    print_notes(skip_reasons, "skipped")
    print_notes(notes)
    new_message_count = sum(count for _, count in imported_threads)
    ids_text = ", ".join(shorten_id(thread_id) for thread_id, _ in imported_threads[:5]) + (
        ", …" if len(imported_threads) > 5 else ""
    )
    threads_text = count_noun(len(imported_threads), "thread")
    messages_text = count_noun(new_message_count, "message")
    typer.echo(f"{threads_text} imported, {messages_text} new: {ids_text or 'none'}")


def _import_all(
    files: Sequence[str], store_url: str | None, tenant: str | None, *, skip_bad: bool
) -> tuple[list[tuple[str, int]], list[str], list[str]]:
    """Import files. Return threads with their counts of new messages, reasons why files were skipped, and notes."""
    from everthread.lab.importers.thread_import import import_stream

    skip_reasons: list[str] = []
    notes: list[str] = []

    async def import_files(store: Store) -> list[tuple[str, int]]:
        imported_threads: list[tuple[str, int]] = []
        for file in files:
            try:
                content = _read_import(file)
                if isinstance(content, list):
                    thread_ids = await store.import_lines(content)
                    imported_threads += [
                        (thread_id, (await store.load_session(thread_id)).message_count)
                        for thread_id in thread_ids
                    ]
                else:
                    imported_threads.append(await import_stream(store, content, tenant=tenant))
                    log = content.log
                    notes.extend(f"{log.source}: {warning}" for warning in log.warnings)
            except TranscriptError as error:
                source = "standard input" if file == "-" else file
                reason = str(error) if str(error).startswith(file) else f"{source}: {error}"
                if not skip_bad:
                    raise TranscriptError(f"{reason}; nothing was imported") from error
                skip_reasons.append(reason)
        return imported_threads

    return with_store(store_url, import_files, create=True), skip_reasons, notes


def _read_import(file: str) -> list[dict[str, Any]] | LogStream:
    """Return the lines of an export, or the conversation in another program's log."""
    from everthread.lab.importers.log import LogStream
    from everthread.lab.importers.read_logs import (
        EXPORT_TYPE,
        open_lines,
        parse_log,
        read_text,
        stream_log,
    )

    log_lines = open_lines(file)
    if log_lines is not None and log_lines.first_object.get("type") != EXPORT_TYPE:
        return _check_messages(stream_log(log_lines, file))
    source, text = read_text(file)
    if not text.strip():
        raise TranscriptError(f"{source}: is empty")
    first_value = None
    lines = text.strip().split("\n")
    # Only the first line decides the format: a later one may be damaged.
    with contextlib.suppress(ValueError, RecursionError):
        first_value = json.loads(lines[0])
    if isinstance(first_value, dict) and first_value.get("type") == EXPORT_TYPE:
        return [_parse_line(source, number, line) for number, line in enumerate(lines, 1)]
    log = parse_log(text, source)
    return _check_messages(LogStream(log, log.entries))


def _check_messages(stream: LogStream) -> LogStream:
    """Return the stream with its first message read; raise `TranscriptError` if there is none."""
    entries = iter(stream.entries)
    first_entry = next(entries, None)
    if first_entry is None:
        raise TranscriptError(f"{stream.log.source}: holds no message")
    return replace(stream, entries=itertools.chain([first_entry], entries))


def _parse_line(source: str, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{source}: line {number} is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise TranscriptError(f"{source}: line {number} is not a line of an export")
    return value
