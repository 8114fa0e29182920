"""If no message holds every word, a search returns the closest ones and says so; a path narrows it."""

from __future__ import annotations

import pytest

from everthread.core.search.search_results import format_page
from everthread.errors import InputError
from everthread.store.records import NewMessage, NewSession
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.thread.lookup.store_lookup import StoreLookup
from tests.chat_messages import calls_message, function_call, result_message

FACT = "Priya Raman painted the walnut cupboard of Aldermoor green."


def _call(number: int, path: str) -> NewMessage:
    return NewMessage(
        calls_message(function_call(f"c{number}", "read_file", f'{{"path": "{path}"}}'))
    )


def _result(number: int, text: str) -> NewMessage:
    return NewMessage(result_message(f"c{number}", text))


async def test_a_question_finds_its_answer_marked_as_closest(
    store: Store,
) -> None:
    session = await store.create_session(NewSession())
    said = [FACT, *(f"Page {number} of the ledger is settled." for number in range(20))]
    await store.append(
        session.id, [NewMessage({"role": "user", "content": text}) for text in said]
    )
    paths = ("src/tax.py", "src/net.py")
    for number, path in enumerate(paths):
        await store.append(
            session.id,
            [_call(number, path), _result(number, f"def rate(): return {number}")],
        )
    lookup = StoreLookup(store, "default", session.id)

    asked = "Who was the painter of that Aldermoor cupboard, and which brush was used?"
    found = await lookup.search(asked)
    assert found.is_approximate
    assert found.excerpts[0].text == FACT
    assert found.excerpts[0].turn == 1
    assert (
        "close, none with all these words"
        in format_page(found, asked, tool="recall", searched_place="here").split("\n")[
            0
        ]
    )
    assert not (await lookup.search("painted cupboard")).is_approximate
    assert not (
        await lookup.search("Who was the painter of that cupboard?")
    ).is_approximate, "every telling word, in some form"
    for strange in ("zeppelin hangar", '"painted cupboard"'):
        assert not (await lookup.search(strange)).excerpts, (
            "too far, or asked for as it stands"
        )
    loose = await lookup.search("cupboard zeppelin hangar moorings gondola")
    assert loose.is_approximate
    assert loose.excerpts[0].text == FACT
    assert not (await lookup.search(asked, role="assistant")).excerpts
    assert not (await lookup.search(asked, offset=5)).excerpts, (
        "there is one page of it"
    )

    (only,) = (await lookup.search("rate", path="src/net.py")).excerpts
    assert only.text == "def rate(): return 1"
    assert not (await lookup.search("rate", path="src/other.py")).excerpts
    with pytest.raises(InputError, match="by words"):
        await lookup.search("rate", mode="regex", path="src/net.py")


@pytest.mark.parametrize(
    "asked", ["rule number 3", "What does rule number 3 say?", "number 3"]
)
async def test_an_exact_phrase_comes_first(store: Store, asked: str) -> None:
    session = await store.create_session(NewSession())
    said = [
        f"Rule number {number}: team {number % 4} reviews the number of open changes."
        for number in range(1, 9)
    ]
    said += [
        f"The rule about the number of pages has {number} parts, and rule 3 is short."
        for number in range(9)
    ]
    await store.append(
        session.id, [NewMessage({"role": "user", "content": text}) for text in said]
    )
    lookup = StoreLookup(store, "default", session.id)
    assert (await lookup.search(asked)).excerpts[0].text.startswith(said[2])
    page = await store.find(SearchQuery(asked, "default", session.id))
    assert page.hits[0].snippet.startswith(said[2])


async def test_a_question_with_one_stored_rare_word_finds_it_in_every_front_end(
    store: Store,
) -> None:
    session = await store.create_session(NewSession())
    said = [FACT, *(f"Page {number} of the ledger is settled." for number in range(20))]
    await store.append(
        session.id, [NewMessage({"role": "user", "content": text}) for text in said]
    )
    asked = (
        "Did anybody remember which zeppelin hangar, gondola, mooring mast, propeller or "
        "ballast tank was mentioned together with Aldermoor yesterday evening?"
    )
    excerpts = (await StoreLookup(store, "default", session.id).search(asked)).excerpts
    page = await store.find(SearchQuery(asked, "default", session.id))
    assert page.is_approximate
    assert excerpts[0].text == page.hits[0].snippet == FACT
    assert [one.id for one in excerpts] == [
        f"message:{hit.message}" for hit in page.hits
    ]
