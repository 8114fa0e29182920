"""Joined compacted lists: the content of each summary is kept, in order."""

from __future__ import annotations

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.summary.earlier_summary import parse_earlier_summary
from everthread.compaction.summary.sections import (
    BLOCKED,
    DONE,
    GOAL,
    USER_WORDS,
)
from everthread.compaction.summary.user_quotes import parse_quotes
from everthread.core.messages import Message
from everthread.core.summary_marks import (
    SUMMARY_END,
    SUMMARY_START,
    is_summary,
    mark_summary,
    recognize_summaries,
)
from everthread.testing import ScriptedSummarizer
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import call_with_result, compact, flatten, read_sections

WINDOW = 16_000


def chat(about: str, start: int = 0) -> list[Message]:
    return flatten(
        (
            user_message(f"Tell {about} {at}."),
            assistant_message(f"It is told, {about} {at}. " * 60),
        )
        for at in range(start, start + 24)
    )


def failing_command(about: str) -> list[Message]:
    return call_with_result(
        "bash", f'{{"command": "make {about}"}}', f"error: no {about}\nExit code: 1"
    )


async def compact_chat(about: str, opening: str = "Hi!") -> Compaction:
    return await compact(
        [
            user_message(f"Start {about}."),
            assistant_message(opening),
            user_message(f"Rule {about}."),
            *failing_command(about),
            assistant_message("ok"),
            *chat(about),
        ],
        window=WINDOW,
    )


def listed_numbers(text: str) -> list[int]:
    return [
        int(line[1:].split("]")[0].split("–")[0].split(",")[0])
        for line in text.split("\n")
        if line[:1] == "["
    ]


async def test_user_messages_of_two_summaries_stay_in_order() -> None:
    first = await compact_chat("red")
    second = await compact_chat("blue")
    joined = recognize_summaries([*first.messages, *second.messages])
    assert sum(map(is_summary, joined)) == 2
    result = await compact([*joined, *chat("green")], window=WINDOW)
    sections = read_sections(result)
    said = [entry.text for entry in parse_quotes(sections[USER_WORDS])]
    red, blue = (
        [f"Rule {about}.", *(f"Tell {about} {at}." for at in range(24))]
        for about in ("red", "blue")
    )
    assert said[:51] == [*red, "Start blue.", *blue]
    assert [entry.number for entry in parse_quotes(sections[USER_WORDS])] == list(
        range(2, 2 + len(said))
    )
    assert listed_numbers(sections[DONE]) == sorted(listed_numbers(sections[DONE]))
    assert "make red" in sections[DONE]
    assert "make blue" in sections[DONE]
    assert "EVERTHREAD SUMMARY" not in sections[DONE]
    assert "- `make blue` failed (message 28): error: no blue" in sections[BLOCKED]
    covered = sum(
        int(one.summary.split(" earlier")[0].rsplit(" ", 1)[1]) for one in (first, second)
    )
    assert parse_earlier_summary(result.messages).message_count == covered + len(result.covered)


async def test_turns_continue_after_a_summary_merged_before_a_request() -> None:
    first = await compact_chat("red")
    second = [
        mark_summary(user_message(f"{(await compact_chat('blue')).summary}\n\nGo on.")),
        assistant_message("ok"),
    ]
    earlier = parse_earlier_summary([*first.messages, *second])
    assert earlier.state is not None
    said = {entry.text: entry.number for entry in earlier.quotes}
    assert said["Rule blue."] == 27
    result = await compact([*first.messages, *second, *chat("green")], window=WINDOW)
    said = {entry.text: entry.number for entry in parse_quotes(read_sections(result)[USER_WORDS])}
    assert said["Go on."] == earlier.last_covered_turns[-1] + 1
    assert list(said.values()) == sorted(said.values())


async def test_a_repeated_summary_is_used_once() -> None:
    (one,) = [message for message in (await compact_chat("red")).messages if is_summary(message)]
    earlier = parse_earlier_summary([user_message("Start."), assistant_message("ok"), one, one])
    assert earlier.quotes == parse_earlier_summary([one]).quotes
    assert len(set(earlier.last_covered_turns)) == 1


async def test_a_summary_without_a_tag_becomes_background() -> None:
    first = await compact_chat("red")
    text = f"{SUMMARY_START}: 12 earlier messages were compacted]\n\n## Goal\nBuild it.\n\n{SUMMARY_END}]"
    other = mark_summary(user_message(text))
    for messages in (
        [*first.messages, other],
        [user_message("Start."), other, *first.messages],
    ):
        earlier = parse_earlier_summary(messages)
        assert "From an earlier summary: Goal: Build it." in [
            entry.closing_words for entry in earlier.journal.entries
        ]
        assert "Rule red." in [entry.text for entry in earlier.quotes]
        result = await compact([*messages, assistant_message("ok"), *chat("green")], window=WINDOW)
        assert "Rule red." in read_sections(result)[USER_WORDS]


async def test_a_model_gets_both_summaries() -> None:
    talks = [
        (
            await compact(
                [user_message("Go."), *chat(about)],
                window=WINDOW,
                summarizer=ScriptedSummarizer({GOAL: f"Paint it {about}."}),
            )
        )
        for about in ("red", "blue")
    ]
    writer = ScriptedSummarizer({GOAL: "Paint."})
    await compact(
        [*talks[0].messages, *talks[1].messages, *chat("green")],
        window=WINDOW,
        summarizer=writer,
    )
    assert writer.requests[0].previous[GOAL] == "Paint it red.\nPaint it blue."


async def test_words_after_a_merged_summary_do_not_move_before_the_next_one() -> None:
    """The history begins with the assistant, so the summary is merged into the user's message that follows it."""
    messages: list[Message] = [
        assistant_message("I begin by myself. " * 900),
        *failing_command("red"),
        assistant_message("That failed. " * 900),
        user_message("First request."),
        *failing_command("blue"),
        assistant_message("Done."),
    ]
    result = await compact(messages, window=4_096)
    assert result.messages[0]["role"] == "user"
    assert "First request." in str(result.messages[0]["content"])
    result = await compact([*recognize_summaries(result.messages), *chat("green")], window=4_096)
    assert is_summary(result.messages[0])
    assert "First request." in read_sections(result)[USER_WORDS]
