"""Markdown that streams is split into finished blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.cli.chat.markdown_blocks import MarkdownBlocks

TEXT = (
    "# Title\n\nHello *world*,\nmore.\n\n- a\n- b\n\n  deep\n\n1. x\n\n```python\ndef f():\n\n    return 1\n```\n"
    "After.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nlast"
)


def render_in_pieces(text: str, size: int) -> list[str]:
    blocks = MarkdownBlocks()
    done = [
        block for at in range(0, len(text), size) for block in blocks.feed(text[at : at + size])
    ]
    return [*done, *blocks.finish()]


@pytest.mark.parametrize("size", [1, 3, 7, 1_000])
def test_a_block_is_finished_when_the_next_begins(size: int) -> None:
    done = render_in_pieces(TEXT, size)
    assert [block.split("\n")[0] for block in done] == [
        "# Title",
        "Hello *world*,",
        "- a",
        "1. x",
        "```python",
        "After.",
        "| a | b |",
        "last",
    ]


@given(st.text(alphabet="ab \n#`-*|1.>\t", max_size=80), st.integers(1, 9))
def test_no_text_is_lost_or_doubled(text: str, size: int) -> None:
    assert "\n".join(render_in_pieces(text, size)) == text


def test_code_that_is_not_closed_stays_one_block() -> None:
    blocks = MarkdownBlocks()
    assert blocks.feed("```\n# no heading\n\n- no list\n\n") == []
    assert blocks.feed("````\n") == [], (
        "longer than the opening: it closes, and nothing has begun after it"
    )
    assert blocks.feed("Then.\n") == ["```\n# no heading\n\n- no list\n\n````"]


def test_the_tail_of_long_code_is_still_code() -> None:
    blocks = MarkdownBlocks()
    blocks.feed("```python\n" + "".join(f"line{n}\n" for n in range(100)))
    assert blocks.get_tail(4) == "```python\nline98\nline99\n"
    assert len(blocks.get_tail(500).split("\n")) == 102
