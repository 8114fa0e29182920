"""Options that take several values: `0.3,0.5`, `5,10`, `1..10`."""

from __future__ import annotations

from everthread.errors import InputError


def names(text: str, option: str) -> list[str]:
    """Names with commas between them, each once."""
    found = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not found:
        raise InputError(f"{option} {text!r} names nothing; give one or more, with commas between them")
    return found


def whole_numbers(text: str, option: str, *, least: int = 1, most: int = 1_000) -> list[int]:
    """Whole numbers and spans of them, ascending."""
    found: set[int] = set()
    for part in names(text, option):
        first, dots, last = part.partition("..")
        try:
            start = int(first)
            span = range(start, (int(last) if dots else start) + 1)
        except ValueError:
            span = range(0)
        if not span or span[0] < least or span[-1] > most:
            raise InputError(f"{option} {text!r}: {part!r} is not a number or a span (1..3) from {least} to {most:,}")
        found.update(span)
    return sorted(found)


def shares(text: str, option: str, *, least: float, most: float) -> list[float]:
    """Parts of a whole, ascending."""
    found: set[float] = set()
    for part in names(text, option):
        try:
            value = float(part)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InputError(f"{option} {text!r}: {part!r} is not a number from {least:g} to {most:g}")
        found.add(value)
    return sorted(found)
