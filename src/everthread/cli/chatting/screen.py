"""Where a chat is shown: text that streams, lines between, and nothing taken back once it is in the scrollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text

from everthread.cli.chatting.streaming import Blocks
from everthread.cli.output import visible

if TYPE_CHECKING:
    from collections.abc import Callable

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
            self._show(Text(words, "dim"))

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


class _Growing:
    """Set when it is drawn, a few times a second, not whenever a word comes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._screen.growing()
