"""The display of a turn: streamed text, tool calls, events, and the status line of the terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text

from everthread.agent.commands.context_commands import describe_threshold, list_context
from everthread.agent.turn_events import Delegated, ToolFinished, ToolStarted, TurnEnded
from everthread.cli.output import escape_controls, format_cost
from everthread.compaction.history.call_lines import (
    Action,
    describe_outcome,
    find_action,
)
from everthread.compaction.journal.journal import describe_author
from everthread.core.messages import Call, clip, count_noun
from everthread.core.prices import format_dollars
from everthread.store.records import CompactionRecord
from everthread.store.sql.accounts import make_usage_row, sum_usage
from everthread.store.usage_records import UsageRecord, UsageRow
from everthread.thread.events import (
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
    Recalled,
    Recovery,
    ToolsChanged,
    UsageRecorded,
)

if TYPE_CHECKING:
    from collections.abc import Callable


DIM_STYLE = "dim"
ACCENT_STYLE = "cyan"
WARNING_STYLE = "yellow"


def render_event(event: Event) -> Text | None:
    """Return the line for an event; None for events that only change figures."""
    match event:
        case CompactionDone():
            return _render_compaction(event)
        case Delegated():
            inner = render_event(event.event)
            return Text.assemble("  ", inner) if inner else None
    line = _describe_event(event)
    return (
        None if line is None else Text(f"{line[0]} {escape_controls(line[1])}", line[2])
    )


def _describe_event(event: Event) -> tuple[str, str, str] | None:
    """Return the mark, the text and the style of an event's line; None for an event that is not shown."""
    match event:
        case CompactionProgress():
            return None if event.is_repeated else ("◇", event.text, DIM_STYLE)
        case CompactionVoid():
            return "◇", f"Nothing was compacted: {event.why}", DIM_STYLE
        case CompactionFailed():
            return "✗", f"The compaction failed: {event.error}", WARNING_STYLE
        case Recovery():
            return "↻", _describe_recovery(event), WARNING_STYLE
        case LimitLearnt():
            storage_note = "" if event.stored else ", not stored"
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
    if event.gone:
        parts.append(f"left out to save room: {', '.join(event.gone)}")
    if event.back:
        parts.append(f"available again: {', '.join(event.back)}")
    count = f"{len(event.left_out)} of {count_noun(event.given, 'tool')}"
    return (
        f"Tools {'; '.join(parts)} ({count} out, {event.tokens_saved:,} tokens saved)"
    )


PROBLEM_TEXTS = {
    "prompt_too_long": "The provider refused the prompt as too long",
    "max_tokens_too_large": "The provider refused the length of answer asked for",
    "payload_too_large": "The provider refused the request: too many bytes",
}


def _describe_recovery(event: Recovery) -> str:
    """Describe what the provider refused, and how the next try differs."""
    problem = PROBLEM_TEXTS.get(event.problem, event.problem)
    count = "" if event.attempt <= 1 else f" ({event.attempt})"
    return f"{problem}. Trying again{count}: {event.action}"


_MARKUP = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*")


def style_markup(text: str) -> Text:
    """Style the bullets, code and bold words in the answer of a slash command, without rewrapping its lines."""
    styled = Text()
    position = 0
    text = re.sub(r"^- ", "• ", escape_controls(text), flags=re.MULTILINE)
    for match in _MARKUP.finditer(text):
        styled.append(text[position : match.start()])
        styled.append(match[1] or match[2], ACCENT_STYLE if match[1] else "bold")
        position = match.end()
    return styled.append(text[position:])


def _render_compaction(event: CompactionDone) -> Text:
    """Render the size before and after, and the author of the summary; `/why` has the details."""
    author = (
        f"; summary by {escape_controls(describe_author(event.author))}"
        if event.author
        else ""
    )
    cost = f" for {format_dollars(event.cost)}" if event.cost else ""
    sizes = f"{format_thousands(event.tokens_before)} → {format_thousands(event.tokens_after)}"
    line = Text.assemble(
        (f"◆ Compacted {sizes} tokens{author}{cost}.", ACCENT_STYLE),
        (" /why, /undo", DIM_STYLE),
    )
    for warning in event.warnings:
        line.append(f"\n  ! {escape_controls(warning)}", WARNING_STYLE)
    return line


CONTEXT_COLOURS = {
    "system prompt": "blue",
    "tools": "magenta",
    "summary": "yellow",
    "user": "green",
    "assistant": "cyan",
    "tool calls": "bright_cyan",
    "tool results": "bright_blue",
    "free": "bright_black",
}


