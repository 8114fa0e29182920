"""Compare two requests: how much of the first the second repeats, and where they first differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from everthread.core.fingerprints import byte_form, byte_form_text
from everthread.core.types import ModelRequest, System

RequestSection = Literal["tools", "system", "messages"]


@dataclass(frozen=True, slots=True)
class PrefixDiff:
    """The part of a request that the next one repeats, and their first difference."""

    shared_messages: int
    """Messages repeated byte for byte, or 0 if the tools or the system prompt before them changed."""
    is_extension: bool
    """Whether the second request begins with all of the first."""
    section: RequestSection | None = None
    index: int | None = None
    """Index of the message that differs."""
    path: str = ""
    """Path of the field that differs, such as `content[0].text`."""
    old_excerpt: str = ""
    new_excerpt: str = ""

    def __str__(self) -> str:
        if self.is_extension:
            return f"extends it: all {self.shared_messages} messages are shared"
        index = "" if self.index is None else f"[{self.index}]"
        path = f".{self.path}" if self.path and not self.path.startswith("[") else self.path
        return f"{self.section}{index}{path}: {self.old_excerpt} became {self.new_excerpt}"


def compare_prefixes(first: ModelRequest, second: ModelRequest) -> PrefixDiff:
    """Compare two requests byte for byte, without marks; a string equals one text block."""
    for section, index, old, new in _pair_sections(first, second):
        difference = _find_difference(old, new)
        if difference:
            path, old_excerpt, new_excerpt = difference
            return PrefixDiff(
                index or 0,
                is_extension=False,
                section=section,
                index=index,
                path=path,
                old_excerpt=old_excerpt,
                new_excerpt=new_excerpt,
            )
    return PrefixDiff(len(first.messages), is_extension=True)


_ABSENT: Any = object()


def _pair_sections(
    first: ModelRequest, second: ModelRequest
) -> Iterator[tuple[RequestSection, int | None, Any, Any]]:
    """Yield the parts to compare, in the order in which a provider reads a request."""
    yield "tools", None, byte_form(first.tools), byte_form(second.tools)
    yield (
        "system",
        None,
        _make_system_form(first.system),
        _make_system_form(second.system),
    )
    for index, old in enumerate(first.messages):
        new = second.messages[index] if index < len(second.messages) else _ABSENT
        if old is not new:
            yield "messages", index, byte_form(old), byte_form(new)


def _make_system_form(system: System) -> Any:
    return byte_form({"content": system or None})["content"]


def _find_difference(old: Any, new: Any, path: str = "") -> tuple[str, str, str] | None:
    """Return the path of the first difference with an excerpt of both values, or None if the bytes are equal."""
    if old is _ABSENT or new is _ABSENT:
        return path, _make_excerpt(old), _make_excerpt(new)
    if byte_form_text(old) == byte_form_text(new):
        return None
    for path_step, old_child, new_child in _pair_children(old, new):
        difference = _find_difference(
            old_child,
            new_child,
            f"{path}{path_step}" if path or path_step.startswith("[") else path_step[1:],
        )
        if difference:
            return difference
    position = _count_shared_chars(old, new) if isinstance(old, str) and isinstance(new, str) else 0
    return path, _make_excerpt(old, position), _make_excerpt(new, position)


def _pair_children(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Return the values to compare one by one, each with its step in the path.

    If all are equal, the order of the keys differs.
    """
    if isinstance(old, list) and isinstance(new, list):
        pairs = zip_longest(old, new, fillvalue=_ABSENT)
        return [
            (f"[{index}]", old_item, new_item) for index, (old_item, new_item) in enumerate(pairs)
        ]
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [(f".{key}", old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in keys]
    return []


def _count_shared_chars(first: str, second: str) -> int:
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _make_excerpt(value: Any, position: int = 0) -> str:
    if value is _ABSENT:
        return "nothing"
    text = value if isinstance(value, str) else byte_form_text(value)
    start = max(0, position - 20)
    end = position + 40
    excerpt = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return byte_form_text(excerpt) if isinstance(value, str) else excerpt
