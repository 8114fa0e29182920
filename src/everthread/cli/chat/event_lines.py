"""The lines of a chat for events and tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from everthread.agent.turn_events import Delegated, ToolFinished, ToolStarted, TurnEnded
from everthread.cli.chat.status_line import format_thousands
from everthread.cli.output import escape_controls
from everthread.compaction.history.call_lines import Action, describe_outcome, find_action
from everthread.compaction.journal.journal import describe_author
from everthread.core.costs.prices import format_dollars
from everthread.core.messages import ToolCall
from everthread.core.text import clip, count_noun
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    CompactionProgress,
    CompactionVoid,
    Event,
    LimitLearnt,
    Notice,
    OutputStored,
    Recalled,
    Recovery,
    ToolsChanged,
)

DIM_STYLE = "dim"
ACCENT_STYLE = "cyan"
WARNING_STYLE = "yellow"


def render_event(event: Event) -> Text | None:
    """Return the line for an event; None for events that only change figures."""
    match event:
        case CompactionDone():
            return _render_compaction(event)
        case Delegated():
            inner_line = render_event(event.event)
            return Text.assemble("  ", inner_line) if inner_line else None
    line = _describe_event(event)
    return None if line is None else Text(f"{line[0]} {escape_controls(line[1])}", line[2])


def _describe_event(event: Event) -> tuple[str, str, str] | None:
    """Return the mark, the text and the style of an event's line; None for an event that is not shown."""
    match event:
        case CompactionProgress():
            return None if event.is_repeated else ("◇", event.text, DIM_STYLE)
        case CompactionVoid():
            return "◇", f"Nothing was compacted: {event.reason}", DIM_STYLE
        case CompactionFailed():
            return "✗", f"The compaction failed: {event.error}", WARNING_STYLE
        case Recovery():
            return "↻", _describe_recovery(event), WARNING_STYLE
        case LimitLearnt():
            storage_note = "" if event.is_stored else ", not stored"
            return (
                "↻",
                f"the window of {event.model} is {event.window:,} tokens: {event.source}{storage_note}",
                WARNING_STYLE,
            )
        case OutputStored():
            return (
                "▤",
                f"{event.tool or 'message'}: {event.chars:,} characters stored as {event.output}",
                DIM_STYLE,
            )
        case Recalled():
            return "⌕", f"recalled for this answer: {', '.join(event.cited)}", DIM_STYLE
        case ToolsChanged():
            return "⚒", _describe_tools(event), DIM_STYLE
        case Notice():
            return "!", event.text, WARNING_STYLE
        case TurnEnded(reason="max_rounds"):
            return (
                "!",
                f"stopped after {count_noun(event.rounds, 'round')} of tools",
                WARNING_STYLE,
            )
        case _:
            return None


def _describe_tools(event: ToolsChanged) -> str:
    """Name the tools that were left out or brought back, and the tokens that this saves."""
    parts = []
    if event.removed_names:
        parts.append(f"left out to save room: {', '.join(event.removed_names)}")
    if event.returned_names:
        parts.append(f"available again: {', '.join(event.returned_names)}")
    count_text = f"{len(event.left_out)} of {count_noun(event.tool_count, 'tool')}"
    return f"Tools {'; '.join(parts)} ({count_text} out, {event.tokens_saved:,} tokens saved)"


PROBLEM_TEXTS = {
    "prompt_too_long": "The provider refused the prompt as too long",
    "max_tokens_too_large": "The provider refused the length of answer asked for",
    "payload_too_large": "The provider refused the request: too many bytes",
}


def _describe_recovery(event: Recovery) -> str:
    """Describe what the provider refused, and how the next try differs."""
    problem = PROBLEM_TEXTS.get(event.problem, event.problem)
    attempt_text = "" if event.attempt <= 1 else f" ({event.attempt})"
    return f"{problem}. Trying again{attempt_text}: {event.action}"