def render_context(data: Mapping[str, Any], width: int) -> Text:
    """Render the result of `/context` as a coloured bar and a line for each kind of content."""
    window = data["window"]
    sizes: dict[str, int] = data["kinds"]
    threshold = data["threshold"]
    bar_width = max(20, min(width - 2, 72))
    colours: list[str] = []
    for kind, size in sizes.items():
        colours += [CONTEXT_COLOURS[kind]] * round(size / window * bar_width)
    colours = colours[:bar_width]
    bar = Text()
    threshold_column = min(bar_width - 1, round(threshold / window * bar_width))
    for column in range(bar_width):
        style = colours[column] if column < len(colours) else CONTEXT_COLOURS["free"]
        cell = "█" if column < len(colours) else "·"
        bar.append(
            "│" if column == threshold_column else cell,
            "bold" if column == threshold_column else style,
        )
    heading = f"{data['tokens']:,} of {window:,} tokens ({data['tokens'] / window:.0%})"
    lines = [Text(heading, "bold"), bar]
    for row in list_context(sizes, window):
        kind = row[:14].strip()
        style = CONTEXT_COLOURS[kind]
        bullet = "■ " if kind != "free" else "· "
        lines.append(Text.assemble((bullet, style), row))
    lines.append(Text(f"│ {describe_threshold(data)}", DIM_STYLE))
    return Text("\n").join(lines)


MAX_ARGUMENT_CHARS = 100
"""Characters of a command or a path that are shown."""


class ToolLines:
    """The lines for tool calls: one while a tool runs, one when it has finished."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], ToolStarted] = {}

    def render(self, event: Event, thread: str = "") -> Text | None:
        """Return the line for an event of a tool; None for other events.

        `thread`: the thread of the subagent, because threads may use the same call ids.
        """
        match event:
            case ToolStarted():
                self._running[thread, event.call_id] = event
            case ToolFinished():
                self._running.pop((thread, event.call_id), None)
                return render_tool_result(event)
            case Delegated():
                inner = self.render(event.event, event.thread)
                return Text.assemble("  ", inner) if inner else None
        return None

    @property
    def running_text(self) -> str:
        """Return the running tools in one line; empty if there are none."""
        targets = [
            _describe_call(event.tool, event.arguments)
            for event in self._running.values()
        ]
        return f"⚙ {'; '.join(targets)} …" if targets else ""

    def clear(self) -> None:
        self._running.clear()


def render_tool_result(event: ToolFinished) -> Text:
    """Render the line of a finished tool: name, target, outcome, seconds, the start of its output."""
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
"""Lines of a tool's output that are shown."""


def _render_preview(text: str, kind: str) -> Text:
    """Render the first lines of the output of a command or a search, and the count of the others."""
    first_line, _, output = text.partition("\n")
    rows = escape_controls(
        output if first_line.startswith("exit code:") else text
    ).splitlines()
    rows = [row for row in rows if row.strip()]
    if kind not in ("shell", "search") or len(rows) < 2:
        return Text()
    lines = [
        f"\n  │ {clip(row.rstrip(), MAX_ARGUMENT_CHARS)}"
        for row in rows[:PREVIEW_LINES]
    ]
    more_line = (
        f"\n  │ … {len(rows) - PREVIEW_LINES:,} more"
        if len(rows) > PREVIEW_LINES
        else ""
    )
    return Text("".join(lines) + more_line, DIM_STYLE)


def _describe_outcome(event: ToolFinished, action: Action) -> str:
    """Show a one-line result unchanged; describe a longer one in a few words."""
    text = event.text.strip()
    if "\n" not in text and (event.failed or action.kind != "read"):
        return clip(text, MAX_ARGUMENT_CHARS)
    return describe_outcome(
        action.kind, event.text, failed=event.failed, room=MAX_ARGUMENT_CHARS
    )


def _describe_call(tool: str, arguments: Mapping[str, Any]) -> str:
    action = _parse_action(tool, arguments)
    target = " ".join(part for part in (action.target, action.detail) if part)
    return escape_controls(f"{tool} {clip(target, MAX_ARGUMENT_CHARS)}".rstrip())


def _parse_action(tool: str, arguments: Mapping[str, Any]) -> Action:
    return find_action(
        Call("", tool, json.dumps(dict(arguments), default=str))
    ) or Action(tool)


