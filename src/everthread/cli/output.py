"""Output of the commands: text for people and JSON for programs, with control characters made visible."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from everthread.core.validation import ROLES
from everthread.errors import InputError


class WrappingConsole(Console):
    """A console that wraps text at words on a terminal. Elsewhere it wraps only if `soft_wrap` is False."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        super().print(
            *objects,
            soft_wrap=not self.is_terminal if soft_wrap is None else soft_wrap,
            **options,
        )


console = WrappingConsole(highlight=False, emoji=False)


# Characters that a terminal does not show: C1 controls, direction marks, unusual line ends; and surrogates, which
# cannot be encoded.
_INVISIBLE_CODES = (
    0x7F,
    *range(0x80, 0xA0),
    0x61C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)


_ESCAPE_SEQUENCES = {code: f"\\u{code:04x}" for code in (*_INVISIBLE_CODES, *range(0xD800, 0xE000))}


_CONTROL_REPLACEMENTS = _ESCAPE_SEQUENCES | {
    code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)
}


def print_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(encode_json(value, indent=2))


def encode_json(value: Any, *, indent: int | None = None) -> str:
    """Encode as JSON in which every character that a terminal or a file cannot take is escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(_ESCAPE_SEQUENCES)


def escape_controls(text: str) -> str:
    """Make control characters in foreign text visible, so that they cannot move the cursor or change colours."""
    return text.replace("\r\n", "\n").translate(_CONTROL_REPLACEMENTS)


def print_text(*parts: str | tuple[str, str] | Text) -> None:
    """Print a paragraph for a person, with control characters made visible. A part may have a style of its own."""
    text = Text()
    for part in parts:
        if isinstance(part, Text):
            text.append_text(part)
        elif isinstance(part, tuple):
            text.append(escape_controls(part[0]), part[1])
        else:
            text.append(escape_controls(part))
    console.print(text)


def print_error(text: str) -> None:
    """Print on standard error. On a terminal, wrap the text at words."""
    lines = escape_controls(text).splitlines()
    if sys.stderr.isatty():
        lines = _wrap_lines(lines, shutil.get_terminal_size().columns)
    typer.echo("\n".join(lines), err=True)


def indent_further_lines(text: str, indent: int) -> str:
    """Wrap a text that begins at a column, and indent its further lines to that column."""
    lines = _wrap_lines(text.splitlines(), max(console.width - indent, 20))
    return f"\n{' ' * indent}".join(lines)


def _wrap_lines(lines: Sequence[str], width: int) -> list[str]:
    """Wrap lines at spaces. A longer word, such as a path, stays whole."""
    return [
        row
        for line in lines
        for row in textwrap.wrap(line, width=width, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]


def print_next_page_hint(offset: int) -> None:
    """Print how to see the next page of a list."""
    print_text(f"… there are more (--offset {offset} shows them)")


MAX_NOTES = 20


def print_notes(notes: Sequence[str], kind: str = "note") -> None:
    """Print notes on standard error, so that standard output has the result alone."""
    for note in notes[:MAX_NOTES]:
        typer.echo(escape_controls(f"{kind}: {note}"), err=True)
    if len(notes) > MAX_NOTES:
        typer.echo(f"{kind}: … and {len(notes) - MAX_NOTES:,} more", err=True)


def print_unknown_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    """Print the roles that no provider knows, on standard error."""
    unknown_roles = sorted({str(message.get("role")) for message in messages} - ROLES)
    if unknown_roles:
        noun = "role" if len(unknown_roles) == 1 else "roles"
        print_notes(
            [f"unknown {noun} {', '.join(unknown_roles)}; known: {', '.join(sorted(ROLES))}"],
            "warning",
        )


@contextmanager
def page_output() -> Iterator[None]:
    """On a terminal, send everything printed inside the block through the pager, with colours."""
    if not console.is_terminal:
        yield
        return
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        yield


@contextmanager
def explain_write_errors(file: str) -> Iterator[None]:
    """Turn an `OSError` inside the block into an `InputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror or error}") from error
