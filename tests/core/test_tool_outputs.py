"""Store outputs that are too large under an id made from their text, and cite them in a short block."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.messages import Message, ToolCall, ToolResult, edit_results, with_text
from everthread.core.tool_outputs import (
    OutputLimits,
    ToolOutput,
    count_lines,
    cut_middle,
    is_persisted,
    make_output_to_store,
    make_persisted_block,
    output_id,
    parse_persisted,
    plan_storage,
    reads_stored_output,
    replace_reader_name,
)
from tests.chat_messages import result_message, text_part, user_message

LIMITS = OutputLimits(
    result_chars=1_000, max_turn_result_chars=3_000, preview_chars=100, max_tool_chars=5_000
)
BIG = "start " + "x" * 5_000 + "\nthe end"


def outputs(*sizes: int, tool: str = "bash") -> list[ToolOutput]:
    return [ToolOutput(f"c{n}", tool, chr(ord("a") + n) * size) for n, size in enumerate(sizes)]


def stored_indices(results: list[ToolOutput], limits: OutputLimits = LIMITS) -> list[int]:
    return [item.index for item in plan_storage(results, limits)]


def test_id_depends_on_the_text_alone() -> None:
    assert output_id(BIG) == output_id(BIG) != output_id(BIG + "!")
    assert output_id("\ud800").startswith("output:")


def test_block_states_size_id_and_hint_and_previews_both_ends() -> None:
    block = make_persisted_block(BIG, preview_chars=90)
    assert "5,014 characters (4.9 KB), 2 lines" in block
    assert block.count(output_id(BIG)) == 2
    assert "read_file" in block
    assert "offset" in block
    assert "start xxx" in block
    assert "the end" in block
    assert len(block) < len(BIG)
    info = parse_persisted(block)
    assert info is not None
    assert (info.id, info.chars, info.lines) == (output_id(BIG), 5_014, 2)
    assert info.preview.endswith("the end")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("é" * 10, "10 characters (20 bytes), 1 line."),
        ("a\n" * (1 << 20), "2,097,152 characters (2.0 MB), 1,048,576 lines."),
    ],
)
def test_sizes_are_human_readable(text: str, size: str) -> None:
    assert size in make_persisted_block(text, preview_chars=0)


def test_parses_a_block_without_preview() -> None:
    block = make_persisted_block(BIG, preview_chars=0)
    assert is_persisted(block)
    assert "start" not in block


def test_rejects_text_that_only_resembles_a_block() -> None:
    block = make_persisted_block(BIG, preview_chars=90)
    assert not is_persisted(block + "\nand more")
    assert not is_persisted(block.replace("5,014", ",,"))
    assert not is_persisted("see <persisted-output> there")
    assert not is_persisted("")


def test_recognizes_reads_of_stored_output() -> None:
    cited = output_id("x")
    assert reads_stored_output(ToolCall("a", "read_file", f'{{"path": "{cited}", "offset": 5}}'))
    assert not reads_stored_output(ToolCall("a", "bash", f'{{"command": "echo {cited}"}}'))
    assert not reads_stored_output(ToolCall("a", "read_file", '{"path": 5}'))
    assert not reads_stored_output(ToolCall("a", "read_file", "not json"))


def test_stores_only_results_over_their_limit() -> None:
    assert stored_indices(outputs(1_000, 1_001, 10)) == [1]


def test_tool_limit_never_exceeds_the_ceiling() -> None:
    limits = OutputLimits(1_000, 10**9, 100, 5_000, {"bash": 90_000, "grep": 500})
    assert stored_indices(outputs(4_000, 5_001), limits) == [1]
    assert stored_indices(outputs(501, 499, tool="grep"), limits) == [0]


def test_read_file_is_unlimited_by_default() -> None:
    assert LIMITS.limit_for("read_file") == math.inf
    assert stored_indices(outputs(2_900, tool="read_file")) == []
    assert stored_indices(
        outputs(2_900, tool="read_file"),
        OutputLimits(1_000, 3_000, 100, 5_000, {"read_file": 2_000}),
    ) == [0]


def test_stores_largest_results_until_the_turn_fits() -> None:
    assert stored_indices(outputs(1_000, 1_000, 1_000)) == []
    assert stored_indices(outputs(300, 990, 950, 980)) == [1]
    assert stored_indices(outputs(900, 990, 950, 980)) == [1, 3]
    assert stored_indices([*outputs(2_000), *outputs(2_500, tool="read_file")]) == [0]
    assert stored_indices([*outputs(900), *outputs(2_500, tool="read_file")]) == [1]


def test_never_stores_reads_of_stored_output() -> None:
    assert stored_indices(
        [ToolOutput("a", "read_file", "r" * 9_000, is_exempt=True), *outputs(900)]
    ) == [1]


def test_never_stores_a_stored_result_again() -> None:
    block = make_persisted_block(BIG, preview_chars=100)
    assert stored_indices([ToolOutput("a", "bash", block)], OutputLimits(10, 10, 100, 10)) == []
    forged = make_persisted_block("q" * 90_000, preview_chars=20_000)
    assert stored_indices([ToolOutput("a", "bash", forged)]) == [0]


def test_makes_no_block_that_is_not_shorter() -> None:
    assert make_output_to_store(0, "a", "short", preview_chars=100) is None
    assert stored_indices(outputs(90), OutputLimits(10, 10, 100, 10)) == []


@given(st.lists(st.integers(0, 6_000), max_size=6))
def test_turn_fits_after_storing_if_possible(
    sizes: list[int],
) -> None:
    results = outputs(*sizes)
    plan = {item.index: item for item in plan_storage(results, LIMITS)}
    for index, item in plan.items():
        assert item.text == results[index].text
        assert item.id == output_id(item.text)
        assert item.id in item.replacement
        assert len(item.replacement) < len(item.text)
        assert is_persisted(item.replacement)
    left = [
        len(plan[n].replacement) if n in plan else len(result.text)
        for n, result in enumerate(results)
    ]
    assert sum(left) <= LIMITS.max_turn_result_chars
    assert max(left, default=0) <= LIMITS.result_chars


def test_cut_middle_keeps_both_ends_verbatim() -> None:
    text = "first " + "m" * 1_000 + " last"
    replacement, middle = cut_middle(text, keep_chars=6)
    assert replacement.startswith("first \n<persisted-output>")
    assert replacement.endswith("</persisted-output>\nm last")
    assert output_id(middle) in replacement
    assert text == "first " + middle + "m last"


def test_final_newline_starts_no_line() -> None:
    assert [count_lines(text) for text in ("", "a", "a\n", "a\nb", "\n")] == [
        0,
        1,
        1,
        2,
        1,
    ]


def test_edits_results_in_either_form() -> None:
    def upper_case(result: ToolResult, holder: object) -> object:
        return result.content.upper() if result.call_id == "a" else result.content

    tool: Message = {
        "role": "tool",
        "tool_call_id": "a",
        "content": "x",
        "name": "n",
        "_native": {"api": "x", "value": 1},
    }
    assert edit_results(tool, upper_case) == {
        "role": "tool",
        "tool_call_id": "a",
        "content": "X",
        "name": "n",
        "_native": {"api": "x"},
    }
    other: Message = result_message("b", "x")
    assert edit_results(other, upper_case) is other
    block = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": "x",
        "is_error": True,
        "cache_control": {},
    }
    said = text_part("x")
    user: Message = user_message([block, said])
    assert edit_results(user, upper_case)["content"] == [
        {**block, "content": "X"},
        said,
    ]
    assert block["content"] == "x"
    for untouched in (
        user_message("x"),
        user_message([said]),
    ):
        assert edit_results(untouched, upper_case) is untouched


def test_with_text_replaces_only_text() -> None:
    image = {"type": "image", "source": {}}
    assert with_text("long", "new") == "new"
    assert with_text(None, "new") == "new"
    marked = {
        "type": "text",
        "text": "one",
        "cache_control": {"type": "ephemeral"},
    }
    assert with_text([image, marked, text_part("two")], "new") == [
        image,
        {**marked, "text": "new"},
    ]
    assert with_text(["bare", "more"], "new") == [text_part("new")]
    assert with_text([{"type": "refusal", "refusal": "no"}], "new") == [text_part("new")]


def test_block_names_the_available_reader_or_none() -> None:
    block = make_persisted_block("line\n" * 500, preview_chars=40)
    value = user_message(
        [
            {
                "type": "tool_result",
                "content": block,
                "size": 3,
            },
            "call read_file",
        ]
    )
    with_reader = replace_reader_name(value, "recall")["content"]
    assert 'call recall with id "output:' in with_reader[0]["content"]
    assert "read_file" not in with_reader[0]["content"]
    assert with_reader[1] == "call read_file"
    assert with_reader[0]["size"] == 3
    without_reader = replace_reader_name(block, None)
    assert "call" not in without_reader
    assert (
        parse_persisted(without_reader)
        == parse_persisted(block)
        == parse_persisted(with_reader[0]["content"])
    )