def _render_compaction(event: CompactionDone) -> Text:
    """Render the size before and after, and the author of the summary. The details are in `/why`."""
    author_text = (
        f"; summary by {escape_controls(describe_author(event.author))}" if event.author else ""
    )
    cost_text = f" for {format_dollars(event.cost)}" if event.cost else ""
    sizes_text = f"{format_thousands(event.tokens_before)} → {format_thousands(event.tokens_after)}"
    line = Text.assemble(
        (f"◆ Compacted {sizes_text} tokens{author_text}{cost_text}.", ACCENT_STYLE),
        (" /why, /undo", DIM_STYLE),
    )
    for warning in event.warnings:
        line.append(f"\n  ! {escape_controls(warning)}", WARNING_STYLE)
    return line


MAX_ARGUMENT_CHARS = 100
"""Maximum characters of a command or a path that are shown."""


class ToolLines:
    """The lines for tool calls, which differ while a tool runs and when it has finished."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], ToolStarted] = {}

    def render(self, event: Event, thread_id: str = "") -> Text | None:
        """Return the line for an event of a tool; None for other events.

        `thread_id` is that of a subagent's thread, because several threads may use the same call ids.
        """
        match event:
            case ToolStarted():
                self._running[thread_id, event.call_id] = event
            case ToolFinished():
                self._running.pop((thread_id, event.call_id), None)
                return render_tool_result(event)
            case Delegated():
                inner_line = self.render(event.event, event.thread)
                return Text.assemble("  ", inner_line) if inner_line else None
        return None

    @property
    def running_text(self) -> str:
        """Return the running tools in one line; empty if there are none."""
        targets = [_describe_call(event.tool, event.arguments) for event in self._running.values()]
        return f"⚙ {'; '.join(targets)} …" if targets else ""

    def clear(self) -> None:
        self._running.clear()


def render_tool_result(event: ToolFinished) -> Text:
    """Render the line of a finished tool, and the start of its output."""
    action = _parse_action(event.tool, event.arguments)
    mark, style = ("✗", WARNING_STYLE) if event.failed else ("✓", "green")
    outcome = "refused" if event.refused else _describe_outcome(event, action)
    line = Text.assemble(
        (mark, style),
        f" {_describe_call(event.tool, event.arguments)}",
        (f"  {escape_controls(outcome)}", DIM_STYLE),
    )
    if event.refused:
        return line
    if event.seconds >= 0.05:
        line.append(f"  {event.seconds:.1f} s", DIM_STYLE)
    return line.append_text(_render_preview(event.text, action.kind))


PREVIEW_LINES = 3
"""Maximum lines of a tool's output that are shown."""


def _render_preview(text: str, kind: str) -> Text:
    """Render the first lines of a command's or a search's output, and how many more there are."""
    first_line, _, output = text.partition("\n")
    output_lines = escape_controls(
        output if first_line.startswith("exit code:") else text
    ).splitlines()
    output_lines = [output_line for output_line in output_lines if output_line.strip()]
    if kind not in ("shell", "search") or len(output_lines) < 2:
        return Text()
    lines = [
        f"\n  │ {clip(output_line.rstrip(), MAX_ARGUMENT_CHARS)}"
        for output_line in output_lines[:PREVIEW_LINES]
    ]
    more_line = (
        f"\n  │ … {len(output_lines) - PREVIEW_LINES:,} more"
        if len(output_lines) > PREVIEW_LINES
        else ""
    )
    return Text("".join(lines) + more_line, DIM_STYLE)


def _describe_outcome(event: ToolFinished, action: Action) -> str:
    """Return a one-line result unchanged, or describe a longer one in a few words."""
    text = event.text.strip()
    if "\n" not in text and (event.failed or action.kind != "read"):
        return clip(text, MAX_ARGUMENT_CHARS)
    return describe_outcome(
        action.kind, event.text, failed=event.failed, max_chars=MAX_ARGUMENT_CHARS
    )


def _describe_call(tool: str, arguments: Mapping[str, Any]) -> str:
    action = _parse_action(tool, arguments)
    target = " ".join(part for part in (action.target, action.detail) if part)
    return escape_controls(f"{tool} {clip(target, MAX_ARGUMENT_CHARS)}".rstrip())


def _parse_action(tool: str, arguments: Mapping[str, Any]) -> Action:
    return find_action(ToolCall("", tool, json.dumps(dict(arguments), default=str))) or Action(tool)
