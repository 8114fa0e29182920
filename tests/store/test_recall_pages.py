"""Passages for a page that people read: calls with their results, and no passage that repeats another."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from everthread.store.records import NewMessage
from everthread.store.search_records import RecallQuery, SearchQuery
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.messages import (
    append_texts,
    new_thread,
    new_user_message,
    numbered_texts,
    tool_result,
)
from tests.store.searching import recall_texts

NOISE = numbered_texts(1, 20, "Nothing new on day ")


async def recall_page(store: Store, question: str, thread: str, **bounds: Any) -> list[str]:
    return await recall_texts(
        store,
        question,
        thread=thread,
        for_page=True,
        **{"limit": 8, **bounds},
    )


def call(tool: str, arguments: str, call_id: str = "c1") -> NewMessage:
    return NewMessage(calls_message(function_call(call_id, tool, arguments)))


async def test_shows_a_call_with_its_result_as_one_passage(store: Store) -> None:
    thread = await new_thread(
        store,
        "Please release it.",
        call("bash", '{"command": "git commit -m \\"Release v7\\""}'),
        tool_result("bash", "husky: pre-commit script failed for the release commit", "c1"),
        *NOISE,
    )
    question = "why did the release commit fail"
    [text] = [
        text for text in await recall_page(store, question, thread) if "script failed" in text
    ]
    assert text.startswith('bash {"command": "git commit -m "Release v7""}\n→ husky: ')
    query = RecallQuery(
        question,
        "default",
        thread=thread,
        role="tool",
        for_page=True,
    )
    passages = await store.recall(query)
    assert {passage.role for passage in passages} == {"tool"}
    assert await recall_page(store, question, thread, tool="other") == []


async def test_shows_nearly_equal_texts_once(store: Store) -> None:
    calls = [
        call(
            "bash",
            f'{{"command": "grep -rn name{number} packages/billing/src | head -5"}}',
            f"c{number}",
        )
        for number in range(30)
    ]
    error = "grep: parentheses not balanced"
    thread = await new_thread(store, tool_result("bash", error), *calls)
    texts = await recall_page(store, "grep", thread)
    assert error in texts
    assert sum("packages/billing" in text for text in texts) == 1
    texts = await recall_texts(store, "grep", thread=thread, limit=8)
    assert len(texts) == 8, "each text is a passage of its own without a page"


async def test_shows_a_call_and_its_result_without_a_shared_word(
    store: Store,
) -> None:
    thought: Any = {
        "role": "assistant",
        "content": "The parent folder of walnut.py must be somewhere.",
    }
    long_result = "\n".join([*(f"line {number} of it" for number in range(300)), "No such pattern"])
    thread = await new_thread(
        store,
        NewMessage(thought),
        call("python", '{"code": "print(1)"}'),
        tool_result("python", long_result, "c1"),
        "Go on.",
        call("bash", '{"command": "make bread"}', "c2"),
        tool_result("bash", "The oven of the bakery is cold.", "c2"),
        *NOISE,
    )
    best, *_ = await recall_page(store, "where is the parent folder of walnut.py", thread)
    assert best.startswith("The parent folder of walnut.py must be somewhere.\n→ …line 2")
    assert best.endswith("line 299 of it\nNo such pattern"), "the end of a long result is shown"
    best, *_ = await recall_page(store, "is the bakery oven cold", thread)
    assert best == 'bash {"command": "make bread"}\n→ The oven of the bakery is cold.'


async def test_shows_short_texts_that_differ_in_a_figure_together(
    store: Store,
) -> None:
    results = [
        tool_result("edit", f"Changed README.md, now {number} characters in all.")
        for number in (272, 1813, 97, 41)
    ]
    thread = await new_thread(store, *results, *NOISE)
    best, *_ = await recall_page(store, "how many characters has the README", thread, limit=4)
    texts = best.split("\n≈ ")
    assert len(texts) == len(set(texts)) == 3


async def test_neighbours_with_the_same_word_come_before_newer_texts(
    store: Store,
) -> None:
    messages: list[NewMessage | str] = [
        call("bash", '{"command": "grep -A 10 x"}'),
        tool_result("bash", "grep: not balanced", "c1"),
    ]
    for number in range(400):
        grep = f'{{"command": "grep -rn name{number} src"}}'
        messages += (call("bash", grep, f"d{number}"), "Nothing new.")
    thread = await new_thread(store, *messages)
    texts = await recall_page(store, "what did grep complain about", thread, limit=4)
    assert any("not balanced" in text for text in texts)


async def test_long_passages_use_the_characters_that_short_ones_leave(
    store: Store,
) -> None:
    record = "reservation LQ940Q " + "of flights and passengers " * 30 + "amount 533"
    thread = await new_thread(store, tool_result("look_up", record), "I have reservation LQ940Q.")
    question = "what was paid for reservation LQ940Q"
    bounds = {"thread": thread, "limit": 8, "max_chars": 300}
    texts = await recall_texts(store, question, **bounds)
    assert not any("amount 533" in text for text in texts)
    texts = await recall_texts(store, question, for_page=True, **bounds)
    assert any("amount 533" in text for text in texts)
    assert sum(map(len, texts)) <= 8 * 300


async def test_has_passages_with_the_identifier_of_the_question(store: Store) -> None:
    """Other messages hold more words of the question, but only the records hold the identifier."""
    letters = random.Random(1)  # noqa: S311 - no secret

    def words(count: int) -> str:
        return " ".join("".join(letters.choices("abdeiklmnorstu", k=6)) for _ in range(count))

    records = [tool_result("look_up", f"{words(80)} KLM204 {words(80)}") for _ in range(5)]
    messages = [
        f"{words(6)} outbound flight {words(2)} booked {words(2)} instead {words(4)}."
        for _ in range(20)
    ]
    noise = [words(8) for _ in range(200)]
    thread = await new_thread(store, *records, *noise, *messages)
    question = "which outbound flight was booked instead of KLM204?"
    texts = await recall_page(store, question, thread)
    assert sum("KLM204" in text for text in texts) >= 2


async def test_shows_the_differences_of_nearly_equal_long_texts(store: Store) -> None:
    allowed = ", ".join(numbered_texts(0, 39, "module_"))
    errors = [
        tool_result(
            "python",
            f"Code execution failed: the import of {name} is not allowed. Allowed are: {allowed}",
        )
        for name in ("walnut", "hazelnut")
    ]
    thread = await new_thread(store, *errors, *NOISE)
    texts = await recall_page(store, "which import was not allowed?", thread)
    [text] = [text for text in texts if "import of" in text]
    assert "walnut is not" in text
    assert "hazelnut is not" in text


async def test_calls_of_a_tool_named_like_the_question_leave_room_for_other_texts(
    store: Store,
) -> None:
    messages: list[NewMessage | str] = [
        call("bash", '{"command": "sed -i s/new Editor()/new Editor(theme)/ test/*.ts"}')
    ]
    for number in range(620):
        change = f'{{"path": "src/part{number}.ts", "new_str": "return next;"}}'
        call_id = f"d{number}"
        messages += (
            call("str_replace_editor", change, call_id),
            tool_result("str_replace_editor", "Tested.", call_id),
        )
    messages += [f"Page {number}, please." for number in range(1_300)]
    thread = await new_thread(store, *messages)
    question = "how was new Editor() replaced in the tests?"
    texts = await recall_page(store, question, thread)
    assert any("Editor(theme)" in text for text in texts)


async def test_named_month_counts_although_the_text_does_not_mention_it(
    store: Store,
) -> None:
    may = datetime(2023, 5, 10, tzinfo=UTC).timestamp()
    june = datetime(2023, 6, 10, tzinfo=UTC).timestamp()
    messages = [
        new_user_message(f"Odd: the {place} is lovely.", created=moment + 60 * number)
        for moment, places in (
            (may, ("harbour", "museum")),
            (june, ("castle", "garden", "market", "bridge", "tower")),
        )
        for number, place in enumerate(places)
    ]
    thread = await new_thread(store, *messages)
    query = RecallQuery(
        "where was Odd in May 2023",
        "default",
        thread=thread,
        limit=2,
        min_closeness=0.15,
        for_page=True,
        now=june,
    )
    passages = await store.recall(query)
    assert {passage.created < june for passage in passages} == {True}


@pytest.mark.parametrize(
    "query", ["rule number 3", "rule 3", "tell me what rule no. 3 says", "rule #3"]
)
async def test_numbered_text_comes_before_others_of_its_kind(store: Store, query: str) -> None:
    words = ["deploy", "merge", "release", "rebase", "tag", "format"]
    rules = [f"Rule {n}: never {word} on a Friday." for n, word in enumerate(words, 1)]
    others = ["The number of rules is 6.", "3 rules are new.", "Rule numbers are ours."]
    thread = await new_thread(store, *rules, *others, "Noted.", "Fine.")
    page = await store.find(SearchQuery(query, thread=thread))
    assert page.hits[0].snippet == rules[2]
    repeat = "Please remember rule number 3."
    await append_texts(store, thread, repeat)
    page = await store.find(SearchQuery("what was rule number 3?", thread=thread))
    assert [hit.snippet for hit in page.hits[:2]] == [repeat, rules[2]]


async def test_question_whose_rare_words_are_absent_finds_its_frequent_words(
    store: Store,
) -> None:
    question = "which is the third rule?"
    rules = [f"The rule of week {number} is kept." for number in range(12)]
    thread = await new_thread(store, *rules)
    page = await store.find(SearchQuery(question, thread=thread))
    assert page.hits
    assert page.is_approximate
    assert await recall_texts(store, question, min_closeness=0.2) == []
