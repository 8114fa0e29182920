"""What a person sees of a turn: text as it streams, tools, events, and the line at the foot of the terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text

from everthread.agent.events import Delegated, ToolFinished, ToolStarted, TurnEnded
from everthread.cli.output import cost_text, money, visible
from everthread.compaction.summary import Verification
from everthread.compaction.tool_calls import Action, action_of, outcome_of
from everthread.conversation.events import (
    CompactionDone,
    CompactionFailed,
    CompactionProgress,
    CompactionStarted,
    CompactionVoid,
    Estimated,
    Event,
    LimitLearnt,
    Notice,
    OutputStored,
    Planned,
    Recalled,
    Recovery,
    ToolsChanged,
    UsageRecorded,
)
from everthread.core.messages import Call, clip, counted
from everthread.store.models import CompactionRecord, UsageRecord, UsageRow
from everthread.store.sql.usage import sum_usage, usage_row

if TYPE_CHECKING:
    from collections.abc import Callable


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
    return _said("▤", f"{event.tool}: {event.chars:,} characters stored as {event.output}", QUIET)


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
    if event.seconds >= 0.05 and not event.refused:
        line.append(f"  {event.seconds:.1f} s", QUIET)
    return line if event.refused else line.append_text(preview_of(event.text, action.kind))


PREVIEW = 3
"""Lines of a tool's output that are shown."""


def preview_of(text: str, kind: str) -> Text:
    """The first lines of what a command or a search put out, and how many more there are."""
    rows = [row for row in visible(unwrapped(text)).splitlines() if row.strip()]
    if kind not in ("shell", "search") or len(rows) < 2:
        return Text()
    shown = "".join(f"\n  │ {clip(row.rstrip(), WIDTH)}" for row in rows[:PREVIEW])
    left = len(rows) - PREVIEW
    return Text(shown + (f"\n  │ … {left:,} more" if left > 0 else ""), QUIET)


def unwrapped(text: str) -> str:
    """A command's output without the line that states its exit code."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith("exit code:") else text


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


_PARSER = MarkdownIt().enable("table")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Blocks:
    """A Markdown text that grows. `feed` gives the blocks that are finished; `rest` is the one that is not."""

    def __init__(self) -> None:
        self.rest = ""
        self._fence = ""

    def feed(self, text: str) -> list[str]:
        """Take the next piece; the blocks that cannot change any more, in order."""
        before, self.rest = len(self.rest), self.rest + text
        if "\n" not in text or not self._may_settle(before):
            return []
        return self._settled()

    def finish(self) -> list[str]:
        """What is left, at the end of the text."""
        done = self.feed("\n")
        last, self.rest, self._fence = self.rest.removesuffix("\n"), "", ""
        return [*done, last]

    def tail(self, lines: int) -> str:
        """The end of the growing block, as much as can be seen; code stays code though its opening is out of sight."""
        rows = self.rest.split("\n")
        if len(rows) <= lines:
            return self.rest
        opening = [rows[0]] if _FENCE.match(rows[0]) else []
        return "\n".join([*opening, *rows[-max(lines - len(opening), 1) :]])

    def _may_settle(self, before: int) -> bool:
        """Inside a block of code only its closing line matters: the rest need not be read again and again."""
        if not self._fence:
            return True
        start = self.rest.rfind("\n", 0, before) + 1
        return any(line.strip().startswith(self._fence) for line in self.rest[start:].split("\n"))

    def _settled(self) -> list[str]:
        rows = self.rest.split("\n")
        whole = rows[:-1]  # the last row may still grow into something else
        tops = [token for token in _PARSER.parse("\n".join(whole)) if token.level == 0 and token.map]
        starts = [token.map[0] for token in tops if token.map]
        self._fence = _open_fence(tops[-1]) if tops else ""
        if len(starts) < 2:
            return []
        self.rest = "\n".join(rows[starts[-1] :])
        return ["\n".join(whole[first:last]) for first, last in pairwise([0, *starts[1:]])]


def _open_fence(block: Token) -> str:
    """The mark that would close a block of code; empty where the block is none, or is closed."""
    first, end = block.map or (0, 0)
    closed = end - first > 1 + block.content.count("\n")
    return block.markup if block.type == "fence" and not closed else ""


FRAMES = 10
"""How often a second the growing block is drawn."""
CODE = "ansi_dark"
"""The terminal's own colours, whatever they are."""
MARGIN = 3
"""Lines of the terminal left free below it."""