_PARSER = MarkdownIt().enable("table")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownBlocks:
    """A Markdown text that grows. `feed` returns the finished blocks; `unfinished_text` is the unfinished one."""

    def __init__(self) -> None:
        self.unfinished_text = ""
        self._fence = ""

    def feed(self, text: str) -> list[str]:
        """Take the next piece of text; return the blocks that cannot change any more, in order."""
        length = len(self.unfinished_text)
        self.unfinished_text = self.unfinished_text + text
        if "\n" not in text or not self._may_finish(length):
            return []
        return self._take_finished()

    def finish(self) -> list[str]:
        """Return the remaining blocks, at the end of the text."""
        blocks = self.feed("\n")
        last_block = self.unfinished_text.removesuffix("\n")
        self.unfinished_text = ""
        self._fence = ""
        return [*blocks, last_block]

    def tail(self, lines: int) -> str:
        """Return the last lines of the unfinished block. Code keeps its opening fence, so that it is shown as code."""
        rows = self.unfinished_text.split("\n")
        if len(rows) <= lines:
            return self.unfinished_text
        opening = [rows[0]] if _FENCE.match(rows[0]) else []
        return "\n".join([*opening, *rows[-max(lines - len(opening), 1) :]])

    def _may_finish(self, length: int) -> bool:
        """Return whether the text after `length` may finish a block.

        Inside a code block only a closing fence can, so that the rest of the code is not parsed again.
        """
        if not self._fence:
            return True
        start = self.unfinished_text.rfind("\n", 0, length) + 1
        return any(
            line.strip().startswith(self._fence)
            for line in self.unfinished_text[start:].split("\n")
        )

    def _take_finished(self) -> list[str]:
        rows = self.unfinished_text.split("\n")
        complete_rows = rows[:-1]  # the last row may still grow into something else
        top_tokens = [
            token
            for token in _PARSER.parse("\n".join(complete_rows))
            if token.level == 0 and token.map
        ]
        block_starts = [token.map[0] for token in top_tokens if token.map]
        self._fence = _find_open_fence(top_tokens[-1]) if top_tokens else ""
        if len(block_starts) < 2:
            return []
        self.unfinished_text = "\n".join(rows[block_starts[-1] :])
        return [
            "\n".join(complete_rows[start:end])
            for start, end in pairwise([0, *block_starts[1:]])
        ]


def _find_open_fence(block: Token) -> str:
    """Return the fence that would close this code block; empty if it is closed or not a code block."""
    start, end = block.map or (0, 0)
    is_closed = end - start > 1 + block.content.count("\n")
    return block.markup if block.type == "fence" and not is_closed else ""


FRAMES_PER_SECOND = 10
"""How often the unfinished block is redrawn."""
CODE_THEME = "ansi_dark"
"""The terminal's own colours."""
MARGIN_LINES = 3
"""Lines of the terminal left free below the unfinished block."""


