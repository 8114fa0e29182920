"""Messages that a compaction always keeps, and how much of them: the unanswered calls, the latest request, the tail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from everthread.compaction.compaction_result import Compaction, CompactionLevel
from everthread.compaction.cutting.shortening import MIN_CITED_TOKENS
from everthread.core.messages import Message, ToolResult, results_of, text_of
from everthread.core.tokens.budget import Budget
from everthread.core.tool_outputs import parse_persisted
from everthread.core.turns import user_text
from everthread.core.validation import validate_messages
from tests.chat_messages import assistant_message, user_message
from tests.compaction import histories
from tests.compaction.histories import (
    COUNTER,
    JOURNAL,
    call_with_result,
    count_tokens,
    flatten,
    max_compacted_tokens,
    run_command,
    tool_turns,
)

WINDOWS = (4_000, 8_000, 12_000, 16_000, 32_000, 200_000)
OPENING = [user_message("Start."), assistant_message("Yes?")]


async def compact(
    window: int,
    messages: list[Message],
    *,
    level: CompactionLevel = CompactionLevel.NORMAL,
) -> Compaction:
    """Compact with the journal; the result is valid."""
    result = await histories.compact(messages, window=window, summarizer=JOURNAL, level=level)
    assert validate_messages(result.messages, api="anthropic") == []
    return result


def parallel_reads(texts: Mapping[str, str]) -> list[Message]:
    """Return one assistant message that reads these files, and their texts."""
    pairs = [
        call_with_result("read_file", {"path": path}, text, call_id=path)
        for path, text in texts.items()
    ]
    calls: Any = [pair[0]["tool_calls"][0] for pair in pairs]
    answers = [pair[1] for pair in pairs]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *answers]


def make_files(count: int, tokens: int) -> dict[str, str]:
    """Return files that have this many tokens in all, each with unique words."""
    positions = range(tokens // count // 4)
    return {
        f"part_{number}": " ".join(f"word{number}x{position}" for position in positions)
        for number in range(count)
    }


def find_results(compaction: Compaction, prefix: str = "part_") -> list[ToolResult]:
    results = flatten(map(results_of, compaction.messages))
    return [result for result in results if result.call_id.startswith(prefix)]


class TestUnansweredCalls:
    """The last assistant message with calls, and its results."""

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize("level", list(CompactionLevel))
    async def test_results_that_do_not_fit_are_cut_to_equal_shares(
        self, window: int, level: CompactionLevel
    ) -> None:
        files = make_files(12, window * 4 // 10)
        reading = [*tool_turns(0, max(window // 1_200, 4)), user_message("Read all.")]
        result = await compact(window, [*OPENING, *reading, *parallel_reads(files)], level=level)
        assert result.tokens_after <= max_compacted_tokens(window)
        results = find_results(result)
        assert [each.call_id for each in results] == list(files)
        sizes = [COUNTER.text(each.text) for each in results]
        assert max(sizes) - min(sizes) <= max(sizes) // 4 + 8
        stored_outputs = {output.call_id: output for output in result.to_store}
        for tool_result in results:
            text = files[tool_result.call_id]
            is_stored = tool_result.text.startswith("<persisted-output>")
            assert is_stored or text.split()[0] in tool_result.text
            stored = stored_outputs[tool_result.call_id]
            assert stored.id in tool_result.text or max(sizes) < MIN_CITED_TOKENS
            assert stored.text == text

    async def test_small_results_stay_whole_beside_a_large_one(self) -> None:
        small_files = make_files(3, 90)
        files = {**small_files, "part_big": "a line of the log\n" * 3_000}
        messages = [*OPENING, *tool_turns(0, 20), user_message("Look.")]
        result = await compact(16_000, [*messages, *parallel_reads(files)])
        *small_results, big_result = find_results(result)
        assert [each.text for each in small_results] == [*small_files.values()]
        assert parse_persisted(big_result.text)

    async def test_results_stay_if_the_user_wrote_after_them(self) -> None:
        reads = parallel_reads(make_files(4, 2_000))
        messages = [*OPENING, *tool_turns(0, 20), *reads, user_message("Hurry up.")]
        result = await compact(8_000, messages)
        assert len(find_results(result)) == 4
        assert user_text(result.messages[-1]) == "Hurry up."

    async def test_a_support_chat_in_a_small_window_keeps_its_last_lookups(
        self,
    ) -> None:
        messages = [
            user_message("I want to change my flight."),
            *tool_turns(0, 6),
            assistant_message("Which one?"),
            user_message("The one to Boston."),
            *parallel_reads(make_files(5, 4_000)),
        ]
        result = await compact(8_000, messages)
        limit = max_compacted_tokens(8_000)
        assert limit // 2 < result.tokens_after <= limit
        assert len(find_results(result)) == 5

    async def test_long_arguments_are_cut_before_older_messages_go(self) -> None:
        new_file = {"path": "src/new.py", "content": "a line of the file\n" * 900}
        request = [user_message("Write it."), *tool_turns(20, 3)]
        call = call_with_result("write_file", new_file, "ok")
        result = await compact(12_000, [*OPENING, *tool_turns(0, 12), *request, *call])
        assert result.tokens_after <= max_compacted_tokens(12_000)
        assert len(result.messages) > 8

    async def test_calls_that_the_user_interrupted_may_go(self) -> None:
        call = parallel_reads(make_files(12, 2_000))[0]
        stop = user_message("Stop, I did it myself.")
        result = await compact(8_000, [*OPENING, *tool_turns(0, 20), call, stop])
        assert user_text(result.messages[-1]) == "Stop, I did it myself."
        assert result.tokens_after <= max_compacted_tokens(8_000)


class TestLatestUserMessage:
    @pytest.mark.parametrize(
        ("window", "word_count"),
        [(200_000, 121_000), (100_000, 30_000), (16_000, 9_000)],
    )
    @pytest.mark.parametrize("place", ["head", "end", "middle"])
    async def test_the_latest_request_stays_whole_if_the_window_has_room_for_it(
        self, window: int, word_count: int, place: str
    ) -> None:
        text = "word " * word_count
        request = user_message(text)
        messages_by_place = {
            "head": [request, *tool_turns(0, 20)],
            "end": [*OPENING, *tool_turns(0, 20), request],
            "middle": [*OPENING, *tool_turns(0, 10), request, *tool_turns(40, 10)],
        }
        messages = messages_by_place[place]
        result = await compact(window, messages)
        assert result.changed
        assert text.strip() in map(user_text, result.messages)
        assert result.tokens_after <= Budget.for_window(window).prompt_limit
        if place != "end":
            assert result.messages[-1] == messages[-1], "an unanswered result stays whole beside it"

    async def test_a_request_alone_is_not_changed(self) -> None:
        result = await compact(200_000, [user_message("word " * 121_000)])
        assert not result.changed

    async def test_a_request_in_the_head_is_cut_when_a_later_one_follows(self) -> None:
        messages = [
            user_message("FIRST " + "word " * 60_000 + "LAST"),
            assistant_message("Done."),
            *tool_turns(0, 20),
            user_message("And now the tests."),
        ]
        result = await compact(200_000, messages)
        first_text = text_of(result.messages[0])
        assert first_text.startswith("FIRST")
        assert first_text.endswith("LAST")
        assert COUNTER.text(first_text) < 100_000 // 4
        assert any(len(output.text) > 100_000 for output in result.to_store)
        assert result.tokens_after <= max_compacted_tokens(200_000)


class TestTail:
    async def test_an_oversized_result_is_cut_and_older_messages_still_stay(
        self,
    ) -> None:
        log = "log line seven of many\n" * 2_600
        messages = [
            *OPENING,
            *tool_turns(0, 18, size=8_000),
            *call_with_result("terminal", {"command": "cat big.log"}, log, call_id="big"),
            *tool_turns(30, 3, size=6_000),
            user_message("Go on."),
        ]
        result = await compact(200_000, messages)
        tail_tokens = Budget.for_window(200_000).tail_tokens
        assert count_tokens(messages) > 4 * tail_tokens
        kept_tokens = count_tokens(result.messages[2:])
        assert 0.9 * tail_tokens < kept_tokens <= 1.05 * tail_tokens
        (big_result,) = find_results(result, "big")
        assert big_result.text.startswith("<persisted-output>")
        assert big_result.text.count("log line seven") > 500

    @pytest.mark.parametrize("window", WINDOWS)
    async def test_keeps_messages_up_to_the_budget(self, window: int) -> None:
        reading = tool_turns(0, max(window // 700, 12))
        result = await compact(window, [*OPENING, *reading, user_message("Go on.")])
        pairs = zip(result.messages, result.kept, strict=True)
        tail = [message for message, index in pairs if index and index > 2]
        assert count_tokens(tail) > 0.8 * Budget.for_window(window).tail_tokens
        assert result.tokens_after <= max_compacted_tokens(window)

    async def test_the_newest_read_of_an_unchanged_file_stays(self) -> None:
        def read(path: str) -> list[Message]:
            text = "def body():\n" + "    step()\n" * 600
            return call_with_result("read_file", {"path": path}, text, call_id=path)

        edit = {"path": "changed.py", "content": "pass"}
        builds = [
            run_command(f"make part{number}", f"built {number}\n" * 700) for number in range(12)
        ]
        messages = [
            *OPENING,
            *tool_turns(0, 60),
            *read("unchanged.py"),
            *read("changed.py"),
            *call_with_result("write_file", edit, "ok"),
            *flatten(builds),
            user_message("Go on."),
        ]
        result = await compact(64_000, messages)
        assert result.tokens_after <= max_compacted_tokens(64_000)
        (unchanged,) = find_results(result, "unchanged.py")
        assert unchanged.text.count("step()") > 50
        (changed,) = find_results(result, "changed.py")
        assert "step()" not in changed.text
