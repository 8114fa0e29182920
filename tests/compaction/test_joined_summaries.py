"""Joined compacted lists: the content of each summary is kept, in order."""

from __future__ import annotations

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.summary.earlier_summary import parse_earlier_summary
from everthread.compaction.summary.sections import (
    BLOCKED,
    DONE,
    GOAL,
    USER_WORDS,
    parse_sections,
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
from tests.compaction.histories import (
    assistant_message,
    call_with_result,
    make_engine,
    user_message,
)

WINDOW = 16_000


def chat(about: str, start: int = 0) -> list[Message]:
    return [
        one
        for at in range(start, start + 24)
        for one in (
            user_message(f"Tell {about} {at}."),
            assistant_message(f"It is told, {about} {at}. " * 60),
        )
    ]


def failing_command(about: str) -> list[Message]:
    return call_with_result(
        0, "bash", f'{{"command": "make {about}"}}', f"error: no {about}\nExit code: 1"
    )


async def compact_chat(about: str, opening: str = "Hi!") -> Compaction:
    return await make_engine(WINDOW).compress(
        [
            user_message(f"Start {about}."),
            assistant_message(opening),
            user_message(f"Rule {about}."),
            *failing_command(about),
            assistant_message("ok"),
            *chat(about),
        ]
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
    made = await make_engine(WINDOW).compress([*joined, *chat("green")])
    told = parse_sections(made.summary)
    said = [entry.text for entry in parse_quotes(told[USER_WORDS])]
    red, blue = (
        [f"Rule {about}.", *(f"Tell {about} {at}." for at in range(24))]
        for about in ("red", "blue")
    )
    assert said[:51] == [*red, "Start blue.", *blue]
    assert [entry.number for entry in parse_quotes(told[USER_WORDS])] == list(
        range(2, 2 + len(said))
    )
    assert listed_numbers(told[DONE]) == sorted(listed_numbers(told[DONE]))
    assert "make red" in told[DONE]
    assert "make blue" in told[DONE]
    assert "EVERTHREAD SUMMARY" not in told[DONE]
    assert "- `make blue` failed (message 28): error: no blue" in told[BLOCKED]
    covered = sum(
        int(one.summary.split(" earlier")[0].rsplit(" ", 1)[1])
        for one in (first, second)
    )
    assert parse_earlier_summary(made.messages).message_count == covered + len(
        made.covered
    )


async def test_later_ones_count_on_where_the_summary_stands_before_words() -> None:
    first = await compact_chat("red")
    second = [
        mark_summary(user_message(f"{(await compact_chat('blue')).summary}\n\nGo on.")),
        assistant_message("ok"),
    ]
    earlier = parse_earlier_summary([*first.messages, *second])
    assert earlier.state is not None
    said = {entry.text: entry.number for entry in earlier.quotes}
    assert said["Rule blue."] == 27
    made = await make_engine(WINDOW).compress(
        [*first.messages, *second, *chat("green")]
    )
    said = {
        entry.text: entry.number
        for entry in parse_quotes(parse_sections(made.summary)[USER_WORDS])
    }
    assert said["Go on."] == earlier.last_covered_turns[-1] + 1
    assert list(said.values()) == sorted(said.values())


async def test_a_repeated_summary_is_used_once() -> None:
    (one,) = [
        message
        for message in (await compact_chat("red")).messages
        if is_summary(message)
    ]
    earlier = parse_earlier_summary(
        [user_message("Start."), assistant_message("ok"), one, one]
    )
    assert earlier.quotes == parse_earlier_summary([one]).quotes
    assert len(set(earlier.last_covered_turns)) == 1


async def test_one_without_a_tag_becomes_background_beside_another() -> None:
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
        made = await make_engine(WINDOW).compress(
            [*messages, assistant_message("ok"), *chat("green")]
        )
        assert "Rule red." in parse_sections(made.summary)[USER_WORDS]


async def test_a_model_gets_both_summaries() -> None:
    talks = [
        (
            await make_engine(
                WINDOW, ScriptedSummarizer({GOAL: f"Paint it {about}."})
            ).compress([user_message("Go."), *chat(about)])
        )
        for about in ("red", "blue")
    ]
    writer = ScriptedSummarizer({GOAL: "Paint."})
    await make_engine(WINDOW, writer).compress(
        [*talks[0].messages, *talks[1].messages, *chat("green")]
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
    made = await make_engine(4_096).compress(messages)
    assert made.messages[0]["role"] == "user"
    assert "First request." in str(made.messages[0]["content"])
    made = await make_engine(4_096).compress(
        [*recognize_summaries(made.messages), *chat("green")]
    )
    assert is_summary(made.messages[0])
    assert "First request." in parse_sections(made.summary)[USER_WORDS]
