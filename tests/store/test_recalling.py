"""Recall: find texts that may answer a message even if some of its words are missing; the same on both databases."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from everthread.store.records import NewMessage, NewSession
from everthread.store.search import recall_words
from everthread.store.search_records import RecallQuery, SearchQuery
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.conftest import Clock
from tests.store.messages import append_texts, new_thread, tool_result, user_message

DAY = 86_400.0


def text_message(role: Any, text: str, **more: Any) -> NewMessage:
    return NewMessage({"role": role, "content": text}, **more)


async def recall_texts(store: Store, text: str, **more: Any) -> list[str]:
    return [
        passage.text
        for passage in await store.recall(
            RecallQuery(text, more.pop("tenant", "default"), **more)
        )
    ]


async def test_the_best_place_need_not_hold_every_word_nor_in_the_same_form(
    store: Store, clock: Clock
) -> None:
    thread = await new_thread(
        store,
        user_message(
            "Melanie: I painted that lake sunrise last year, it means a lot to me."
        ),
        user_message("Caroline: The weather was fine."),
        *(
            user_message(f"Melanie: Work was busy again, week {number}.")
            for number in range(30)
        ),
    )
    first, *_ = await recall_texts(
        store, "When did Melanie paint a sunrise?", thread=thread.id
    )
    assert "lake sunrise" in first
    assert not await recall_texts(
        store, "When was that, and what is it?", thread=thread.id
    ), "no word says anything"
    assert not await recall_texts(store, "zebra quantum?", thread=thread.id)
    assert not await recall_texts(store, "", thread=thread.id)


async def test_an_answer_is_found_by_the_words_of_its_question_in_one_sitting(
    store: Store, clock: Clock
) -> None:
    filler = [
        user_message(f"Nothing new, {number}.", created=clock.now + 10 + number)
        for number in range(20)
    ]
    thread = await new_thread(
        store,
        user_message("What pet did you adopt, Melanie?", created=clock.now),
        text_message("assistant", "A golden retriever!", created=clock.now + 1),
        *filler,
        user_message("Which pet did she adopt?", created=clock.now + 5 * DAY),
        user_message("Good morning.", created=clock.now + 6 * DAY),
    )
    found = await recall_texts(store, "pet adopted", thread=thread.id, limit=3)
    assert "A golden retriever!" in found
    assert "Good morning." not in await recall_texts(
        store, "pet adopted", thread=thread.id, limit=30
    )


async def test_a_day_that_is_named_counts_and_identifiers_more_than_words(
    store: Store, clock: Clock
) -> None:
    day = 1_684_843_200.0  # 2023-05-23, noon
    thread = await new_thread(
        store,
        *(
            user_message(
                f"The meeting went well, take {number}.",
                created=day + 40 * DAY * (number - 3),
            )
            for number in range(7)
        ),
        user_message("We looked at main, app and src in py.", created=day),
        tool_result("read_file", "def run(): # src/app/main.py", created=day),
    )
    first, *_ = await recall_texts(
        store, "How was the meeting on May 23, 2023?", thread=thread.id
    )
    assert first == "The meeting went well, take 3."
    first, *_ = await recall_texts(
        store, "what is in src/app/main.py", thread=thread.id
    )
    assert "def run" in first


async def test_recall_leaves_out_visible_foreign_and_distant_texts(
    store: Store,
) -> None:
    mine = await new_thread(
        store,
        user_message("The harbour crane is yellow."),
        user_message("Crane again, at the harbour."),
    )
    seen = frozenset({(await store.messages(mine.id))[1].id})
    await new_thread(store, user_message("The harbour crane is blue."), tenant="other")
    await new_thread(store, user_message("The harbour crane was bought in Rostock."))
    assert await recall_texts(
        store, "harbour crane", thread=mine.id, visible_messages=seen
    ) == ["The harbour crane is yellow."]
    everywhere = await recall_texts(store, "harbour crane")
    assert set(everywhere) == {
        "The harbour crane is yellow.",
        "Crane again, at the harbour.",
        "The harbour crane was bought in Rostock.",
    }
    near = "colour of the harbour crane"
    far = "harbour pilots, tariffs, moorings, dredging and bollards"
    assert await recall_texts(store, near, thread=mine.id, min_closeness=0.4)
    assert not await recall_texts(store, far, thread=mine.id, min_closeness=0.4)
    assert await recall_texts(store, "harbour crane", thread=mine.id, limit=0) == []


async def test_a_branch_recalls_shared_messages_and_no_later_ones_of_its_parent(
    store: Store,
) -> None:
    parent = await new_thread(
        store, user_message("The lighthouse keeper is Odd."), user_message("Fine.")
    )
    at = (await store.messages(parent.id))[1].id
    branch = await store.branch(parent.id, at, new=NewSession(kind="branch"))
    await store.append(
        parent.id,
        [
            user_message("He moved away."),
            user_message("The lighthouse keeper is now Ingrid."),
        ],
    )
    found = await recall_texts(store, "Who is the lighthouse keeper?", thread=branch.id)
    assert "The lighthouse keeper is Odd." in found
    assert not any("Ingrid" in text or "moved" in text for text in found)


async def test_outputs_are_found_by_content_cited_by_turn_and_cut_to_the_place(
    store: Store, clock: Clock
) -> None:
    thread = await new_thread(
        store, user_message("Please run it."), user_message("And once more.")
    )
    clock.now += 60
    long = (
        "noise line\n" * 400
        + "Traceback: the FluxCapacitor overheated in bay seven\n"
        + "noise line\n" * 400
    )
    stored = await store.put_output(thread.id, long, call_id="c1", tool="terminal")
    clock.now += 60
    secret = "ghp_" + "x7Kq2LmN9pRs4TuV6wYz" + "A1b2C3d4E5f6G7h8"
    await append_texts(store, thread, f"token {secret} of the FluxCapacitor")
    query = RecallQuery(
        "why did the FluxCapacitor overheat", "default", thread=thread.id, max_chars=200
    )
    passages = await store.recall(query)
    (output,) = [passage for passage in passages if passage.output]
    assert (output.output, output.tool, output.turn) == (stored.id, "terminal", 2)
    assert "FluxCapacitor overheated in bay seven" in output.text
    assert len(output.text) <= 202
    assert not any(secret in passage.text for passage in passages)
    await store.append(
        thread.id, [tool_result("recall", "FluxCapacitor overheated, says message:7")]
    )
    assert len(await store.recall(query)) == len(passages), (
        "what only looked it up is no finding"
    )
    assert not any(
        passage.tool for passage in await store.recall(replace(query, speech_only=True))
    )


async def test_neighbours_and_turns_come_from_the_thread_despite_concurrent_writers(
    store: Store,
) -> None:
    mine = await new_thread(store)
    other = await new_thread(store)
    for number in range(12):
        asked = "Which pet did you adopt?" if number == 4 else f"Page {number}, please."
        await append_texts(store, mine, asked)
        await append_texts(store, other, f"Ledger {number} is settled.")
        answer = "A golden retriever!" if number == 4 else f"Here it is, {number}."
        await store.append(mine.id, [text_message("assistant", answer)])
    query = RecallQuery("pet adopted", "default", thread=mine.id, limit=4)
    found = {passage.text: passage.turn for passage in await store.recall(query)}
    assert found["A golden retriever!"] == found["Which pet did you adopt?"] == 5
    assert not any("Ledger" in text for text in found)
    await append_texts(store, mine, "And the adopted pet is well?")
    later = {passage.text: passage.turn for passage in await store.recall(query)}
    assert later["And the adopted pet is well?"] == 13, "what came since is counted too"
    assert later["Which pet did you adopt?"] == 5


async def test_a_branch_continues_the_turns_of_its_parent(store: Store) -> None:
    mine = await new_thread(store)
    asked = [user_message(f"Page {number}, please.") for number in range(5)]
    stored = await store.append(mine.id, asked)
    branch = await store.branch(mine.id, stored[2].id)
    await append_texts(store, branch, "Which pet did you adopt?")
    query = RecallQuery("pet adopted", "default", thread=branch.id, limit=1)
    assert [passage.turn for passage in await store.recall(query)] == [4]


async def test_a_long_message_is_searched_by_its_distinctive_words(
    store: Store,
) -> None:
    filler = [
        user_message(f"The report of department {number} was discussed at length.")
        for number in range(90)
    ]
    thread = await new_thread(
        store, user_message("The zebra crossing at Quayside floods."), *filler
    )
    asked = (
        "discussed department report length " * 8
        + "about anything whatsoever concerning Quayside zebra floods"
    )
    found = await recall_texts(
        store,
        asked + " and many furthermore unrelated considerations",
        thread=thread.id,
        limit=1,
    )
    assert found == ["The zebra crossing at Quayside floods."]


async def test_results_are_found_by_the_path_their_tool_was_called_with(
    store: Store,
) -> None:
    def call(call_id: str, path: str) -> NewMessage:
        return NewMessage(
            calls_message(function_call(call_id, "read_file", f'{{"path": "{path}"}}'))
        )

    thread = await new_thread(
        store,
        user_message("Read both."),
        call("c1", "src/billing/tax.py"),
        tool_result("read_file", "def rate(): return 7", "c1"),
        call("c2", "src/billing/net.py"),
        tool_result("read_file", "def rate(): return 9", "c2"),
        call("c3", "logs/tax.log"),
        tool_result("read_file", "[stored]", "c3"),
    )
    stored = await store.put_output(
        thread.id, "rate limited\n" * 50, call_id="c3", tool="read_file"
    )

    async def found(path: str, **more: Any) -> list[str]:
        hits = await store.search(SearchQuery("rate", path=path, **more))
        return [hit.output or hit.snippet for hit in hits]

    assert await found("src/billing/tax.py") == ["def rate(): return 7"]
    assert await found("tax.py", tool="read_file") == ["def rate(): return 7"]
    assert await found("logs/tax.log", thread=thread.id) == [stored.id]
    assert await found("src/other.py") == []
    assert await found("tax.py", tenant="other") == []


def call(tool: str, call_id: str, arguments: str, **more: Any) -> NewMessage:
    return NewMessage(calls_message(function_call(call_id, tool, arguments)), **more)


def answer(tool: str, call_id: str, text: str) -> NewMessage:
    return NewMessage(
        {"role": "tool", "tool_call_id": call_id, "name": tool, "content": text}
    )


async def test_a_page_shows_a_call_with_its_result_as_one_place(store: Store) -> None:
    thread = await new_thread(
        store,
        user_message("Please release it."),
        call("bash", "c1", '{"command": "git commit -m \\"Release v7\\""}'),
        answer("bash", "c1", "husky: pre-commit script failed for the release commit"),
        *(user_message(f"Nothing new on day {number}.") for number in range(20)),
    )
    query = RecallQuery(
        "why did the release commit fail",
        "default",
        thread=thread.id,
        limit=4,
        for_page=True,
    )
    together = [
        passage.text
        for passage in await store.recall(query)
        if "script failed" in passage.text
    ]
    assert len(together) == 1
    assert together[0].startswith(
        'bash {"command": "git commit -m "Release v7""}\n→ husky: '
    )
    of_tools = await store.recall(replace(query, role="tool"))
    assert {passage.role for passage in of_tools} == {"tool"}
    assert not await store.recall(replace(query, tool="other"))


async def test_a_page_shows_nearly_equal_texts_once(store: Store) -> None:
    calls = [
        call(
            "bash",
            f"c{number}",
            f'{{"command": "grep -rn name{number} packages/billing/src | head -5"}}',
        )
        for number in range(30)
    ]
    thread = await new_thread(
        store, tool_result("bash", "grep: parentheses not balanced"), *calls
    )
    query = RecallQuery("grep", "default", thread=thread.id, limit=8, for_page=True)
    texts = [passage.text for passage in await store.recall(query)]
    assert "grep: parentheses not balanced" in texts
    assert sum("packages/billing" in text for text in texts) == 1
    assert len(await recall_texts(store, "grep", thread=thread.id, limit=8)) == 8, (
        "without a page each is a finding"
    )


async def test_a_page_shows_a_call_and_its_result_even_without_a_shared_word(
    store: Store,
) -> None:
    thought = NewMessage(
        {
            "role": "assistant",
            "content": "The parent folder of walnut.py must be somewhere.",
        }
    )
    thread = await new_thread(
        store,
        thought,
        call("python", "c1", '{"code": "print(1)"}'),
        answer(
            "python",
            "c1",
            "\n".join(f"line {number} of it" for number in range(300))
            + "\nNo such pattern",
        ),
        user_message("Go on."),
        call("bash", "c2", '{"command": "make bread"}'),
        answer("bash", "c2", "The oven of the bakery is cold."),
        *(user_message(f"Nothing new on day {number}.") for number in range(20)),
    )

    async def first_place(question: str) -> str:
        query = RecallQuery(
            question, "default", thread=thread.id, limit=4, for_page=True
        )
        return (await store.recall(query))[0].text

    asked = await first_place("where is the parent folder of walnut.py")
    assert asked.startswith(
        "The parent folder of walnut.py must be somewhere.\n→ …line 2"
    )
    assert asked.endswith("line 299 of it\nNo such pattern"), (
        "the end of a long result, which says how it ended"
    )
    assert (
        await first_place("is the bakery oven cold")
        == 'bash {"command": "make bread"}\n→ The oven of the bakery is cold.'
    )


async def test_a_page_shows_short_texts_that_differ_in_a_figure_at_one_place(
    store: Store,
) -> None:
    thread = await new_thread(
        store,
        *(
            tool_result("edit", f"Changed README.md, now {number} characters in all.")
            for number in (272, 1813, 97, 41)
        ),
        *(user_message(f"Nothing new on day {number}.") for number in range(20)),
    )
    query = RecallQuery(
        "how many characters has the README",
        "default",
        thread=thread.id,
        limit=4,
        for_page=True,
    )
    first = (await store.recall(query))[0].text.split("\n≈ ")
    assert len(first) == 3, "the best and two more"
    assert len(set(first)) == 3


async def test_of_many_places_with_the_same_word_the_ones_next_to_each_other_come_before_the_newest(
    store: Store,
) -> None:
    calls = [
        call("bash", f"d{number}", f'{{"command": "grep -rn name{number} src"}}')
        for number in range(400)
    ]
    apart = [
        message for one in calls for message in (one, user_message("Nothing new."))
    ]
    thread = await new_thread(
        store,
        call("bash", "c1", '{"command": "grep -A 10 x"}'),
        answer("bash", "c1", "grep: not balanced"),
        *apart,
    )
    query = RecallQuery(
        "what did grep complain about",
        "default",
        thread=thread.id,
        limit=4,
        for_page=True,
    )
    assert any("not balanced" in passage.text for passage in await store.recall(query))


async def test_a_word_in_nearly_every_text_of_a_large_store_says_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_words, "MAX_CHUNKS_PER_WORD", 10)
    await new_thread(
        store,
        user_message("The zebra is striped."),
        *(user_message(f"We deploy step {number}.") for number in range(60)),
    )
    best, *_ = await store.recall(RecallQuery("deploy the zebra", "default"))
    assert "zebra" in best.text
    assert best.closeness == 1.0, "deploy is in all other texts, more than are read"


async def test_on_a_page_longer_places_have_the_room_that_short_ones_leave(
    store: Store,
) -> None:
    record = "reservation LQ940Q " + "of flights and passengers " * 30 + "amount 533"
    thread = await new_thread(
        store,
        tool_result("look_up", record),
        user_message("I have reservation LQ940Q."),
    )
    query = RecallQuery(
        "what was paid for reservation LQ940Q",
        "default",
        thread=thread.id,
        limit=8,
        max_chars=300,
    )
    assert not any(
        "amount 533" in passage.text for passage in await store.recall(query)
    )
    whole = await store.recall(replace(query, for_page=True))
    assert any("amount 533" in passage.text for passage in whole)
    assert sum(len(passage.text) for passage in whole) <= 8 * 300


async def test_adjacent_frequent_words_are_found_in_old_texts(
    store: Store,
) -> None:
    together = user_message("The red lamp and the green lamp are for the harbour door.")
    apart = [
        user_message(f"The {word} {number}.")
        for number in range(1_010)
        for word in ("lamp", "harbour", "door")
    ]
    thread = await new_thread(store, together, *apart)
    (first,) = await recall_texts(
        store, "which lamp is at the harbour door", thread=thread.id, limit=1
    )
    assert "red lamp" in first
    (rare,) = await recall_texts(store, "green harbour", thread=thread.id, limit=1)
    assert "red lamp" in rare


async def test_the_words_of_an_identifier_do_not_count_again(store: Store) -> None:
    edits = [
        tool_result("edit", f"Edited src/markdown.test.ts, part {number} of the work.")
        for number in range(12)
    ]
    error = tool_result("bash", "src/markdown.test.ts: error, type undefined given")
    thread = await new_thread(store, error, *edits)
    (first,) = await recall_texts(
        store, "which type error did markdown.test.ts give", thread=thread.id, limit=1
    )
    assert "type undefined" in first


async def test_a_page_has_places_for_the_identifier_that_is_asked_for(
    store: Store,
) -> None:
    """Other talk holds more words of the question, but only the records hold the identifier."""
    letters = random.Random(1)  # noqa: S311 - no secret

    def words(count: int) -> str:
        return " ".join(
            "".join(letters.choices("abdeiklmnorstu", k=6)) for _ in range(count)
        )

    records = [
        tool_result("look_up", f"{words(80)} KLM204 {words(80)}") for _ in range(5)
    ]
    talk = [
        user_message(
            f"{words(6)} outbound flight {words(2)} booked {words(2)} instead {words(4)}."
        )
        for _ in range(20)
    ]
    noise = [user_message(words(8)) for _ in range(200)]
    thread = await new_thread(store, *records, *noise, *talk)
    query = RecallQuery(
        "which outbound flight was booked instead of KLM204?",
        "default",
        thread=thread.id,
        limit=8,
        for_page=True,
    )
    assert sum("KLM204" in passage.text for passage in await store.recall(query)) >= 2


async def test_a_page_shows_the_differences_of_nearly_equal_long_texts(
    store: Store,
) -> None:
    allowed = ", ".join(f"module_{number}" for number in range(40))
    errors = [
        tool_result(
            "python",
            f"Code execution failed: the import of {name} is not allowed. Allowed are: {allowed}",
        )
        for name in ("walnut", "hazelnut")
    ]
    noise = [user_message(f"Nothing new on day {number}.") for number in range(20)]
    thread = await new_thread(store, *errors, *noise)
    query = RecallQuery(
        "which import was not allowed?",
        "default",
        thread=thread.id,
        limit=8,
        for_page=True,
    )
    [text] = [
        passage.text
        for passage in await store.recall(query)
        if "import of" in passage.text
    ]
    assert "walnut is not" in text
    assert "hazelnut is not" in text


async def test_calls_of_a_tool_whose_name_holds_the_words_leave_room_for_other_texts(
    store: Store,
) -> None:
    sed = call(
        "bash", "c", '{"command": "sed -i s/new Editor()/new Editor(theme)/ test/*.ts"}'
    )
    work: list[NewMessage] = []
    for number in range(620):
        change = f'{{"path": "src/part{number}.ts", "new_str": "return next;"}}'
        call_id = f"d{number}"
        work += (
            call("str_replace_editor", call_id, change),
            answer("str_replace_editor", call_id, "Tested."),
        )
    thread = await new_thread(
        store,
        sed,
        *work,
        *(user_message(f"Page {number}, please.") for number in range(1_300)),
    )
    query = RecallQuery(
        "how was new Editor() replaced in the tests?",
        "default",
        thread=thread.id,
        limit=8,
        for_page=True,
    )
    assert any("Editor(theme)" in passage.text for passage in await store.recall(query))


async def test_on_a_page_the_day_counts_for_every_role_and_need_not_be_said(
    store: Store,
) -> None:
    may, june = (datetime(2023, month, 10, tzinfo=UTC).timestamp() for month in (5, 6))
    talk = [
        user_message(f"Odd: the {place} is lovely.", created=moment + 60 * number)
        for moment, places in (
            (may, ("harbour", "museum")),
            (june, ("castle", "garden", "market", "bridge", "tower")),
        )
        for number, place in enumerate(places)
    ]
    thread = await new_thread(store, *talk)
    query = RecallQuery(
        "where was Odd in May 2023",
        "default",
        thread=thread.id,
        limit=2,
        min_closeness=0.15,
        for_page=True,
        now=june,
    )
    assert {passage.created < june for passage in await store.recall(query)} == {True}


async def test_a_named_speaker_comes_before_someone_who_says_the_same(
    store: Store,
) -> None:
    """If texts begin with the names of speakers, a name in the question counts and the role does not."""
    thread = await new_thread(
        store,
        text_message("assistant", "Ann: The boat at the pier is blue and rather old."),
        text_message("user", "Ben: The boat at the lake is green and quite new."),
        text_message("assistant", "Ann: Supper was good."),
        text_message("user", "Ben: I liked the soup."),
    )
    for speaker in ("Ann", "Ben"):
        for as_page in (False, True):
            texts = await recall_texts(
                store, f"Which boat has {speaker}?", thread=thread.id, for_page=as_page
            )
            assert texts[0].startswith(f"{speaker}: The boat")


async def test_a_sitting_with_more_of_the_question_comes_first(store: Store) -> None:
    """Of two texts with the same word, the one from the sitting about the rest of the question wins."""
    filler = [
        text_message("user", f"Small talk {number}.", created=0.0)
        for number in range(8)
    ]
    thread = await new_thread(
        store,
        text_message("user", "We painted the harbour in Genoa.", created=0.0),
        *filler,
        text_message("user", "The ticket cost nine euros.", created=0.0),
        text_message("user", "The ticket cost four euros.", created=DAY),
    )
    texts = await recall_texts(
        store, "What did the ticket cost in Genoa at the harbour?", thread=thread.id
    )
    nine = next(index for index, text in enumerate(texts) if "nine" in text)
    four = next(index for index, text in enumerate(texts) if "four" in text)
    assert nine < four


async def test_a_numbered_thing_comes_before_the_others_of_its_kind(
    store: Store,
) -> None:
    words = ["deploy", "merge", "release", "rebase", "tag", "format"]
    rules = [f"Rule {n}: never {word} on a Friday." for n, word in enumerate(words, 1)]
    others = ["The number of rules is 6.", "3 rules are new.", "Rule numbers are ours."]
    thread = await new_thread(
        store, *map(user_message, [*rules, *others, "Noted.", "Fine."])
    )
    for text in ("rule number 3", "rule 3", "tell me what rule no. 3 says", "rule #3"):
        page = await store.find(SearchQuery(text, thread=thread.id))
        assert page.hits[0].snippet == rules[2], text
    whole = user_message("Please remember rule number 3.")
    await store.append(thread.id, [whole])
    page = await store.find(SearchQuery("what was rule number 3?", thread=thread.id))
    assert [hit.snippet for hit in page.hits[:2]] == [
        "Please remember rule number 3.",
        rules[2],
    ]


async def test_a_question_whose_rare_words_are_nowhere_finds_its_frequent_ones(
    store: Store,
) -> None:
    thread = await new_thread(
        store, *(user_message(f"The rule of week {n} is kept.") for n in range(12))
    )
    page = await store.find(SearchQuery("which is the third rule?", thread=thread.id))
    assert page.hits
    assert page.is_approximate
    assert not await recall_texts(store, "which is the third rule?", min_closeness=0.2)
