"""The order of search results, and pages of them."""

from __future__ import annotations

import pytest

from everthread.store.records import NewMessage
from everthread.store.search.text_search import MATCHES_PER_BATCH
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.store import Store
from tests.store.messages import new_thread, new_user_message, numbered_texts
from tests.store.searching import FILLER, search, search_texts


async def test_whole_identifier_comes_first(store: Store) -> None:
    await new_thread(store, "main.py is it", "src/main.py.bak main py", "main, then py", "main/py")
    first, *_, last = await search_texts(store, "main.py")
    assert first == "main.py is it"
    assert last == "main, then py"


async def test_text_with_more_and_denser_matches_comes_first(store: Store) -> None:
    repeated = f"needle needle needle {FILLER * 20}"
    once = f"needle {FILLER * 20}"
    await new_thread(store, repeated, once, "needle", "other")
    assert await search_texts(store, "needle") == ["needle", repeated, once]


async def test_rarer_word_weighs_more(store: Store) -> None:
    rare = "zebra zebra zebra common pad"
    frequent = "zebra common common common pad"
    await new_thread(store, rare, frequent, *numbered_texts(1, 60, "common "))
    texts = await search_texts(store, "common zebra")
    assert texts[0] == rare


async def test_newest_of_equal_texts_comes_first(store: Store, thread: str) -> None:
    for day in (3, 1, 2):
        message = new_user_message(f"needle {day}", created=float(day))
        await store.append(thread, [message])
    assert await search_texts(store, "needle") == ["needle 3", "needle 2", "needle 1"]


async def test_pages_show_every_hit_once(store: Store) -> None:
    count = MATCHES_PER_BATCH * 2 + 50
    texts = [f"needle {'pad ' * (number % 7)}{number}" for number in range(count)]
    await new_thread(store, *texts)
    all_hits = await search(store, "needle", limit=10_000)
    assert len(all_hits) == count
    paged_hits: list[SearchHit] = []
    for offset in range(0, count + 200, 200):
        query = SearchQuery("needle", limit=200, offset=offset)
        paged_hits += await store.search(query)
    assert paged_hits == all_hits
    assert await search(store, "needle", limit=0) == []
    assert await search(store, "needle", limit=-1, offset=-1) == []


async def test_texts_with_every_word_hide_no_better_answer(store: Store) -> None:
    question = "Which database do we use for staging?"
    answer = "The staging database is PostgreSQL 16 on the harbour machine."
    repeats = [
        NewMessage({"role": "assistant", "content": f"Job {n}: {question} I look it up."})
        for n in range(30)
    ]
    thread = await new_thread(store, answer, *repeats)
    await store.outputs.put_output(thread, f"{question} {question}", tool="terminal")
    exact_hits = await search(store, question, limit=100)
    assert len(exact_hits) == 31
    pages = [
        await store.find(SearchQuery(question, limit=8, offset=start)) for start in range(0, 40, 8)
    ]
    assert answer in [hit.snippet for hit in pages[0].hits]
    assert [page.has_more for page in pages] == [True] * 3 + [False] * 2
    sources = [(hit.message, hit.output) for page in pages for hit in page.hits]
    assert len(sources) == len(set(sources))
    assert set(sources) >= {(hit.message, hit.output) for hit in exact_hits}
    assert not any(page.is_approximate for page in pages)


async def test_closest_texts_come_in_pages(store: Store) -> None:
    distinct_words = (
        "anna berlin copper",
        "bert dublin cedar",
        "carl lisbon marble",
        "dora madrid velvet",
        "emil oslo granite",
        "frida prague linen",
        "gustav vienna bronze",
    )
    texts = [f"{words}: the harbour crane was painted. {words} {words}" for words in distinct_words]
    await new_thread(store, *texts, *numbered_texts(1, 90))
    question = "Was the harbour crane painted purple?"
    first = await store.find(SearchQuery(question, limit=5))
    second = await store.find(SearchQuery(question, limit=5, offset=5))
    assert len(first.hits) == 5
    assert first.has_more
    assert first.is_approximate
    assert second.hits
    first_messages = {hit.message for hit in first.hits}
    assert first_messages.isdisjoint(hit.message for hit in second.hits)


@pytest.mark.parametrize(
    "query",
    [
        SearchQuery('"crane was tall"'),
        SearchQuery("harbour crane blu*"),
        SearchQuery("which crane is tall", path="src/a.py"),
    ],
)
async def test_query_with_a_phrase_prefix_or_path_finds_no_close_texts(
    store: Store, query: SearchQuery
) -> None:
    await new_thread(store, "The harbour crane was painted red.", "A crane is tall.")
    page = await store.find(query)
    assert page.hits == ()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("which one?", "The other one over there."),
        ("what did you do then?", "Then I did it."),
        ("他们在哪里开会？", "他们在北京开会"),
    ],
)
async def test_question_of_common_words_finds_texts_with_them(
    store: Store, question: str, answer: str
) -> None:
    answers = ("The other one over there.", "Then I did it.", "他们在北京开会")
    await new_thread(store, "I live in Lisbon.", *answers)
    page = await store.find(SearchQuery(question))
    assert answer in [hit.snippet for hit in page.hits]
