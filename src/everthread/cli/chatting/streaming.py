"""Markdown as it comes: finished blocks are settled, the one that still grows is drawn anew.

A block is settled once another one has begun after it, so what was printed is never taken back.
"""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

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
