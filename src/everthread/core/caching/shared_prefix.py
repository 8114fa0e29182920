"""Compare the prefixes of two requests: what the next one repeats, and where they first differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from everthread.core.fingerprints import byte_form, byte_text
from everthread.core.types import Request, System

Where = Literal["tools", "system", "messages"]


@dataclass(frozen=True, slots=True)
class PrefixDiff:
    """The part of a request that the next one repeats, and their first difference."""

    shared_messages: int
    """Messages repeated byte for byte; none when the tools or the system prompt before them changed."""
    extends: bool
    """The next request begins with the whole of the one before."""
    where: Where | None = None
    index: int | None = None
    """Which message differs."""
    path: str = ""
    """Which field of it: `content[0].text`."""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if self.extends:
            return f"extends it: all {self.shared_messages} messages are shared"
        index = "" if self.index is None else f"[{self.index}]"
        path = (
            f".{self.path}"
            if self.path and not self.path.startswith("[")
            else self.path
        )
        return f"{self.where}{index}{path}: {self.before} became {self.after}"


def shared_prefix(a: Request, b: Request) -> PrefixDiff:
    """Compare two requests byte for byte, without marks; a string equals one text block."""
    for where, index, old, new in _compared_parts(a, b):
        difference = _difference(old, new)
        if difference:
            path, before, after = difference
            return PrefixDiff(
                index or 0,
                extends=False,
                where=where,
                index=index,
                path=path,
                before=before,
                after=after,
            )
    return PrefixDiff(len(a.messages), extends=True)


_ABSENT: Any = object()


def _compared_parts(
    a: Request, b: Request
) -> Iterator[tuple[Where, int | None, Any, Any]]:
    """Yield the parts to compare, in the order in which a provider reads a request."""
    yield "tools", None, byte_form(a.tools), byte_form(b.tools)
    yield "system", None, _system_form(a.system), _system_form(b.system)
    for index, old in enumerate(a.messages):
        new = b.messages[index] if index < len(b.messages) else _ABSENT
        if old is not new:
            yield "messages", index, byte_form(old), byte_form(new)


def _system_form(system: System) -> Any:
    return byte_form({"content": system or None})["content"]


def _difference(old: Any, new: Any, path: str = "") -> tuple[str, str, str] | None:
    """Return the path of the first difference and both values; None if the bytes are equal."""
    if old is _ABSENT or new is _ABSENT:
        return path, _excerpt(old), _excerpt(new)
    if byte_text(old) == byte_text(new):
        return None
    for step, x, y in _children(old, new):
        difference = _difference(
            x, y, f"{path}{step}" if path or step.startswith("[") else step[1:]
        )
        if difference:
            return difference
    at = (
        _common_length(old, new) if isinstance(old, str) and isinstance(new, str) else 0
    )
    return path, _excerpt(old, at), _excerpt(new, at)


def _children(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Return the values to compare one by one, each with its step in the path.

    If all are equal, the order of the keys differs.
    """
    if isinstance(old, list) and isinstance(new, list):
        pairs = zip_longest(old, new, fillvalue=_ABSENT)
        return [(f"[{index}]", x, y) for index, (x, y) in enumerate(pairs)]
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            (f".{key}", old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in keys
        ]
    return []


def _common_length(a: str, b: str) -> int:
    low = 0
    high = min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _excerpt(value: Any, at: int = 0) -> str:
    if value is _ABSENT:
        return "nothing"
    text = value if isinstance(value, str) else byte_text(value)
    start = max(0, at - 20)
    end = at + 40
    shown = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return byte_text(shown) if isinstance(value, str) else shown
