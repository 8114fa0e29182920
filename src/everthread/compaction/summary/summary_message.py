"""Write the parts of a summary message: marker, pinned notes, sections that fit their budget, names in use."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.compaction.engine import Services
from everthread.compaction.names.names_in_use import read_shown_names
from everthread.compaction.names.names_section import NamesSection
from everthread.compaction.summary.sections import Sections
from everthread.compaction.summary.sentences import CountTokens
from everthread.core.lookup_tools import find_lookup_tools
from everthread.core.messages import tool_names
from everthread.core.secrets.redaction import redact
from everthread.core.summary_marks import neutralize_summary_marks

PINNED = "Pinned by the user:"
_KEY_SEPARATOR = " with "


@functools.cache
def read_text_file(resource_name: str) -> str:
    """Return the text of `texts/<resource_name>.txt`."""
    return (
        resources.files("everthread.compaction")
        .joinpath(f"texts/{resource_name}.txt")
        .read_text("utf-8")
        .strip()
    )


def find_reading_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[str, ...]:
    """Return the names of the model's tools that can read the covered messages."""
    return find_lookup_tools(name for tool in tools or () for name in tool_names(tool))


def make_tools_key(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return a key of the tools that a summary names, because the summary fits only requests with the same tools."""
    names = find_reading_tools(tools)
    return f"{_KEY_SEPARATOR}{','.join(names)}" if names else ""


def split_tools_key(key: str) -> tuple[str, tuple[str, ...]]:
    """Split a key that ends with the result of `make_tools_key`; return its beginning, and the names of the tools."""
    engine, _, names = key.partition(_KEY_SEPARATOR)
    return engine, tuple(names.split(",")) if names else ()


def rename_tools(text: str, old_names: Sequence[str], new_names: Sequence[str]) -> str:
    """Return a summary, or JSON with a summary in it, that names other tools to read the covered messages."""
    return text.replace(_render_recall_line(old_names), _render_recall_line(new_names))


def _render_recall_line(names: Sequence[str]) -> str:
    return read_text_file("recall").format(tools=" and ".join(f"`{name}`" for name in names))


def render_marker(
    plan: CutPlan,
    name: str,
    services: Services,
    tools: Sequence[Mapping[str, Any]] | None,
) -> str:
    """Return the first lines of a summary, which name the tools that can read the covered messages."""
    is_small = services.budget.is_small
    message_count = plan.earlier_summary.message_count + len(plan.covered_indices)
    marker = read_text_file("marker_short" if is_small else name).format(count=f"{message_count:,}")
    tool_names = find_reading_tools(tools) if services.is_stored else ()
    if not tool_names:
        return marker
    return f"{marker}\n{_render_recall_line(tool_names)}"


def render_pinned_notes(
    notes: Sequence[str], max_tokens: int, count: CountTokens
) -> tuple[str, tuple[str, ...]]:
    """Return the pinned notes within `max_tokens`, preferring the newest, and a warning if not all fit."""
    lines: list[str] = []
    remaining = max_tokens
    for note in reversed(notes):
        line = "- " + neutralize_summary_marks(redact(note)).replace("\n", "\n  ")
        remaining -= count(line) + 1
        if remaining < 0:
            break
        lines.insert(0, line)
    missing_count = len(notes) - len(lines)
    warnings = (
        (f"{missing_count} pinned notes had no room in the summary",) if missing_count else ()
    )
    return "\n".join([PINNED, *lines]) if lines else "", warnings


def strip_pinned_notes(section: str) -> str:
    """Return the section without the pinned notes, which are written again in each summary."""
    lines = section.split("\n")
    if PINNED not in lines:
        return section
    start = lines.index(PINNED)
    end = next(
        (
            index
            for index in range(start + 1, len(lines))
            if not lines[index].startswith(("- ", "  "))
        ),
        len(lines),
    )
    return "\n".join([*lines[:start], *lines[end:]]).strip()


def count_section_tokens(sections: Mapping[str, str], count: CountTokens) -> int:
    """Return the tokens of the sections with their headings, except empty ones."""
    return sum(count(f"## {name}\n{text}\n\n") for name, text in sections.items() if text)


def drop_lines_to_fit(sections: Mapping[str, str], max_tokens: int, count: CountTokens) -> Sections:
    """Return the sections within `max_tokens` tokens: drop lines from the end of the longest section first."""
    lines = {
        name: [(line, count(line) + 1) for line in text.split("\n")]
        for name, text in sections.items()
    }
    sizes = {name: sum(size for _, size in pairs) for name, pairs in lines.items()}
    total = sum(sizes.values())
    while total > max_tokens and any(sizes.values()):
        name = max(sizes, key=lambda name: sizes[name])
        _, size = lines[name].pop()
        sizes[name] -= size
        total -= size
        if not lines[name]:
            sizes[name] = 0
    return {name: "\n".join(line for line, _ in pairs) for name, pairs in lines.items() if pairs}


def render_names_section(
    section: NamesSection, plan: CutPlan, visible_text: str, count: CountTokens
) -> str:
    """Return Names in Use: the names that neither the summary's text nor head nor tail shows."""
    if not section.max_tokens:
        return ""
    messages = plan.cut.messages
    shown_names: set[str] = set()
    for message in (*messages[: plan.cut.head_end], *messages[plan.cut.tail_start :]):
        shown_names.update(read_shown_names(message))
    return section.render(visible_text, shown_names, count)
