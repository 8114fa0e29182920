"""The screen of a chat: streamed text, lines above it, and the current wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text

from everthread.cli.chat.event_lines import ToolLines, render_event
from everthread.cli.chat.markdown_blocks import MarkdownBlocks
from everthread.cli.chat.status_line import format_thousands
from everthread.cli.output import escape_controls
from everthread.thread.events import (
    CompactionDone,
    CompactionProgress,
    CompactionStarted,
    Event,
    Notice,
)

FRAMES_PER_SECOND = 10
"""How often the unfinished block is redrawn."""


CODE_THEME = "ansi_dark"
"""The terminal's own colours."""


MARGIN_LINES = 3
"""Lines of the terminal that are left free below the unfinished block."""


class Screen:
    """The output of a chat. On a terminal Markdown is rendered as it streams; elsewhere its source is printed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.is_rich = console.is_terminal and not console.is_dumb_terminal
        self.print_above: Callable[[Callable[[], None]], None] | None = None
        """Prints above the line that the user is typing; None while the user does not type."""
        self.tools = ToolLines()
        self._blocks = MarkdownBlocks()
        self._live: Live | None = None
        self._wait_text = ""
        self._wait_start = 0.0
        self._has_text = self._has_block = False
        self._shown_progress: set[str] = set()
        """Progress lines of the current compaction. Its warnings repeat some of them and are not shown twice."""

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
        self._wait_text = ""
        for block in self._blocks.feed(escape_controls(text)):
            self._print_block(block)
        self._draw()

    def show_event(self, event: Event, *, waiting_text: str = "") -> None:
        """Show an event's line, and then the running tools or, if there are none, `waiting_text`."""
        if isinstance(event, Notice) and event.is_temporary and self.is_rich:
            self.flush()
            # One line, replaced by the next one.
            self.show_wait(f"! {escape_controls(event.text)}")
            return
        if isinstance(event, CompactionProgress):
            self._shown_progress.add(event.text)
        elif isinstance(event, CompactionDone):
            new_warnings = tuple(
                warning for warning in event.warnings if warning not in self._shown_progress
            )
            event = replace(event, warnings=new_warnings)
            self._shown_progress.clear()
        line = self.tools.render(event) or render_event(event)
        if line is not None:
            self.flush()
            self.print(line)
        if wait_text := _describe_wait(event):
            self.show_wait(wait_text)
        elif wait_text := self.tools.running_text or (waiting_text if line is not None else ""):
            self.flush()
            self.show_wait(wait_text)

    def show_wait(self, text: str) -> None:
        """Show the current wait and how long it has lasted, until anything else is shown."""
        if self.is_rich and not self._has_text:
            if text != self._wait_text:
                self._wait_text = text
                self._wait_start = time.monotonic()
            self._draw()

    def flush(self) -> None:
        """Print the unfinished block, because the answer is over or something else follows."""
        blocks = [block for block in self._blocks.finish() if block.strip()]
        self._wait_text = ""
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
        if max_lines is not None:
            lines = lines[-max_lines:]
        return Segments([segment for line in lines for segment in (*line, Segment.line())])

    def _render_unfinished(self) -> RenderableType:
        """Render the end of the unfinished block, or else the current wait, which is redrawn with every frame."""
        max_lines = max(self.console.height - MARGIN_LINES, 4)
        text = self._blocks.get_tail(max_lines)
        if text.strip():
            block = self._render_block(text, max_lines)
            return Group(Text(""), block) if self._has_block else block
        wait_text = self._wait_text
        seconds = time.monotonic() - self._wait_start
        if wait_text and seconds >= 1:
            wait_text += f" ({seconds:.0f} s)"
        return Text(wait_text, "dim")

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
    """Return the text to show while a compaction runs; empty for other events."""
    if isinstance(event, CompactionStarted) and not event.is_background:
        return f"compacting {format_thousands(event.tokens)} tokens …"
    return ""
