"""One line for each thing that happens: from an event to what a person reads. No printing here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from everthread.agent.events import Delegated, ToolFinished, ToolStarted, TurnEnded
from everthread.cli.output import counted, money, visible
from everthread.conversation.events import (
    CompactionDone,
    CompactionFailed,
    CompactionProgress,
    CompactionStarted,
    CompactionVoid,
    Event,
    LimitLearnt,
    Notice,
    OutputStored,
    Planned,
    Recalled,
    Recovery,
    ToolsChanged,
)
from everthread.core.messages import Call
from everthread.core.summary import Verification
from everthread.core.toolkinds import Action, action_of, clip, outcome_of

QUIET, LOUD, BAD = "dim", "cyan", "yellow"


def line_of(event: Event) -> Text | None:
    """What is shown of an event; None for those that only move figures."""
    match event:
        case CompactionStarted():
            return None if event.background else Text(f"◇ compacting {event.tokens:,} tokens ({event.reason}) …", QUIET)
        case CompactionDone():
            return _compacted(event)
        case CompactionProgress():
            return _said("◇", event.text, QUIET)
        case CompactionVoid() | Planned():
            return _not_now(event)
        case CompactionFailed():
            return _said("✗", f"the compaction failed: {event.error}", BAD)
        case Recovery():
            return _said("↻", f"{event.problem}: {event.action} (attempt {event.attempt})", BAD)
        case LimitLearnt():
            kept = "" if event.stored else ", for now"
            return _said("↻", f"the window of {event.model} is {event.window:,} tokens: {event.source}{kept}", BAD)
        case OutputStored() | Recalled() | ToolsChanged():
            return _kept(event)
        case Notice():
            return _said("!", event.text, BAD)
        case Delegated():
            inner = line_of(event.event)
            return Text.assemble("  ", inner) if inner else None
        case TurnEnded(reason="max_rounds"):
            return _said("!", f"stopped after {counted(event.rounds, 'round')} of tools", BAD)
        case _:
            return None


def _not_now(event: CompactionVoid | Planned) -> Text | None:
    """Why nothing is compacted; what is done at once tells of itself."""
    if isinstance(event, Planned):
        return _said("$", f"the compaction waits: {event.why}", QUIET) if event.action == "later" else None
    return _said("◇", f"nothing was compacted: {event.why}", QUIET)


def _kept(event: OutputStored | Recalled | ToolsChanged) -> Text:
    """What went out of the context, or was fetched back."""
    if isinstance(event, ToolsChanged):
        told = f"{len(event.left_out)} of {counted(event.given, 'tool')} left out, {event.tokens_saved:,} tokens saved"
        named = [f"{word}: {', '.join(names)}" for word, names in (("out", event.gone), ("back", event.back)) if names]
        return _said("⚒", f"{told} ({event.why}; {'; '.join(named)})", QUIET)
    if isinstance(event, Recalled):
        return _said("⌕", f"recalled for this answer: {', '.join(event.cited)}", QUIET)
    return _said("▤", f"{event.tool}: {event.chars:,} characters stored as output:{event.output}", QUIET)


_MARKED = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*")


def styled(text: str) -> Text:
    """The answer of a slash command: its lines stay lines; bullets, code and bold words are set."""
    shown, at = Text(), 0
    text = re.sub(r"^- ", "• ", visible(text), flags=re.MULTILINE)
    for found in _MARKED.finditer(text):
        shown.append(text[at : found.start()])
        shown.append(found[1] or found[2], LOUD if found[1] else "bold")
        at = found.end()
    return shown.append(text[at:])


def _said(mark: str, text: str, style: str) -> Text:
    return Text(f"{mark} {visible(text)}", style)


def _compacted(event: CompactionDone) -> Text:
    """Before → after, who wrote the summary, how it was checked."""
    saved = f"◆ compacted: {event.tokens_before:,} → {event.tokens_after:,} tokens, "
    saved += f"{event.messages_before:,} → {event.messages_after:,} messages"
    told = [f"summary by {visible(event.author)}"] if event.author else []
    told += [checked(event.verification)] if event.verification.facts or event.verification.checked else []
    told.append(f"{event.duration:.1f} s")
    told += [money(event.cost)] if event.cost else []
    line = Text.assemble((saved, f"bold {LOUD}"), (f" ({'; '.join(told)})", LOUD))
    for step in event.steps:
        line.append(f"\n  {visible(step)}", QUIET)
    for warning in event.warnings:
        line.append(f"\n  ! {visible(warning)}", BAD)
    return line


def checked(figures: Verification) -> str:
    """How a summary was verified, in words."""
    told = f"{figures.present + figures.added} of {counted(figures.facts, 'top fact')} in it"
    if figures.added:
        told += f", {figures.added} added"
    return told + (f", {figures.unverified} unverified" if figures.unverified else "")


WIDTH = 100
"""How much of a command or a path is shown."""


class ToolLines:
    """What tools do: a line while one runs, a line when it is done."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], ToolStarted] = {}

    def line_of(self, event: Event, thread: str = "") -> Text | None:
        """The line for an event of a tool or a subagent (its thread: ids of calls repeat there); None for others."""
        match event:
            case ToolStarted():
                self._running[thread, event.call_id] = event
            case ToolFinished():
                self._running.pop((thread, event.call_id), None)
                return tool_line(event)
            case Delegated():
                inner = self.line_of(event.event, event.thread)
                return Text.assemble("  ", inner) if inner else None
        return None

    @property
    def running(self) -> str:
        """What is under way, in one line; empty where nothing is."""
        doing = [_target(event.tool, event.arguments) for event in self._running.values()]
        return f"⚙ {'; '.join(doing)} …" if doing else ""

    def forget(self) -> None:
        self._running.clear()


def tool_line(event: ToolFinished) -> Text:
    """Name, target, outcome, seconds."""
    action = _action(event.tool, event.arguments)
    mark, style = ("✗", BAD) if event.failed else ("✓", "green")
    said = "refused" if event.refused else _outcome(event, action)
    line = Text.assemble(
        (mark, style), f" {visible(_target(event.tool, event.arguments))}", (f"  {visible(said)}", QUIET)
    )
    return line.append(f"  {event.seconds:.1f} s", QUIET) if event.seconds >= 0.05 and not event.refused else line


def _outcome(event: ToolFinished, action: Action) -> str:
    """An answer of one line as it is; of a longer one what can be said in a few words."""
    text = event.text.strip()
    if "\n" not in text and (event.failed or action.kind != "read"):
        return clip(text, WIDTH)
    return outcome_of(action.kind, event.text, failed=event.failed, room=WIDTH)


def _target(tool: str, arguments: Mapping[str, Any]) -> str:
    action = _action(tool, arguments)
    words = " ".join(part for part in (action.target, action.detail) if part)
    return visible(f"{tool} {clip(words, WIDTH)}".rstrip())


def _action(tool: str, arguments: Mapping[str, Any]) -> Action:
    return action_of(Call("", tool, json.dumps(dict(arguments), default=str))) or Action(tool)