class Screen:
    """Shows a turn. On a terminal Markdown is rendered as it streams; elsewhere the text is printed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.is_rich = console.is_terminal and not console.is_dumb_terminal
        self.print_above: Callable[[Callable[[], None]], None] | None = None
        """Set while the user types: prints above the line that is being typed."""
        self.tools = ToolLines()
        self._blocks = MarkdownBlocks()
        self._live: Live | None = None
        self._waiting = ""
        self._waiting_since = 0.0
        self._has_text = self._has_block = False
        self._shown_progress: set[str] = set()
        """Lines of a compaction that were shown; its warnings repeat them."""

    def print(self, line: RenderableType) -> None:
        """Print a line of its own, above the unfinished block."""
        if not self.is_rich:
            self._end_line()

        def show() -> None:
            self.console.print(line, soft_wrap=not self.console.is_terminal)

        if self.print_above is not None:
            self.print_above(show)
        else:
            show()

    def show_text(self, text: str) -> None:
        """Show the next piece of an answer."""
        self._has_text = True
        if not self.is_rich:
            self.console.out(escape_controls(text), end="", highlight=False)
            return
        self._waiting = ""
        for block in self._blocks.feed(escape_controls(text)):
            self._print_block(block)
        self._draw()

    def show_event(self, event: Event, *, waiting_text: str = "") -> None:
        """Show an event's line, and then the current wait: the running tools, or `waiting_text`."""
        if isinstance(event, Notice) and event.passing and self.is_rich:
            self.flush()
            # One line, replaced by the next one.
            self.show_waiting(f"! {escape_controls(event.text)}")
            return
        if isinstance(event, CompactionProgress):
            self._shown_progress.add(event.text)
        elif isinstance(event, CompactionDone):
            new_warnings = tuple(
                warning
                for warning in event.warnings
                if warning not in self._shown_progress
            )
            event = replace(event, warnings=new_warnings)
            self._shown_progress.clear()
        line = self.tools.render(event) or render_event(event)
        if line is not None:
            self.flush()
            self.print(line)
        if words := _describe_wait(event):
            self.show_waiting(words)
        elif words := self.tools.running_text or (
            waiting_text if line is not None else ""
        ):
            self.flush()
            self.show_waiting(words)

    def show_waiting(self, words: str) -> None:
        """Show the current wait and how long it has lasted, until anything else is shown."""
        if self.is_rich and not self._has_text:
            if words != self._waiting:
                self._waiting = words
                self._waiting_since = time.monotonic()
            self._draw()

    def flush(self) -> None:
        """Print the unfinished block, because the answer is over or something else follows."""
        blocks = [block for block in self._blocks.finish() if block.strip()]
        self._waiting = ""
        if self._live is not None:
            self._live.stop()
            self._live = None
        for block in blocks:
            self._print_block(block)
        if not self.is_rich:
            self._end_line()
        self._has_text = self._has_block = False

    def _print_block(self, block: str) -> None:
        """Print a block for good, with an empty line between blocks."""
        if self._has_block:
            self.console.print()
        self._has_block = True
        self.console.print(self._render_block(block), end="")

    def _render_block(self, block: str, max_lines: int | None = None) -> Segments:
        """Render a block without the empty lines around it, at most its last `max_lines` lines."""
        lines = self.console.render_lines(
            Markdown(block, hyperlinks=False, code_theme=CODE_THEME), pad=False
        )
        filled_rows = [
            row
            for row, line in enumerate(lines)
            if "".join(segment.text for segment in line).strip()
        ]
        lines = lines[filled_rows[0] : filled_rows[-1] + 1] if filled_rows else []
        lines = lines if max_lines is None else lines[-max_lines:]
        return Segments(
            [segment for line in lines for segment in (*line, Segment.line())]
        )

    def _render_unfinished(self) -> RenderableType:
        """Render the part that is redrawn with every frame: the end of the unfinished block, or the current wait."""
        max_lines = max(self.console.height - MARGIN_LINES, 4)
        text = self._blocks.tail(max_lines)
        if text.strip():
            block = self._render_block(text, max_lines)
            return Group(Text(""), block) if self._has_block else block
        seconds = time.monotonic() - self._waiting_since
        return Text(
            f"{self._waiting} ({seconds:.0f} s)"
            if self._waiting and seconds >= 1
            else self._waiting,
            "dim",
        )

    def _draw(self) -> None:
        if self._live is None and self.print_above is None:  # else the user types there
            self._live = Live(
                console=self.console,
                refresh_per_second=FRAMES_PER_SECOND,
                transient=True,
                get_renderable=self._render_unfinished,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()

    def _end_line(self) -> None:
        if self._has_text:
            self.console.out("", highlight=False)
            self._has_text = False


def _describe_wait(event: Event) -> str:
    """Return the words to show while a compaction runs; empty for other events."""
    if isinstance(event, CompactionStarted) and not event.background:
        return f"compacting {format_thousands(event.tokens)} tokens …"
    return ""


@dataclass(slots=True)
class Status:
    """The figures of a thread, updated by its events."""

    model: str = ""
    tokens: int = 0
    window: int = 0
    compactions: int = 0
    is_free: bool = False
    """Whether the model runs on this machine and has no price."""
    usage: UsageRow = field(default_factory=lambda: UsageRow("all"))

    def load(
        self, usage: Sequence[UsageRecord], compactions: Sequence[CompactionRecord]
    ) -> None:
        """Take the figures of a stored thread."""
        self.usage = sum_usage("all", [*map(make_usage_row, usage)])
        self.compactions = sum(record.reverted is None for record in compactions)

    def update(self, event: Event) -> None:
        match event:
            case Estimated():
                self.tokens = event.tokens
                self.window = event.window
            case (UsageRecorded() as call) | Delegated(event=UsageRecorded() as call):
                self.usage = sum_usage("all", [self.usage, make_usage_row(call)])  # type: ignore[arg-type]  # the same fields
            case CompactionDone():
                self.compactions = event.count
                self.tokens = event.tokens_after
            case LimitLearnt():
                self.window = event.window

    def as_line(self) -> str:
        share = f"{self.tokens / self.window:.0%}" if self.window else "-"
        parts = [
            escape_controls(self.model),
            f"{format_thousands(self.tokens)} of {format_thousands(self.window)} ({share})",
        ]
        if self.usage.prompt:
            parts.append(f"cache {self.usage.cache_read / self.usage.prompt:.0%}")
        if self.usage.calls and not self.is_free:
            price = format_cost(self.usage)
            parts.append(f"cost {price}" if self.usage.unpriced_calls else price)
        if self.compactions:
            parts.append(count_noun(self.compactions, "compaction"))
        return " · ".join(parts)


def format_thousands(tokens: int) -> str:
    """Format a number of tokens: `950`, `12.3K`, `200K`, `1M`."""
    for unit, letter in ((1_000_000, "M"), (1_000, "K")):
        if tokens >= unit:
            return f"{tokens / unit:.1f}".rstrip("0").rstrip(".") + letter
    return str(tokens)
