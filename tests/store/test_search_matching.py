"""Search: which stored texts a query finds."""

from __future__ import annotations

import asyncio
import sys

import pytest

from everthread.store.records import NewMessage
from everthread.store.search.text_search import RARITY_SAMPLE_CHUNKS
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.chat_messages import calls_message, function_call
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    tool_result,
)
from tests.store.searching import FILLER, assert_finds, search, search_texts


async def test_finds_texts_that_hold_every_word(store: Store) -> None:
    await new_thread(store, "red apple", "green apple", "a red car")
    expected = {
        "apple": {"red apple", "green apple"},
        "RED Apple": {"red apple"},
        "apple pear": set(),
    }
    await assert_finds(store, expected)


async def test_long_query_needs_every_word_however_old_the_text(store: Store) -> None:
    old = "the harbour crane motor failed on monday"
    thread = await new_thread(store, old, "motor", "crane")
    # Later messages than those in which the rarity of words is measured.
    later = numbered_messages(1, RARITY_SAMPLE_CHUNKS + 10)
    await store.append(thread, later)
    expected = {
        "monday failed motor crane harbour": {old},
        "monday failed motor crane harbour gantry": set(),
    }
    await assert_finds(store, expected)
    page = await store.find(SearchQuery("why did the harbour crane motor fail, gantry?"))
    assert old in page.hits[0].snippet


async def test_words_of_a_phrase_are_adjacent(store: Store) -> None:
    texts = ("connection was refused", "Connection refused!", "refused connection")
    await new_thread(store, *texts)
    expected = {
        '"connection refused"': {"Connection refused!"},
        "connection refused": set(texts),
        '"connection was" refused': {"connection was refused"},
    }
    await assert_finds(store, expected)


async def test_prefix_finds_words_that_begin_with_it(store: Store) -> None:
    await new_thread(
        store,
        "configure it",
        "the configuration",
        "a confetti",
        "app/config.yaml",
        "misconfig",
    )
    expected = {
        "confi*": {"configure it", "the configuration", "app/config.yaml"},
        "app/conf*": {"app/config.yaml"},
        "configure* it": {"configure it"},
    }
    await assert_finds(store, expected)


@pytest.mark.parametrize(
    ("query", "matching_text", "other_text"),
    [
        ("src/app/main.py", "see src/app/main.py:12", "src and app and main and py"),
        ("app/main.py", "in src/app/main.py", "main.py of the app"),
        ("main.py", "src/app/main.py", "py main"),
        ("/etc/hosts", "cat /etc/hosts", "hosts in etc"),
        ("C:\\Temp\\a.txt", "open C:\\Temp\\a.txt now", "a txt in Temp on C"),
        ("user-agent", "the User-Agent header", "agent of a user"),
        ("--dry-run", "make --dry-run all", "run dry"),
        ("user_name_id", "SELECT user_name_id", "id and name of user"),
        ("snake_case", "my_snake_case_name", "a case of snake"),
        ("v1.2.3", "released v1.2.3 today", "v1, then 3, then 2"),
        ("numpy.linalg.norm", "use numpy.linalg.norm(x)", "norm of linalg in numpy"),
        ("std::vector", "a std::vector<int>", "vector std"),
        ("a.b@example.com", "mail a.b@example.com", "example.com, b, a"),
        ("3f2a9c1e7b", "commit 3f2a9c1e7b", "commit 3f2a9c1e"),
        ("E0308", "error[E0308]: mismatched", "error E0309"),
        ("#1234", "fixes #1234", "fixes 12 34"),
        (
            "https://example.org/a?b=c",
            "at https://example.org/a?b=c .",
            "c b a example org https",
        ),
    ],
)
async def test_finds_identifiers_as_typed(
    store: Store, query: str, matching_text: str, other_text: str
) -> None:
    await new_thread(store, other_text, matching_text)
    texts = await search_texts(store, query)
    assert texts[:1] == [matching_text]
    await assert_finds(store, {f'"{query}"': {matching_text}})


async def test_finds_an_identifier_by_its_parts(store: Store) -> None:
    call = "call getUserName()"
    await new_thread(store, call, "user only")
    await assert_finds(store, {"getusername": {call}, "getUser": {call}})
    assert call in await search_texts(store, "user")