class Screen:
    """Shows what a turn says. On a terminal Markdown is set as it comes; elsewhere the text goes out as it is."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rich = console.is_terminal and not console.is_dumb_terminal
        self.beside: Callable[[Callable[[], None]], None] | None = None
        """Set while somebody types: prints above the line that is being typed."""
        self._blocks = Blocks()
        self._live: Live | None = None
        self._said = self._thought = self._apart = False

    def print(self, shown: RenderableType) -> None:
        """A line of its own, before whatever is still growing."""
        if not self.rich:
            self._end_line()
        if self.beside is not None:
            self.beside(lambda: self.console.print(shown, soft_wrap=True))
        else:
            self.console.print(shown, soft_wrap=True)

    def text(self, piece: str) -> None:
        """The next words of an answer."""
        self._said = True
        if not self.rich:
            self.console.out(visible(piece), end="", highlight=False)
            return
        self._thought = False
        for block in self._blocks.feed(visible(piece)):
            self._settle(block)
        self._show(_Growing(self))

    def thought(self, piece: str) -> None:
        """The model reasons: said once, not shown."""
        if piece and self.rich and not (self._thought or self._said):
            self._thought = True
            self._show(Text("thinking …", "dim italic"))

    def waiting(self, words: str) -> None:
        """Something is under way; gone when anything else is shown."""
        if self.rich and not self._blocks.rest:
            self._show(_Waiting(words))

    def settle(self) -> None:
        """The answer is over, or something else comes: what grew stays as it is."""
        left = [block for block in self._blocks.finish() if block.strip()]
        if self._live is not None:
            self._live.update("", refresh=True)
            self._live.stop()
            self._live = None
        for block in left:
            self._settle(block)
        if not self.rich:
            self._end_line()
        self._said = self._thought = self._apart = False

    def _settle(self, block: str) -> None:
        """Into the scrollback, an empty line between blocks."""
        if self._apart:
            self.console.print()
        self._apart = True
        self.console.print(self._lines(block), end="")

    def _lines(self, block: str, most: int | None = None) -> Segments:
        """A block without the empty lines around it, which differ by its kind; of `most` lines the last."""
        lines = self.console.render_lines(Markdown(block, hyperlinks=False, code_theme=CODE), pad=False)
        full = [at for at, line in enumerate(lines) if "".join(segment.text for segment in line).strip()]
        kept = lines[full[0] : full[-1] + 1] if full else []
        shown = kept if most is None else kept[-most:]
        return Segments([segment for line in shown for segment in (*line, Segment.line())])

    def growing(self) -> list[RenderableType]:
        """The block that is not finished, as much of its end as there is room for."""
        room = max(self.console.height - MARGIN, 4)
        text = self._blocks.tail(room)
        if not text.strip():
            return []
        return [Text(""), self._lines(text, room)] if self._apart else [self._lines(text, room)]

    def _show(self, shown: RenderableType) -> None:
        if self.beside is not None:
            return  # somebody types there
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=FRAMES, transient=True, auto_refresh=True,
                              redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop")  # fmt: skip
            self._live.start()
        self._live.update(shown)

    def _end_line(self) -> None:
        if self._said:
            self.console.out("", highlight=False)
            self._said = False


class _Waiting:
    """Words with the seconds that have passed since; drawn again and again."""

    def __init__(self, words: str) -> None:
        self._words, self._began = words, time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        passed = time.monotonic() - self._began
        yield Text(f"{self._words} {passed:.0f} s" if passed >= 1 else self._words, "dim")


class _Growing:
    """Set when it is drawn, a few times a second, not whenever a word comes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._screen.growing()


@dataclass(slots=True)
class Status:
    """The figures of a thread, kept up to date by its events."""

    model: str = ""
    tokens: int = 0
    window: int = 0
    compactions: int = 0
    used: UsageRow = field(default_factory=lambda: UsageRow("all"))

    def restart(self, usage: Sequence[UsageRecord], compactions: Sequence[CompactionRecord]) -> None:
        """The figures of a thread as it was stored."""
        self.used = sum_usage("all", [*map(usage_row, usage)])
        self.compactions = sum(record.reverted is None for record in compactions)

    def heard(self, event: Event) -> None:
        match event:
            case Estimated():
                self.tokens, self.window = event.tokens, event.window
            case (UsageRecorded() as call) | Delegated(event=UsageRecorded() as call):
                self.used = sum_usage("all", [self.used, usage_row(call)])  # type: ignore[arg-type]  # the same fields
            case CompactionDone():
                self.compactions, self.tokens = event.count, event.tokens_after
            case LimitLearnt():
                self.window = event.window

    def line(self) -> str:
        filled = f"{self.tokens / self.window:.0%}" if self.window else "-"
        parts = [visible(self.model), f"{thousands(self.tokens)} of {thousands(self.window)} ({filled})"]
        if self.used.prompt:
            parts.append(f"cache {self.used.cache_read / self.used.prompt:.0%}")
        if self.used.calls:
            price = cost_text(self.used)
            parts.append(f"cost {price}" if self.used.unpriced else price)
        if self.compactions:
            parts.append(counted(self.compactions, "compaction"))
        return " · ".join(parts)


def thousands(tokens: int) -> str:
    """`950`, `12.3K`, `200K`, `1M`."""
    for unit, letter in ((1_000_000, "M"), (1_000, "K")):
        if tokens >= unit:
            return f"{tokens / unit:.1f}".rstrip("0").rstrip(".") + letter
    return str(tokens)
