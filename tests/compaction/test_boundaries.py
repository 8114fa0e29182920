"""What always stays, and how much of it: the unanswered group, the latest user message, the tail within its budget."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.compaction.compaction_result import Compaction, CompactionLevel
from everthread.compaction.cutting.shortening import (
    MIN_CITED_TOKENS,
    find_largest_equal_share,
)
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.core.messages import Message, Result, results_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.tool_outputs import parse_persisted
from everthread.core.turns import user_text
from everthread.core.validation import validate_messages
from tests.compaction.histories import (
    assistant_message,
    call_with_result,
    make_engine,
    tool_turns,
    user_message,
)

COUNTER = TokenCounter("gpt-4o")
WINDOWS = (4_000, 8_000, 12_000, 16_000, 32_000, 200_000)


async def compact(window: int, conversation: list[Message], **how: Any) -> Compaction:
    return await make_engine(window, JournalWriter(COUNTER)).compress(
        conversation, **how
    )


def tokens_of(messages: list[Message]) -> int:
    return sum(map(COUNTER.message, messages))


def parallel_calls(count: int, tokens: int) -> list[Message]:
    """One assistant message with this many calls, whose results have this many tokens in all."""
    calls: list[Any] = []
    results: list[Message] = []
    for number in range(count):
        path = json.dumps({"path": f"src/part_{number}.py"})
        calls.append(
            {
                "id": f"part_{number}",
                "type": "function",
                "function": {"name": "read_file", "arguments": path},
            }
        )
        body = " ".join(
            f"word{number}x{position}" for position in range(tokens // count // 4)
        )
        results.append(
            {"role": "tool", "tool_call_id": f"part_{number}", "content": body}
        )
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def results_named(messages: list[Message], prefix: str) -> list[Result]:
    return [
        result
        for message in messages
        for result in results_of(message)
        if result.call_id.startswith(prefix)
    ]


class TestUnansweredGroup:
    """The last assistant message with calls, and its results."""

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize("level", list(CompactionLevel))
    async def test_results_that_do_not_fit_are_cut_to_equal_shares(
        self, window: int, level: CompactionLevel
    ) -> None:
        conversation = [
            user_message("Start."),
            assistant_message("Yes?"),
            *tool_turns(0, max(window // 1_200, 4)),
            user_message("Read all of them."),
        ]
        conversation += parallel_calls(12, window * 4 // 10)
        made = await compact(window, conversation, level=level)
        assert made.tokens_after <= Budget.for_window(window).compacted_limit
        results = results_named(made.messages, "part_")
        assert [result.call_id for result in results] == [
            f"part_{number}" for number in range(12)
        ]
        assert made.messages[-1]["role"] == "tool"
        sizes = [COUNTER.text(result.text) for result in results]
        assert max(sizes) - min(sizes) <= max(sizes) // 4 + 8, "each has the same share"
        for number, result in enumerate(results):
            assert (
                result.text.startswith("<persisted-output>")
                or f"word{number}x0" in result.text
            )
            stored = next(
                item for item in made.to_store if item.call_id == result.call_id
            )
            assert stored.id in result.text or max(sizes) < MIN_CITED_TOKENS, (
                "the whole is stored and cited"
            )
            assert stored.text == text_of(conversation[-12 + number])
        assert validate_messages(made.messages) == []

    async def test_small_results_stay_whole_beside_a_large_one(self) -> None:
        small = [*parallel_calls(3, 90)]
        calls: Any = small[0]["tool_calls"]
        calls.append(
            {
                "id": "part_big",
                "type": "function",
                "function": {"name": "read_file", "arguments": "{}"},
            }
        )
        big: Message = {
            "role": "tool",
            "tool_call_id": "part_big",
            "content": "a line of the log\n" * 3_000,
        }
        made = await compact(
            16_000,
            [
                user_message("Start."),
                assistant_message("Yes?"),
                *tool_turns(0, 20),
                user_message("Look."),
                *small,
                big,
            ],
        )
        results = results_named(made.messages, "part_")
        assert [result.text for result in results[:3]] == [
            text_of(message) for message in small[1:]
        ]
        assert parse_persisted(results[3].text)

    async def test_it_stays_if_the_user_spoke_after_the_results(self) -> None:
        conversation = [
            user_message("Start."),
            assistant_message("Yes?"),
            *tool_turns(0, 20),
            *parallel_calls(4, 2_000),
            user_message("Hurry up."),
        ]
        made = await compact(8_000, conversation)
        assert len(results_named(made.messages, "part_")) == 4
        assert user_text(made.messages[-1]) == "Hurry up."

    async def test_a_support_chat_keeps_its_last_lookups(self) -> None:
        """Small windows lost the results altogether, and with them nearly all of the context."""
        conversation = [
            user_message("I want to change my flight."),
            *tool_turns(0, 6),
            assistant_message("Which one?"),
            user_message("The one to Boston."),
        ]
        conversation += parallel_calls(5, 4_000)
        made = await compact(8_000, conversation)
        limit = Budget.for_window(8_000).compacted_limit
        assert limit // 2 < made.tokens_after <= limit
        assert len(results_named(made.messages, "part_")) == 5

    async def test_its_long_arguments_give_way_before_older_messages(self) -> None:
        text = json.dumps(
            {"path": "src/new.py", "content": "a line of the file\n" * 900}
        )
        conversation = [
            user_message("Start."),
            assistant_message("Yes?"),
            *tool_turns(0, 12),
            user_message("Write it."),
            *tool_turns(20, 3),
        ]
        conversation += call_with_result(700, "write_file", text, "ok")
        made = await compact(12_000, conversation)
        assert made.tokens_after <= Budget.for_window(12_000).compacted_limit
        assert len(made.messages) > 8, "the messages before the call stay"

    async def test_calls_that_the_user_interrupted_are_not_waited_for(self) -> None:
        conversation = [
            user_message("Start."),
            assistant_message("Yes?"),
            *tool_turns(0, 20),
        ]
        asked = parallel_calls(12, 2_000)[0]
        made = await compact(
            8_000, [*conversation, asked, user_message("Stop, I did it myself.")]
        )
        assert user_text(made.messages[-1]) == "Stop, I did it myself."
        assert made.tokens_after <= Budget.for_window(8_000).compacted_limit
        assert validate_messages(made.messages) == []

    @settings(max_examples=40)
    @given(st.lists(st.integers(0, 5_000), max_size=20), st.integers(0, 20_000))
    def test_an_equal_share_uses_the_room_and_no_more(
        self, sizes: list[int], room: int
    ) -> None:
        share = find_largest_equal_share(sizes, room)
        used = sum(min(size, share) for size in sizes)
        assert used <= max(room, 0)
        if sum(sizes) > room:
            assert used > room - len(sizes), "no share could be larger"
        else:
            assert used == sum(sizes)


class TestLatestUserMessage:
    @pytest.mark.parametrize(
        ("window", "tokens"), [(200_000, 121_000), (100_000, 30_000), (16_000, 9_000)]
    )
    async def test_it_stays_whole_if_it_fits_beside_the_answer(
        self, window: int, tokens: int
    ) -> None:
        words = "word " * tokens
        for conversation in (
            [user_message(words), *tool_turns(0, 20)],
            [
                user_message("Hi"),
                assistant_message("Hello."),
                *tool_turns(0, 20),
                user_message(words),
            ],
            [
                user_message("Hi"),
                assistant_message("Hello."),
                *tool_turns(0, 10),
                user_message(words),
                *tool_turns(40, 10),
            ],
        ):
            made = await compact(window, conversation)
            assert made.changed
            assert words.strip() in [user_text(message) for message in made.messages]
            assert made.tokens_after <= Budget.for_window(window).prompt_limit
            assert validate_messages(made.messages, api="anthropic") == []
            if conversation[-1]["role"] == "tool":
                assert made.messages[-1] == conversation[-1], (
                    "the unanswered result stays whole beside it"
                )

    async def test_alone_it_is_not_touched(self) -> None:
        made = await compact(200_000, [user_message("word " * 121_000)])
        assert not made.changed

    async def test_it_keeps_as_much_as_fits(self) -> None:
        made = await compact(
            100_000,
            [
                user_message("Hi"),
                assistant_message("Hello."),
                *tool_turns(0, 10),
                user_message("FIRST " + "word " * 95_000),
            ],
        )
        limit = Budget.for_window(100_000).prompt_limit
        assert 0.95 * limit < made.tokens_after <= limit
        assert text_of(made.messages[-1]).startswith("FIRST")

    async def test_in_the_head_it_is_cut_once_it_is_no_longer_the_latest(self) -> None:
        conversation = [
            user_message("FIRST " + "word " * 60_000 + "LAST"),
            assistant_message("Done."),
            *tool_turns(0, 20),
            user_message("And now the tests."),
        ]
        made = await compact(200_000, conversation)
        first = text_of(made.messages[0])
        assert first.startswith("FIRST")
        assert first.endswith("LAST")
        assert COUNTER.text(first) < 100_000 // 4
        assert any(len(item.text) > 100_000 for item in made.to_store)
        assert made.tokens_after <= Budget.for_window(200_000).compacted_limit


class TestTail:
    async def test_one_oversized_result_does_not_end_the_walk(self) -> None:
        big = call_with_result(
            500,
            "terminal",
            '{"command": "cat big.log"}',
            "log line seven of many\n" * 2_600,
        )
        conversation = [
            user_message("Look into it."),
            assistant_message("I will."),
            *tool_turns(0, 18, size=8_000),
            *big,
            *tool_turns(30, 3, size=6_000),
        ]
        conversation.append(user_message("Go on."))
        made = await compact(200_000, conversation)
        budget = Budget.for_window(200_000)
        assert tokens_of(conversation) > 4 * budget.tail_tokens
        assert (
            0.9 * budget.tail_tokens
            < tokens_of(made.messages[2:])
            <= 1.05 * budget.tail_tokens
        )
        (kept,) = results_named(made.messages, "call_500")
        assert kept.text.startswith("<persisted-output>")
        assert kept.text.count("log line seven") > 500

    @pytest.mark.parametrize("window", WINDOWS)
    async def test_the_budget_is_used(self, window: int) -> None:
        conversation = [
            user_message("Look into it."),
            assistant_message("I will."),
            *tool_turns(0, max(window // 700, 12)),
            user_message("Go on."),
        ]
        made = await compact(window, conversation)
        budget = Budget.for_window(window)
        tail = [
            message
            for message, index in zip(made.messages, made.kept, strict=True)
            if index and index > 2
        ]
        assert tokens_of(tail) > 0.8 * budget.tail_tokens
        assert made.tokens_after <= budget.compacted_limit

    async def test_the_newest_read_of_an_unchanged_file_stays(self) -> None:
        needed = call_with_result(
            800,
            "read_file",
            '{"path": "src/needed.py"}',
            "def needed():\n" + "    step()\n" * 600,
        )
        changed = call_with_result(
            801,
            "read_file",
            '{"path": "src/changed.py"}',
            "def changed():\n" + "    step()\n" * 600,
        )
        edit = call_with_result(
            802, "write_file", '{"path": "src/changed.py", "content": "pass"}', "ok"
        )
        runs = [
            message
            for number in range(900, 912)
            for message in call_with_result(
                number,
                "terminal",
                f'{{"command": "make part{number}"}}',
                f"built {number}\n" * 700,
            )
        ]
        conversation = [
            user_message("Start."),
            assistant_message("Yes?"),
            *tool_turns(0, 60),
            *needed,
            *changed,
            *edit,
            *runs,
            user_message("Go on."),
        ]
        made = await compact(64_000, conversation)
        assert made.tokens_after <= Budget.for_window(64_000).compacted_limit
        (kept,) = results_named(made.messages, "call_800")
        assert kept.text.count("step()") > 50
        (old,) = results_named(made.messages, "call_801")
        assert "step()" not in old.text