@pytest.mark.parametrize(
    ("query", "matching_text", "other_text"),
    [
        ("库", "数据库连接失败", "数据连接"),
        ("数据", "数据库", "据数"),
        ("数据库连接", "检查数据库连接。", "连接数据，库"),
        ("GPT模型", "用GPT模型回答", "模型 GPT"),
        ("検", "全文検索", "全文索引"),
        ("カタカナ", "これはカタカナです", "カナ タカ"),
        ("ﾃﾞｰﾀ", "データを消す", "デパート"),
        ("검색", "전문 검색 기능", "검은 색"),
        ("색", "검색", "검사"),
        ("数*", "数学", "学"),
        ("😀", "fine 😀", "fine 😁"),
    ],
)
async def test_finds_chinese_japanese_and_korean_characters(
    store: Store, query: str, matching_text: str, other_text: str
) -> None:
    await new_thread(store, other_text, matching_text)
    texts = await search_texts(store, query)
    assert texts[:1] == [matching_text]
    assert other_text not in await search_texts(store, f'"{query.rstrip("*")}"')


@pytest.mark.parametrize(
    "query",
    [
        '"unbalanced words',
        'words"',
        "words*words",
        "(words",
        "words)",
        "words:",
        "-words",
        "^words",
        "{words}",
        "+words",
    ],
)
async def test_text_that_is_not_syntax_is_taken_literally(store: Store, query: str) -> None:
    text = "these words are unbalanced words words"
    await new_thread(store, text, "others")
    await assert_finds(store, {query: {text}})


@pytest.mark.parametrize(
    "query",
    [
        "AND",
        "OR NOT",
        "NEAR(a b)",
        "a AND b",
        "terms: x",
        "rank MATCH",
        "'; DROP TABLE",
    ],
)
async def test_operators_are_words(store: Store, query: str) -> None:
    text = f"said: {query}!"
    await new_thread(store, "nothing of it", text)
    await assert_finds(store, {query: {text}})


@pytest.mark.parametrize(
    "query", ["", " ", '""', "*", '"*"', "!?", "\0", "\ud800", "& | !", "%s ? $1"]
)
async def test_query_without_words_finds_nothing(store: Store, query: str) -> None:
    await new_thread(store, "anything")
    await assert_finds(store, {query: set()})


async def test_query_may_have_any_length(store: Store) -> None:
    text = " ".join(f"word{number}" for number in range(3_000))
    await new_thread(store, text, "word1 word2")
    await assert_finds(
        store,
        {
            text: {text},
            f'"{text}"': {text},
            "数" * 5_000: set(),
        },
    )


async def test_searches_the_messages_of_every_role(store: Store) -> None:
    call = function_call("c", "frobnicate", '{"path": "needle.txt"}')
    text_part = {"type": "text", "text": "needle in a part"}
    await new_thread(
        store,
        new_user_message("user needle"),
        NewMessage(calls_message(call)),
        tool_result("frobnicate", "needle found"),
        NewMessage({"role": "user", "content": [text_part]}),
        NewMessage({"role": "system", "content": "system needle"}),
    )
    hits = await search(store, "needle")
    assert sorted((hit.role, hit.tool) for hit in hits) == [
        ("assistant", "frobnicate"),
        ("system", ""),
        ("tool", "frobnicate"),
        ("user", ""),
        ("user", ""),
    ]
    [hit] = await search(store, "frobnicate needle.txt")
    assert hit.role == "assistant"


async def test_searches_stored_outputs_to_their_end(store: Store) -> None:
    thread = await new_thread(store, "hello")
    text = FILLER * 400 + "the needle at the end " + FILLER * 10
    stored = await store.outputs.put_output(
        thread,
        text,
        call_id="c1",
        tool="terminal",
    )
    await store.outputs.put_output(
        thread,
        text,
        call_id="c2",
        tool="terminal",
    )
    [hit] = await search(store, "needle")
    assert hit.output == stored.id
    assert hit.message is None
    assert hit.thread == thread
    assert hit.role == "tool"
    assert hit.tool == "terminal"
    assert "the needle at the end" in hit.snippet
    assert await search(store, "dolor", tool="browser") == []
    [hit] = await search(store, "dolor", tool="terminal")
    assert hit.output == stored.id


async def test_secrets_are_neither_found_nor_shown(store: Store) -> None:
    secret = "ghp_" + "a8Kd02mQpX7zLw4nRt6Yb1Vc9Je3Hu5Gs0Fo"
    message = FILLER * 200 + f"the token {secret} is in the drawer, behind the spoon"
    thread = await new_thread(store, message, "password = hunter2hunter2X9")
    output = f"export GITHUB_TOKEN={secret}\nspoon output"
    await store.outputs.put_output(thread, output, tool="terminal")
    quoted = f'"{secret}"'
    prefix = secret[:12] + "*"
    for query in (secret, quoted, prefix, secret[4:], "hunter2hunter2X9"):
        assert await search(store, query) == []
    snippets = [hit.snippet for hit in await search(store, "spoon")]
    assert len(snippets) == 2
    assert not any(secret in snippet for snippet in snippets)
    assert all("spoon" in snippet for snippet in snippets)
    assert "the token [REDACTED] is in the drawer" in snippets[1]


