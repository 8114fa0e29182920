"""Recall: texts that may answer a message, even if some of its words are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everthread.store.records import NewMessage, NewSession
from everthread.store.search import recall_words
from everthread.store.search_records import RecallQuery
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.chat_messages import calls_message, function_call
from tests.store.messages import (
    append_texts,
    new_thread,
    new_user_message,
    numbered_texts,
    tool_result,
    user_messages,
)
from tests.store.searching import recall_texts, search

DAY = 86_400.0


def new_assistant_message(text: str, **more: Any) -> NewMessage:
    return NewMessage({"role": "assistant", "content": text}, **more)


async def test_best_text_need_not_hold_every_word_nor_the_same_form(
    store: Store,
) -> None:
    thread = await new_thread(
        store,
        "Melanie: I painted that lake sunrise last year, it means a lot to me.",
        "Caroline: The weather was fine.",
        *numbered_texts(1, 30, "Melanie: Work was busy again, week "),
    )
    best, *_ = await recall_texts(store, "When did Melanie paint a sunrise?", thread=thread)
    assert "lake sunrise" in best
    only_common_words = "When was that, and what is it?"
    for question in (only_common_words, "zebra quantum?", ""):
        assert await recall_texts(store, question, thread=thread) == []


async def test_answer_is_found_by_its_question_in_the_same_conversation(
    store: Store, clock: SteppedClock
) -> None:
    filler = [
        new_user_message(f"Nothing new, {number}.", created=clock.now + 10 + number)
        for number in range(20)
    ]
    thread = await new_thread(
        store,
        new_user_message("What pet did you adopt, Melanie?", created=clock.now),
        new_assistant_message("A golden retriever!", created=clock.now + 1),
        *filler,
        new_user_message("Which pet did she adopt?", created=clock.now + 5 * DAY),
        new_user_message("Good morning.", created=clock.now + 6 * DAY),
    )
    best_texts = await recall_texts(
        store,
        "pet adopted",
        thread=thread,
        limit=3,
    )
    assert "A golden retriever!" in best_texts
    texts = await recall_texts(
        store,
        "pet adopted",
        thread=thread,
        limit=30,
    )
    assert "Good morning." not in texts


async def test_named_day_counts_and_identifiers_count_more_than_words(
    store: Store,
) -> None:
    day = 1_684_843_200.0  # 2023-05-23, noon
    meetings = [
        new_user_message(f"The meeting went well, take {n}.", created=day + 40 * DAY * n)
        for n in range(-3, 4)
    ]
    thread = await new_thread(
        store,
        *meetings,
        new_user_message("We looked at main, app and src in py.", created=day),
        tool_result("read_file", "def run(): # src/app/main.py", created=day),
    )
    best, *_ = await recall_texts(store, "How was the meeting on May 23, 2023?", thread=thread)
    assert best == "The meeting went well, take 0."
    best, *_ = await recall_texts(store, "what is in src/app/main.py", thread=thread)
    assert "def run" in best


async def test_leaves_out_visible_foreign_and_distant_texts(store: Store) -> None:
    yellow = "The harbour crane is yellow."
    again = "Crane again, at the harbour."
    bought = "The harbour crane was bought in Rostock."
    thread = await new_thread(store, yellow, again)
    visible = frozenset({(await store.list_messages(thread))[1].id})
    await new_thread(store, "The harbour crane is blue.", tenant="other")
    await new_thread(store, bought)

    async def recall_in_thread(question: str, **bounds: Any) -> list[str]:
        return await recall_texts(store, question, thread=thread, **bounds)

    assert await recall_in_thread("harbour crane", visible_messages=visible) == [yellow]
    texts = await recall_texts(store, "harbour crane")
    assert set(texts) == {yellow, again, bought}
    near = "colour of the harbour crane"
    far = "harbour pilots, tariffs, moorings, dredging and bollards"
    assert await recall_in_thread(near, min_closeness=0.4)
    assert await recall_in_thread(far, min_closeness=0.4) == []
    assert await recall_in_thread("harbour crane", limit=0) == []


async def test_branch_recalls_shared_messages_and_no_later_ones(store: Store) -> None:
    parent = await new_thread(store, "The lighthouse keeper is Odd.", "Fine.")
    last = (await store.list_messages(parent))[1]
    branch = await store.branch(parent, last.id, new=NewSession(kind="branch"))
    await append_texts(store, parent, "He moved away.", "The lighthouse keeper is now Ingrid.")
    texts = await recall_texts(store, "Who is the lighthouse keeper?", thread=branch.id)
    assert "The lighthouse keeper is Odd." in texts
    assert not any("Ingrid" in text or "moved" in text for text in texts)


async def test_finds_outputs_and_cuts_them_to_the_matching_part(
    store: Store, clock: SteppedClock
) -> None:
    thread = await new_thread(store, "Please run it.", "And once more.")
    clock.now += 60
    noise = "noise line\n" * 400
    log = f"{noise}Traceback: the FluxCapacitor overheated in bay seven\n{noise}"
    stored = await store.outputs.put_output(
        thread,
        log,
        call_id="c1",
        tool="terminal",
    )
    clock.now += 60
    secret = "ghp_" + "x7Kq2LmN9pRs4TuV6wYz" + "A1b2C3d4E5f6G7h8"
    await append_texts(store, thread, f"token {secret} of the FluxCapacitor")
    query = RecallQuery(
        "why did the FluxCapacitor overheat",
        "default",
        thread=thread,
        max_chars=200,
    )
    passages = await store.recall(query)
    [passage] = [passage for passage in passages if passage.output]
    assert passage.output == stored.id
    assert passage.tool == "terminal"
    assert passage.turn == 2
    assert "FluxCapacitor overheated in bay seven" in passage.text
    assert len(passage.text) <= 202
    assert not any(secret in passage.text for passage in passages)
    lookup = tool_result("recall", "FluxCapacitor overheated, says message:7")
    await store.append(thread, [lookup])
    stored_passages = await store.recall(query)
    assert len(stored_passages) == len(passages), "a lookup is not recalled"
    speech = await store.recall(replace(query, speech_only=True))
    assert not any(passage.tool for passage in speech)


async def test_neighbours_and_turns_are_of_the_thread_despite_other_writers(
    store: Store,
    thread: str,
) -> None:
    other = await new_thread(store)
    for number in range(12):
        question = "Which pet did you adopt?" if number == 4 else f"Page {number}, please."
        answer = "A golden retriever!" if number == 4 else f"Here it is, {number}."
        await append_texts(store, thread, question)
        await append_texts(store, other, f"Ledger {number} is settled.")
        await store.append(thread, [new_assistant_message(answer)])
    query = RecallQuery(
        "pet adopted",
        "default",
        thread=thread,
        limit=4,
    )
    turns = {passage.text: passage.turn for passage in await store.recall(query)}
    assert turns["A golden retriever!"] == turns["Which pet did you adopt?"] == 5
    assert not any("Ledger" in text for text in turns)
    await append_texts(store, thread, "And the adopted pet is well?")
    turns = {passage.text: passage.turn for passage in await store.recall(query)}
    assert turns["And the adopted pet is well?"] == 13, "later messages count too"
    assert turns["Which pet did you adopt?"] == 5


async def test_branch_continues_the_turns_of_its_parent(store: Store) -> None:
    parent = await new_thread(store)
    questions = user_messages(*numbered_texts(0, 4, "Read page "))
    stored = await store.append(parent, questions)
    branch = await store.branch(parent, stored[2].id)
    await append_texts(store, branch.id, "Which pet did you adopt?")
    query = RecallQuery(
        "pet adopted",
        "default",
        thread=branch.id,
        limit=1,
    )
    [passage] = await store.recall(query)
    assert passage.turn == 4


async def test_long_message_is_searched_by_its_distinctive_words(store: Store) -> None:
    answer = "The zebra crossing at Quayside floods."
    filler = [f"The report of department {number} was discussed at length." for number in range(90)]
    thread = await new_thread(store, answer, *filler)
    question = (
        "discussed department report length " * 8
        + "about anything whatsoever concerning Quayside zebra floods"
        + " and many furthermore unrelated considerations"
    )
    texts = await recall_texts(store, question, thread=thread, limit=1)
    assert texts == [answer]


async def test_search_finds_results_by_the_path_of_their_call(store: Store) -> None:
    def read_call(call_id: str, path: str) -> NewMessage:
        arguments = f'{{"path": "{path}"}}'
        return NewMessage(calls_message(function_call(call_id, "read_file", arguments)))

    thread = await new_thread(
        store,
        "Read both.",
        read_call("c1", "src/billing/tax.py"),
        tool_result("read_file", "def rate(): return 7", "c1"),
        read_call("c2", "src/billing/net.py"),
        tool_result("read_file", "def rate(): return 9", "c2"),
        read_call("c3", "logs/tax.log"),
        tool_result("read_file", "[stored]", "c3"),
    )
    log = "rate limited\n" * 50
    stored = await store.outputs.put_output(
        thread,
        log,
        call_id="c3",
        tool="read_file",
    )

    async def search_path(path: str, **bounds: Any) -> list[str]:
        hits = await search(store, "rate", path=path, **bounds)
        return [hit.output or hit.snippet for hit in hits]

    tax_result = "def rate(): return 7"
    assert await search_path("src/billing/tax.py") == [tax_result]
    assert await search_path("tax.py", tool="read_file") == [tax_result]
    assert await search_path("logs/tax.log", thread=thread) == [stored.id]
    assert await search_path("src/other.py") == []
    assert await search_path("tax.py", tenant="other") == []


async def test_word_in_nearly_every_text_does_not_distinguish(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_words, "MAX_CHUNKS_PER_WORD", 10)
    steps = numbered_texts(1, 60, "We deploy step ")
    await new_thread(store, "The zebra is striped.", *steps)
    best, *_ = await store.recall(RecallQuery("deploy the zebra", "default"))
    assert "zebra" in best.text
    assert best.closeness == 1.0, "deploy is in all other texts, more than are read"


async def test_finds_frequent_words_together_in_an_old_text(store: Store) -> None:
    together = "The red lamp and the green lamp are for the harbour door."
    apart = [
        f"The {word} {number}." for number in range(1_010) for word in ("lamp", "harbour", "door")
    ]
    thread = await new_thread(store, together, *apart)
    for question in ("which lamp is at the harbour door", "green harbour"):
        texts = await recall_texts(store, question, thread=thread, limit=1)
        assert texts == [together]


async def test_words_of_an_identifier_do_not_count_again(store: Store) -> None:
    edits = [
        tool_result("edit", f"Edited src/markdown.test.ts, part {number} of the work.")
        for number in range(12)
    ]
    error = tool_result("bash", "src/markdown.test.ts: error, type undefined given")
    thread = await new_thread(store, error, *edits)
    [best] = await recall_texts(
        store,
        "which type error did markdown.test.ts give",
        thread=thread,
        limit=1,
    )
    assert "type undefined" in best


@pytest.mark.parametrize("for_page", [False, True])
@pytest.mark.parametrize("speaker", ["Ann", "Ben"])
async def test_named_speaker_comes_before_others_who_say_the_same(
    store: Store, speaker: str, for_page: bool
) -> None:
    """If texts begin with the names of speakers, a name in the question counts and the role does not."""
    thread = await new_thread(
        store,
        new_assistant_message("Ann: The boat at the pier is blue and rather old."),
        "Ben: The boat at the lake is green and quite new.",
        new_assistant_message("Ann: Supper was good."),
        "Ben: I liked the soup.",
    )
    best, *_ = await recall_texts(
        store,
        f"Which boat has {speaker}?",
        thread=thread,
        for_page=for_page,
    )
    assert best.startswith(f"{speaker}: The boat")


async def test_conversation_with_more_of_the_question_comes_first(
    store: Store,
) -> None:
    """Of two texts with the same word, the one from the conversation about the rest of the question wins."""
    small_talk = numbered_texts(1, 8, "Small talk ")
    conversation = (
        "We painted the harbour in Genoa.",
        *small_talk,
        "The ticket cost nine euros.",
    )
    thread = await new_thread(
        store,
        *(new_user_message(text, created=0.0) for text in conversation),
        new_user_message("The ticket cost four euros.", created=DAY),
    )
    texts = await recall_texts(
        store, "What did the ticket cost in Genoa at the harbour?", thread=thread
    )
    tickets = [text for text in texts if "ticket" in text]
    assert tickets == ["The ticket cost nine euros.", "The ticket cost four euros."]
