"""Groups, turns, user messages: the parts of a list of messages."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.messages import Message
from everthread.core.summary_marks import SUMMARY_START, mark_summary, seal_summary
from everthread.core.turns import (
    Span,
    ToolCallGroup,
    TurnSpan,
    count_head_messages,
    find_call_groups,
    find_latest_user_index,
    is_user_message,
    pair_calls,
    split_into_spans,
    split_into_turns,
    user_text,
)
from tests.chat_messages import (
    assistant_message,
    call_block,
    calls_message,
    function_call,
    image_part,
    result_block,
    result_message,
    text_part,
    user_message,
)


def calls(*ids: str) -> Any:
    return calls_message(*(function_call(call_id, "f") for call_id in ids))


def result(call_id: str, text: str = "ok") -> Any:
    return result_message(call_id, text)


class TestPairs:
    def test_calls_of_one_id_in_a_message_take_the_results_in_order(self) -> None:
        pairs = pair_calls([calls("a", "a"), result("a"), result("a")])
        assert pairs.result_by_call == {(0, 0): (1, 0), (0, 1): (2, 0)}
        assert pairs.call_by_result == {(1, 0): (0, 0), (2, 0): (0, 1)}

    def test_a_further_result_belongs_to_the_call_answered_last(self) -> None:
        pairs = pair_calls([calls("a"), result("a"), result("a")])
        assert pairs.result_by_call == {(0, 0): (1, 0)}
        assert pairs.call_by_result == {(1, 0): (0, 0), (2, 0): (0, 0)}

    def test_a_result_before_its_call_or_without_one_belongs_to_none(self) -> None:
        pairs = pair_calls([result("a"), calls("a"), result("b")])
        assert pairs.result_by_call == {}
        assert pairs.call_by_result == {}


class TestGroups:
    def test_results_out_of_order_belong_to_their_call(self) -> None:
        assert find_call_groups([calls("a", "b"), result("b"), result("a")]) == [
            ToolCallGroup(0, ("a", "b"), (1, 2), ())
        ]

    def test_second_result_of_a_call_belongs_to_no_group(self) -> None:
        assert find_call_groups([calls("a"), result("a"), result("a")]) == [
            ToolCallGroup(0, ("a",), (1,), ())
        ]

    def test_reports_missing_results(self) -> None:
        messages = [calls("a", "b"), result("a"), user_message("go on")]
        assert find_call_groups(messages) == [ToolCallGroup(0, ("a", "b"), (1,), ("b",))]

    def test_result_answers_the_latest_call_of_its_id(self) -> None:
        assert [
            g.result_indexes
            for g in find_call_groups([calls("a"), user_message("x"), calls("a"), result("a")])
        ] == [(), (3,)]

    def test_two_calls_of_one_id_take_one_result_each(self) -> None:
        assert find_call_groups([calls("a", "a"), result("a"), result("a")]) == [
            ToolCallGroup(0, ("a", "a"), (1, 2), ())
        ]

    def test_anthropic_blocks_form_groups_too(self) -> None:
        messages: list[Message] = [
            assistant_message([call_block("t", "f", {})]),
            user_message([result_block("t", "ok")]),
        ]
        assert find_call_groups(messages) == [ToolCallGroup(0, ("t",), (1,), ())]

    def test_one_message_with_two_results_counts_once(self) -> None:
        blocks = [result_block(i, "ok") for i in ("a", "b")]
        assert find_call_groups([calls("a", "b"), user_message(blocks)]) == [
            ToolCallGroup(0, ("a", "b"), (1,), ())
        ]


class TestSpans:
    def test_keeps_a_call_group_together(self) -> None:
        assert split_into_spans(
            [user_message("x"), calls("a"), result("a"), assistant_message("y")]
        ) == [
            Span(0, 1),
            Span(1, 3),
            Span(3, 4),
        ]
        assert len(Span(1, 3)) == 2

    def test_includes_messages_before_a_late_result(self) -> None:
        assert split_into_spans(
            [calls("a"), user_message("wait"), result("a"), user_message("z")]
        ) == [
            Span(0, 3),
            Span(3, 4),
        ]

    def test_joins_interleaved_groups(self) -> None:
        messages = [calls("a"), calls("b"), result("a"), result("b"), user_message("z")]
        assert split_into_spans(messages) == [Span(0, 4), Span(4, 5)]

    def test_splits_an_empty_list(self) -> None:
        assert split_into_spans([]) == []


class TestUserMessages:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("hello", "hello"),
            ([text_part("a"), text_part("b")], "a\nb"),
            ("<system-reminder>be nice</system-reminder>", ""),
            (
                "<system-reminder>x</system-reminder>fix it<system-reminder>y</system-reminder>",
                "fix it",
            ),
            ("<ide_selection file='a'>x</ide_selection> why?", "why?"),
            ("<system-reminder>never closed", "<system-reminder>never closed"),
            ([result_block("t", "do this")], ""),
            (
                [
                    result_block("t", "x"),
                    text_part("thanks"),
                ],
                "thanks",
            ),
            ("[Request interrupted by user for tool use]", ""),
            (None, ""),
            ("   ", ""),
        ],
    )
    def test_keeps_the_users_words(self, content: Any, said: str) -> None:
        assert user_text(user_message(content)) == said
        assert is_user_message(user_message(content)) is bool(said)

    def test_other_roles_have_no_user_text(self) -> None:
        assert user_text(assistant_message("hello")) == ""
        assert not is_user_message(result("a", "never touch x"))

    def test_an_image_without_words_is_a_user_message(self) -> None:
        assert is_user_message(user_message([image_part("data:image/png;base64,")]))

    def test_finds_the_latest_user_message(self) -> None:
        messages = [
            user_message("a"),
            assistant_message("b"),
            mark_summary(user_message(seal_summary(f"{SUMMARY_START}]\nBackground."))),
            user_message("<system-reminder>x</system-reminder>"),
        ]
        assert find_latest_user_index(messages) == 0
        assert find_latest_user_index([assistant_message("b")]) is None

    def test_injected_text_is_not_a_user_message(self) -> None:
        messages = [
            user_message("fix it"),
            assistant_message("<function=ls>"),
            user_message("EXECUTION RESULT of [ls]:\nnever touch main.py"),
        ]
        assert find_latest_user_index(messages) == 0
        assert split_into_turns(messages) == [TurnSpan(0, 3, 0)]


class TestTurns:
    def test_turn_ends_before_the_next_user_message(self) -> None:
        messages = [
            assistant_message("hi"),
            user_message("a"),
            calls("x"),
            result("x"),
            assistant_message("done"),
            user_message("b"),
        ]
        assert split_into_turns(messages) == [
            TurnSpan(0, 1, None),
            TurnSpan(1, 5, 1),
            TurnSpan(5, 6, 5),
        ]

    def test_turns_without_a_user_message(self) -> None:
        assert split_into_turns([assistant_message("hi")]) == [TurnSpan(0, 1, None)]
        assert split_into_turns([]) == []


class TestHead:
    @pytest.mark.parametrize(
        ("messages", "length"),
        [
            (
                [
                    {"role": "system", "content": "s"},
                    user_message("a"),
                    assistant_message("b"),
                    user_message("c"),
                ],
                3,
            ),
            ([user_message("a"), assistant_message("b"), user_message("c")], 2),
            ([user_message("a"), calls("x"), result("x")], 1),
            ([user_message("a")], 1),
            ([assistant_message("hi"), user_message("a"), assistant_message("b")], 3),
            ([{"role": "system", "content": "s"}, assistant_message("hi")], 1),
            (
                [
                    {"role": "system", "content": "s"},
                    calls("x"),
                    result("x"),
                    user_message("a"),
                    assistant_message("b"),
                ],
                1,
            ),
            (
                [
                    user_message("<environment_context>x</environment_context>"),
                    user_message("a"),
                    assistant_message("b"),
                    user_message("c"),
                ],
                3,
            ),
            (
                [
                    user_message("This session is being continued from a previous conversation."),
                    calls("x"),
                    user_message("a"),
                ],
                0,
            ),
            ([], 0),
        ],
    )
    def test_head_is_the_system_prompt_and_first_exchange(
        self, messages: list[Message], length: int
    ) -> None:
        assert count_head_messages(messages) == length
