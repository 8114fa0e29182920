"""A search returns the closest messages if none has every word. A path narrows it."""

from __future__ import annotations

import pytest

from everthread.core.search.search_results import format_page
from everthread.errors import InputError
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call, result_message
from tests.thread.stored_threads import append, look_up, store_user_texts

FACT = "Priya Raman painted the walnut cupboard of Aldermoor green."


LEDGER = [f"Page {number} of the ledger is settled." for number in range(20)]


async def test_a_question_finds_its_answer_marked_as_closest(
    store: Store,
) -> None:
    thread = await store_user_texts(store, FACT, *LEDGER)
    for name in ("tax", "net"):
        call = function_call(name, "read_file", f'{{"path": "src/{name}.py"}}')
        result = result_message(name, f"def rate(): return {name!r}")
        await append(store, thread, calls_message(call), result)
    lookup = look_up(store, thread)

    question = "Who was the painter of that Aldermoor cupboard, and which brush was used?"
    page = await lookup.search(question)
    assert page.is_approximate
    assert page.excerpts[0].text == FACT
    assert page.excerpts[0].turn == 1
    shown_page = format_page(page, question, tool="recall", searched_place="here")
    assert "close, none with all these words" in shown_page.split("\n")[0]
    assert not (await lookup.search("painted cupboard")).is_approximate
    inflected = await lookup.search("Who was the painter of that cupboard?")
    assert not inflected.is_approximate, "it has every important word in some form"
    assert not (await lookup.search("zeppelin hangar")).excerpts, "too far"
    assert not (await lookup.search('"painted cupboard"')).excerpts, "an exact phrase"
    loose_page = await lookup.search("cupboard zeppelin hangar moorings gondola")
    assert loose_page.is_approximate
    assert loose_page.excerpts[0].text == FACT
    assert not (await lookup.search(question, role="assistant")).excerpts
    assert not (await lookup.search(question, offset=5)).excerpts, "there is only one page"

    (only,) = (await lookup.search("rate", path="src/net.py")).excerpts
    assert only.text == "def rate(): return 'net'"
    assert not (await lookup.search("rate", path="src/other.py")).excerpts
    with pytest.raises(InputError, match="by words"):
        await lookup.search("rate", mode="regex", path="src/net.py")


@pytest.mark.parametrize("query", ["rule number 3", "What does rule number 3 say?", "number 3"])
async def test_an_exact_phrase_comes_first(store: Store, query: str) -> None:
    texts = [
        f"Rule number {number}: team {number % 4} reviews the number of open changes."
        for number in range(1, 9)
    ]
    texts += [
        f"The rule about the number of pages has {number} parts, and rule 3 is short."
        for number in range(9)
    ]
    thread = await store_user_texts(store, *texts)
    lookup = look_up(store, thread)
    assert (await lookup.search(query)).excerpts[0].text.startswith(texts[2])
    page = await store.find(SearchQuery(query, "default", thread))
    assert page.hits[0].snippet.startswith(texts[2])


async def test_lookup_and_store_both_find_a_single_rare_word(
    store: Store,
) -> None:
    thread = await store_user_texts(store, FACT, *LEDGER)
    question = (
        "Did anybody remember which zeppelin hangar, gondola, mooring mast, propeller or "
        "ballast tank was mentioned together with Aldermoor yesterday evening?"
    )
    excerpts = (await look_up(store, thread).search(question)).excerpts
    page = await store.find(SearchQuery(question, "default", thread))
    assert page.is_approximate
    assert excerpts[0].text == page.hits[0].snippet == FACT
    assert [excerpt.id for excerpt in excerpts] == [f"message:{hit.message}" for hit in page.hits]