async def test_summaries_are_not_searched(store: Store) -> None:
    thread = await new_thread(store, "first", "second needle", "third", "fourth")
    await compact_session(store, thread, words="a summary of the needle")
    await assert_finds(store, {"needle": {"second needle"}})


async def test_message_is_found_once_through_compactions(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 8, "needle "))
    for _ in range(3):
        tip = await store.get_compression_tip(thread)
        await compact_session(store, tip, tail=3)
        await append_texts(store, thread, "needle more")
    hits = await search(store, "needle", limit=100)
    assert len(hits) == 11
    [hit] = [hit for hit in hits if hit.snippet == "needle 7"]
    assert hit.session == thread
    assert hit.thread == thread


async def test_appended_message_is_found_at_once(store: Store, thread: str) -> None:
    for number in range(30):
        text = f"needle{number}"
        await append_texts(store, thread, text)
        await assert_finds(store, {text: {text}})


async def test_finds_a_message_that_another_store_appended(
    store: Store, stores: list[Store]
) -> None:
    thread = await new_thread(store, "a needle")
    other = stores[1]
    await assert_finds(other, {"needle": {"a needle"}})
    await append_texts(other, thread, "another needle")
    await assert_finds(store, {"needle": {"a needle", "another needle"}})


APPEND_AND_DIE = """
import asyncio, os, sys
from everthread.factory import open_store
from everthread.store.records import NewMessage

async def main():
    store = open_store(sys.argv[1])
    await store.append(sys.argv[2], [NewMessage({"role": "user", "content": "from another process"})])
    os._exit(0)

asyncio.run(main())
"""


async def test_finds_a_message_of_a_dead_process(store: Store, thread: str, url: str) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", APPEND_AND_DIE, url, thread)
    assert await child.wait() == 0
    await assert_finds(store, {"another process": {"from another process"}})


async def test_finds_words_in_different_chunks_of_a_long_text(store: Store) -> None:
    long = "apricot " + FILLER * 300 + " banana " + FILLER * 300 + " cherry"
    pair = "apricot and banana"
    await new_thread(store, long, "apricot alone", pair, "cherry and apricot")
    thread = await new_thread(store, "other")
    await store.outputs.put_output(thread, long, tool="terminal")
    hits = await search(store, "apricot banana cherry")
    assert sorted(hit.message is None for hit in hits) == [False, True]
    expected = {
        "apricot banana cherry": {long},
        "apricot banana": {long, pair},
        'cherry "ipsum banana"': set(),
    }
    await assert_finds(store, expected)
    texts = await search_texts(store, "apricot banana")
    assert texts[0] == pair


async def test_finds_a_phrase_across_the_border_of_two_chunks(store: Store) -> None:
    text = " ".join(f"word{number} tail{number}" for number in range(2_000))
    await new_thread(store, text)
    for number in range(0, 2_000, 7):
        query = SearchQuery(f'"word{number} tail{number}"', limit=1)
        assert await store.search(query), number


async def test_finds_words_that_are_repeated_very_often(store: Store) -> None:
    numbers = "0 " * 3_000 + "0 needle"
    characters = "的" * 5_000 + "针"
    await new_thread(store, numbers, characters)
    await assert_finds(store, {'"0 0 needle"': {numbers}, "的的针": {characters}})


async def test_deleted_threads_are_not_found(store: Store) -> None:
    deleted = await new_thread(store, "needle one", FILLER * 300 + "needle two")
    await store.outputs.put_output(deleted, "needle output", tool="terminal")
    await new_thread(store, "needle three")
    hits = await search(store, "needle")
    assert len(hits) == 4
    unindexed = await new_thread(store, "needle never indexed")
    await store.delete_thread(deleted)
    await store.delete_thread(unindexed)
    [hit] = await search(store, "needle")
    assert hit.snippet == "needle three"


async def test_hit_names_its_source(store: Store, clock: SteppedClock) -> None:
    thread = await new_thread(store, "one", "two needle")
    [hit] = await search(store, "needle")
    message = await store.load_message(hit.message or 0)
    assert message.body["content"] == hit.snippet == "two needle"
    assert hit.thread == thread
    assert hit.session == message.session
    assert hit.created == clock.now
    assert hit.role == "user"
    assert hit.output is None
    assert hit.score > 0


async def test_snippet_shows_the_match(store: Store) -> None:
    words = [f"needle{number}" for number in range(18)]
    text = "".join(f"{FILLER * 50} {word} " for word in words)
    thread = await new_thread(store, text)
    await store.outputs.put_output(thread, text, tool="terminal")
    for word in words:
        hits = await search(store, word)
        assert len(hits) == 2
        assert all(word in hit.snippet for hit in hits)
