"""Split a Markdown text into blocks while it grows."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt().enable("table")


_FENCE_PATTERN = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownBlocks:
    """A Markdown text that grows. `feed` returns the finished blocks; `unfinished_text` is the unfinished one."""

    def __init__(self) -> None:
        self.unfinished_text = ""
        self._fence = ""

    def feed(self, text: str) -> list[str]:
        """Add the next piece of text, and return the blocks that cannot change any more, in order."""
        length = len(self.unfinished_text)
        self.unfinished_text = self.unfinished_text + text
        if "\n" not in text or not self._may_finish(length):
            return []
        return self._remove_finished()

    def finish(self) -> list[str]:
        """Return the remaining blocks when the text has ended."""
        blocks = self.feed("\n")
        last_block = self.unfinished_text.removesuffix("\n")
        self.unfinished_text = ""
        self._fence = ""
        return [*blocks, last_block]

    def get_tail(self, line_count: int) -> str:
        """Return the last lines of the unfinished block. Code keeps its opening fence, so that it is shown as code."""
        lines = self.unfinished_text.split("\n")
        if len(lines) <= line_count:
            return self.unfinished_text
        opening_lines = [lines[0]] if _FENCE_PATTERN.match(lines[0]) else []
        return "\n".join([*opening_lines, *lines[-max(line_count - len(opening_lines), 1) :]])

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

    def _remove_finished(self) -> list[str]:
        lines = self.unfinished_text.split("\n")
        complete_lines = lines[:-1]  # the last line may still grow into something else
        top_tokens = [
            token
            for token in _PARSER.parse("\n".join(complete_lines))
            if token.level == 0 and token.map
        ]
        block_starts = [token.map[0] for token in top_tokens if token.map]
        self._fence = _find_open_fence(top_tokens[-1]) if top_tokens else ""
        if len(block_starts) < 2:
            return []
        self.unfinished_text = "\n".join(lines[block_starts[-1] :])
        return [
            "\n".join(complete_lines[start:end]) for start, end in pairwise([0, *block_starts[1:]])
        ]


def _find_open_fence(block: Token) -> str:
    """Return the fence that would close this code block; empty if it is closed or not a code block."""
    start, end = block.map or (0, 0)
    is_closed = end - start > 1 + block.content.count("\n")
    return block.markup if block.type == "fence" and not is_closed else ""
