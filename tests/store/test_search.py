"""Search: find stored messages within the caller's reach, the best first."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from everthread import open_store
from everthread.errors import UnknownIdError
from everthread.store.records import NewMessage
from everthread.store.search.text_search import MATCHES_PER_BATCH, RARITY_SAMPLE_CHUNKS
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.conftest import Clock, open_at
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    numbered_messages,
    numbered_thread,
    tool_result,
    user_message,
    user_messages,
)
from tests.store.tables import transaction

FILLER = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor "


async def found_texts(store: Store, text: str, **more: Any) -> list[str]:
    """Return the texts of the messages found, best first."""
    hits = await store.search(SearchQuery(text, **more))
    return [
        str((await store.message(hit.message)).body["content"])
        for hit in hits
        if hit.message is not None
    ]


async def found_set(store: Store, text: str, **more: Any) -> set[str]:
    said = await found_texts(store, text, **more)
    assert len(said) == len(set(said)), "found twice"
    return set(said)


async def test_every_word_must_be_there(store: Store) -> None:
    await new_thread(store, "red apple", "green apple", "a red car")
    assert await found_set(store, "apple") == {"red apple", "green apple"}
    assert await found_set(store, "RED Apple") == {"red apple"}
    assert await found_set(store, "apple pear") == set()


async def test_a_long_query_needs_every_word_wherever_it_was_said(
    store: Store,
) -> None:
    old = "the harbour crane motor failed on monday"
    thread = await new_thread(store, old, "motor", "crane")
    # Later messages than those in which the rarity of words is measured.
    later = numbered_messages(1, RARITY_SAMPLE_CHUNKS + 10)
    await store.append(thread.id, later)
    assert await found_set(store, "monday failed motor crane harbour") == {old}
    assert await found_set(store, "monday failed motor crane harbour gantry") == set()
    page = await store.find(
        SearchQuery("why did the harbour crane motor fail, gantry?")
    )
    assert old in page.hits[0].snippet


async def test_words_of_a_phrase_are_adjacent(store: Store) -> None:
    await new_thread(
        store, "connection was refused", "Connection refused!", "refused connection"
    )
    assert await found_set(store, '"connection refused"') == {"Connection refused!"}
    assert len(await found_set(store, "connection refused")) == 3
    assert await found_set(store, '"connection was" refused') == {
        "connection was refused"
    }


async def test_a_prefix(store: Store) -> None:
    await new_thread(
        store,
        "configure it",
        "the configuration",
        "a confetti",
        "app/config.yaml",
        "misconfig",
    )
    assert await found_set(store, "confi*") == {
        "configure it",
        "the configuration",
        "app/config.yaml",
    }
    assert await found_set(store, "app/conf*") == {"app/config.yaml"}
    assert await found_set(store, "configure* it") == {"configure it"}


@pytest.mark.parametrize(
    ("query", "holds", "lacks"),
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
async def test_identifiers_as_typed(
    store: Store, query: str, holds: str, lacks: str
) -> None:
    await new_thread(store, lacks, holds)
    assert (await found_texts(store, query))[:1] == [holds]
    assert await found_set(store, f'"{query}"') == {holds}


async def test_an_identifier_is_found_by_its_parts(store: Store) -> None:
    await new_thread(store, "call getUserName()", "user only")
    assert await found_set(store, "getusername") == {"call getUserName()"}
    assert await found_set(store, "getUser") == {"call getUserName()"}
    assert "call getUserName()" in await found_set(store, "user")


@pytest.mark.parametrize(
    ("query", "holds", "lacks"),
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
async def test_chinese_japanese_korean(
    store: Store, query: str, holds: str, lacks: str
) -> None:
    await new_thread(store, lacks, holds)
    assert (await found_texts(store, query))[:1] == [holds]
    assert lacks not in await found_set(store, f'"{query.rstrip("*")}"')


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
async def test_text_that_is_not_syntax_is_taken_literally(
    store: Store, query: str
) -> None:
    await new_thread(
        store,
        user_message("these words are unbalanced words words"),
        user_message("others"),
    )
    assert await found_set(store, query) == {"these words are unbalanced words words"}


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
    await new_thread(store, "nothing of it", f"said: {query}!")
    assert await found_set(store, query) == {f"said: {query}!"}


@pytest.mark.parametrize(
    "query", ["", " ", '""', "*", '"*"', "!?", "\0", "\ud800", "& | !", "%s ? $1"]
)
async def test_no_query_is_an_error(store: Store, query: str) -> None:
    await new_thread(store, "anything")
    assert await found_set(store, query) == set()


async def test_a_query_of_any_length(store: Store) -> None:
    text = " ".join(f"word{number}" for number in range(3_000))
    await new_thread(store, text, "word1 word2")
    assert await found_set(store, text) == {text}
    assert await found_set(store, f'"{text}"') == {text}
    assert await found_set(store, "数" * 5_000) == set()


async def test_every_role_is_searched(store: Store) -> None:
    calling: Any = calls_message(
        function_call("c", "frobnicate", '{"path": "needle.txt"}')
    )
    parts: Any = {
        "role": "user",
        "content": [{"type": "text", "text": "needle in a part"}],
    }
    system: Any = {"role": "system", "content": "system needle"}
    await new_thread(
        store,
        user_message("user needle"),
        NewMessage(calling),
        tool_result("frobnicate", "needle found"),
        NewMessage(parts),
        NewMessage(system),
    )
    hits = await store.search(SearchQuery("needle"))
    assert sorted((hit.role, hit.tool) for hit in hits) == [
        ("assistant", "frobnicate"),
        ("system", ""),
        ("tool", "frobnicate"),
        ("user", ""),
        ("user", ""),
    ]
    assert [
        hit.role for hit in await store.search(SearchQuery("frobnicate needle.txt"))
    ] == ["assistant"]


async def test_stored_outputs_are_searched_to_their_end(store: Store) -> None:
    thread = await new_thread(store, "hello")
    text = FILLER * 400 + "the needle at the end " + FILLER * 10
    stored = await store.put_output(thread.id, text, call_id="c1", tool="terminal")
    await store.put_output(thread.id, text, call_id="c2", tool="terminal")
    (hit,) = await store.search(SearchQuery("needle"))
    assert (hit.output, hit.message, hit.thread, hit.role, hit.tool) == (
        stored.id,
        None,
        thread.id,
        "tool",
        "terminal",
    )
    assert "the needle at the end" in hit.snippet
    assert await store.search(SearchQuery("dolor", tool="browser")) == []
    (again,) = await store.search(SearchQuery("dolor", tool="terminal"))
    assert again.output == stored.id


async def test_secrets_are_neither_found_nor_shown(store: Store) -> None:
    secret = "ghp_" + "a8Kd02mQpX7zLw4nRt6Yb1Vc9Je3Hu5Gs0Fo"
    message = FILLER * 200 + f"the token {secret} is in the drawer, behind the spoon"
    thread = await new_thread(store, message, "password = hunter2hunter2X9")
    await store.put_output(
        thread.id, f"export GITHUB_TOKEN={secret}\nspoon output", tool="terminal"
    )
    for query in (
        secret,
        f'"{secret}"',
        secret[:12] + "*",
        secret[4:],
        "hunter2hunter2X9",
    ):
        assert await store.search(SearchQuery(query)) == []
    hits = await store.search(SearchQuery("spoon"))
    assert len(hits) == 2
    for hit in hits:
        assert secret not in hit.snippet
        assert "spoon" in hit.snippet
    assert "the token [REDACTED] is in the drawer" in hits[1].snippet


async def test_summaries_and_derived_messages_are_context_not_history(
    store: Store,
) -> None:
    thread = await new_thread(store, "first", "second needle", "third", "fourth")
    await compact_session(store, thread.id, words="a summary of the needle")
    assert await found_set(store, "needle") == {"second needle"}


async def test_a_message_is_found_once_through_compactions(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 8, "needle "))
    for _ in range(3):
        tip = await store.get_compression_tip(thread.id)
        await compact_session(store, tip, tail=3)
        await append_texts(store, thread, "needle more")
    hits = await store.search(SearchQuery("needle", limit=100))
    assert len(hits) == 11
    first = next(hit for hit in hits if hit.snippet == "needle 7")
    assert (first.session, first.thread) == (thread.id, thread.id)


async def test_an_appended_message_is_found_at_once(store: Store) -> None:
    thread = await new_thread(store)
    for number in range(30):
        await append_texts(store, thread, f"needle{number}")
        assert await found_texts(store, f"needle{number}") == [f"needle{number}"]


async def test_a_message_of_another_store_is_found(
    store: Store, url: str, clock: Clock
) -> None:
    thread = await new_thread(store, "a needle")
    other = open_at(url, clock)
    assert await found_texts(other, "needle") == ["a needle"]
    await append_texts(other, thread, "another needle")
    assert await found_set(store, "needle") == {"a needle", "another needle"}
    await other.close()


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


async def test_a_message_of_a_dead_process_is_found(store: Store, url: str) -> None:
    thread = await new_thread(store)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", APPEND_AND_DIE, url, thread.id
    )
    assert await child.wait() == 0
    assert await found_texts(store, "another process") == ["from another process"]


async def test_words_in_different_chunks_of_a_long_message(store: Store) -> None:
    long = "apricot " + FILLER * 300 + " banana " + FILLER * 300 + " cherry"
    await new_thread(
        store, long, "apricot alone", "apricot and banana", "cherry and apricot"
    )
    thread = await new_thread(store, "other")
    await store.put_output(thread.id, long, tool="terminal")
    hits = await store.search(SearchQuery("apricot banana cherry"))
    assert {(hit.message is None, hit.output is None) for hit in hits} == {
        (True, False),
        (False, True),
    }
    assert await found_set(store, "apricot banana cherry") == {long}
    assert await found_set(store, "apricot banana") == {long, "apricot and banana"}
    assert (await found_texts(store, "apricot banana"))[0] == "apricot and banana"
    assert await found_set(store, 'cherry "ipsum banana"') == set()


async def test_a_phrase_at_a_seam(store: Store) -> None:
    text = " ".join(f"word{number} tail{number}" for number in range(2_000))
    await new_thread(store, text)
    for number in range(0, 2_000, 7):
        assert await store.search(
            SearchQuery(f'"word{number} tail{number}"', limit=1)
        ), number


async def test_words_repeated_very_often(store: Store) -> None:
    await new_thread(store, "0 " * 3_000 + "0 needle", "的" * 5_000 + "针")
    assert len(await store.search(SearchQuery('"0 0 needle"'))) == 1
    assert len(await store.search(SearchQuery("的的针"))) == 1


async def test_deleted_threads_are_not_found(store: Store) -> None:
    gone = await new_thread(store, "needle one", FILLER * 300 + "needle two")
    await store.put_output(gone.id, "needle output", tool="terminal")
    await new_thread(store, "needle three")
    assert len(await store.search(SearchQuery("needle"))) == 4
    late = await new_thread(store, "needle never indexed")
    await store.delete_thread(gone.id)
    await store.delete_thread(late.id)
    assert await found_set(store, "needle") == {"needle three"}
    assert len(await store.search(SearchQuery("needle"))) == 1


async def test_roles_and_tools(store: Store) -> None:
    await new_thread(
        store,
        user_message("needle"),
        tool_result("terminal", "needle t"),
        tool_result("Web-Search 2", "needle w"),
    )
    assert await found_set(store, "needle", role="user") == {"needle"}
    assert await found_set(store, "needle", role="tool") == {"needle t", "needle w"}
    assert await found_set(store, "needle", tool="terminal") == {"needle t"}
    assert await found_set(store, "needle", tool="Web-Search 2") == {"needle w"}
    assert await found_set(store, "needle", tool="web-search 2") == set()
    assert await found_set(store, "needle", role="tool_terminal") == set()


async def test_a_name_of_any_length_is_indexed(store: Store) -> None:
    tool = "t" * 5_000
    role = "数" * 3_000
    body: Any = {"role": role, "content": "needle of a strange role"}
    await new_thread(
        store,
        tool_result(tool, "needle of a strange tool"),
        NewMessage(body),
        tenant="X" * 4_000,
    )
    assert await found_set(store, "needle", tool=tool, tenant="X" * 4_000) == {
        "needle of a strange tool"
    }
    assert await found_set(store, "needle", role=role, tenant="X" * 4_000) == {
        "needle of a strange role"
    }


async def test_every_tool_of_a_message_finds_it(store: Store) -> None:
    names = ("read_file", "grep")
    calls = [function_call(name, name) for name in names]
    body: Any = calls_message(*calls, text="needle")
    await new_thread(store, NewMessage(body))
    for name in names:
        assert await found_set(store, "needle", tool=name) == {"needle"}
    assert await found_set(store, "needle", tool="read") == set()


@pytest.mark.parametrize(
    "other", ["beta", "ALPHA", "alpha2", "ａｌｐｈａ", "al_pha", "ſalpha", "'alpha'"]
)
async def test_tenants_do_not_see_each_other(store: Store, other: str) -> None:
    thread = await new_thread(store, "needle of alpha", tenant="alpha")
    await new_thread(store, "needle of the other", tenant=other)
    assert await found_set(store, "needle", tenant="alpha") == {"needle of alpha"}
    assert await found_set(store, "needle", tenant=other) == {"needle of the other"}
    assert await found_set(store, "needle") == set()
    with pytest.raises(UnknownIdError):
        await store.search(SearchQuery("needle", tenant=other, thread=thread.id))
    with pytest.raises(UnknownIdError):
        await store.search(SearchQuery("needle", tenant=other, session=thread.id))


async def test_a_period(store: Store) -> None:
    thread = await new_thread(store)
    await store.append(
        thread.id,
        [user_message(f"needle {day}", created=float(day)) for day in range(1, 10)],
    )
    assert await found_set(store, "needle", since=7) == {
        "needle 7",
        "needle 8",
        "needle 9",
    }
    assert await found_set(store, "needle", until=3) == {"needle 1", "needle 2"}
    assert await found_set(store, "needle", since=4, until=6) == {
        "needle 4",
        "needle 5",
    }
    assert await found_set(store, "needle", since=100) == set()


async def test_a_thread_has_many_names_and_unknown_ones_are_refused(
    store: Store,
) -> None:
    thread = await new_thread(store, *numbered_messages(1, 6, "needle "))
    await new_thread(store, "needle elsewhere")
    tip = (await compact_session(store, thread.id)).session
    for name in (thread.id, tip.id):
        assert await found_set(store, "needle", thread=name) == {
            f"needle {number}" for number in range(1, 7)
        }
    with pytest.raises(UnknownIdError):
        await store.search(SearchQuery("needle", thread="nobody"))


async def test_a_search_in_a_session_finds_its_own_messages(
    store: Store, clock: Clock
) -> None:
    thread = await new_thread(store, *numbered_messages(1, 6, "needle "))
    await store.put_output(thread.id, "needle output", tool="terminal")
    clock.now += 10
    tip = (await compact_session(store, thread.id, head=1, tail=2)).session
    await append_texts(store, thread, "needle 7")
    assert await found_set(store, "needle", session=thread.id) == {
        f"needle {n}" for n in range(1, 7)
    }
    assert await found_set(store, "needle", session=tip.id) == {
        "needle 1",
        "needle 5",
        "needle 6",
        "needle 7",
    }
    hits = await store.search(SearchQuery("needle", session=tip.id))
    assert {hit.session for hit in hits} == {tip.id}
    assert len(await store.search(SearchQuery("output", session=thread.id))) == 1
    assert await store.search(SearchQuery("output", session=tip.id)) == []


async def test_a_search_in_a_branch_finds_shared_messages(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 3, "needle "))
    stored = await store.put_output(thread.id, "needle haystack", tool="terminal")
    (cited,) = await store.append(
        thread.id, [tool_result("terminal", f"needle cites {stored.id}")]
    )
    branch = await store.branch(thread.id, cited.id)
    await store.put_output(
        thread.id, "needle haystack after the branch", tool="terminal"
    )
    await append_texts(store, thread, "needle of the trunk")
    await append_texts(store, branch, "needle of the branch")
    twig = await store.branch(branch.id, (await store.messages(branch.id))[1].id)
    shared = {"needle 1", "needle 2", "needle 3", f"needle cites {stored.id}"}

    async def check_branches() -> None:
        assert await found_set(store, "needle", thread=branch.id) == {
            *shared,
            "needle of the branch",
        }
        assert await found_set(store, "needle", thread=twig.id) == {
            "needle 1",
            "needle 2",
        }
        (hit,) = await store.search(SearchQuery("haystack", thread=branch.id))
        assert hit.output == stored.id

    assert await found_set(store, "needle", thread=thread.id) == {
        *shared,
        "needle of the trunk",
    }
    await check_branches()
    assert len(await found_texts(store, "needle")) == 6
    await store.delete_thread(thread.id)
    await check_branches()
    assert {hit.thread for hit in await store.search(SearchQuery("needle"))} <= {
        branch.id,
        twig.id,
    }


async def test_hits_after_an_undo_name_their_current_session(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 5, "needle "))
    await compact_session(store, thread.id)
    await append_texts(store, thread, "needle 6")
    await store.undo(thread.id)
    hits = await store.search(SearchQuery("needle", session=thread.id))
    assert len(hits) == 6
    assert {hit.session for hit in await store.search(SearchQuery("needle"))} == {
        thread.id
    }


async def test_the_whole_identifier_comes_first(store: Store) -> None:
    await new_thread(
        store, "main.py is it", "src/main.py.bak main py", "main, then py", "main/py"
    )
    assert (await found_texts(store, "main.py"))[0] == "main.py is it"
    assert (await found_texts(store, "main.py"))[-1] == "main, then py"


async def test_more_and_denser_is_better(store: Store) -> None:
    long = FILLER * 20
    await new_thread(
        store, f"needle needle needle {long}", f"needle {long}", "needle", "other"
    )
    assert await found_texts(store, "needle") == [
        "needle",
        f"needle needle needle {long}",
        f"needle {long}",
    ]


async def test_the_rarer_word_weighs_more(store: Store) -> None:
    common = [user_message(f"common {number}") for number in range(60)]
    await new_thread(
        store,
        *user_messages(
            "zebra zebra zebra common pad", "zebra common common common pad"
        ),
        *common,
    )
    assert (await found_texts(store, "common zebra"))[
        0
    ] == "zebra zebra zebra common pad"


async def test_of_equals_the_newest(store: Store) -> None:
    thread = await new_thread(store)
    for day in (3, 1, 2):
        await store.append(
            thread.id, [user_message(f"needle {day}", created=float(day))]
        )
    assert await found_texts(store, "needle") == ["needle 3", "needle 2", "needle 1"]


async def test_paging_shows_everything_once(store: Store) -> None:
    count = MATCHES_PER_BATCH * 2 + 50
    await new_thread(
        store,
        *(
            user_message("needle " + "pad " * (number % 7) + str(number))
            for number in range(count)
        ),
    )
    everything = await store.search(SearchQuery("needle", limit=10_000))
    assert len(everything) == count
    pages: list[SearchHit] = []
    for offset in range(0, count + 200, 200):
        pages += await store.search(SearchQuery("needle", limit=200, offset=offset))
    assert pages == everything
    assert await store.search(SearchQuery("needle", limit=0)) == []
    assert await store.search(SearchQuery("needle", limit=-1, offset=-1)) == []


async def test_everything_is_found_in_an_index_with_many_chunks(
    store: Store, kind: str
) -> None:
    """As if millions of chunks were between the stored ones."""
    jump = {
        "sqlite": "UPDATE sqlite_sequence SET seq = ? WHERE name = 'pieces'",
        "postgresql": "SELECT setval(pg_get_serial_sequence('pieces', 'id'), ?)",
    }
    thread = await new_thread(store)
    ids = (
        1,
        500,
        1_500,
        9_000,
        20_000,
        70_000,
        200_000,
        1_500_000,
        4_000_000,
        900_000_000,
    )
    for number, key in enumerate(ids):
        await store.append(
            thread.id, [user_message(f"needle {number}", created=float(number))]
        )
        await found_texts(store, "needle")
        with transaction(store) as tx:
            tx.run(jump[kind], (key,))
    assert await found_texts(store, "needle") == [
        f"needle {number}" for number in range(9, -1, -1)
    ]
    assert await found_texts(store, "need*", offset=8) == ["needle 1", "needle 0"]
    assert await found_texts(store, "needle", since=2, until=4) == [
        "needle 3",
        "needle 2",
    ]
    assert await found_texts(store, "needle", until=1) == ["needle 0"]


async def test_a_hit_names_its_place(store: Store, clock: Clock) -> None:
    thread = await new_thread(store, "one", "two needle")
    (hit,) = await store.search(SearchQuery("needle"))
    message = await store.message(hit.message or 0)
    assert message.body["content"] == hit.snippet == "two needle"
    assert (hit.thread, hit.session, hit.created, hit.role) == (
        thread.id,
        message.session,
        clock.now,
        "user",
    )
    assert hit.output is None
    assert hit.score > 0


async def test_the_snippet_shows_the_match(store: Store) -> None:
    words = [f"needle{number}" for number in range(0, 900, 50)]
    text = "".join(
        FILLER + (f" needle{number} " if number % 50 == 0 else "")
        for number in range(900)
    )
    thread = await new_thread(store, text)
    await store.put_output(thread.id, text, tool="terminal")
    for word in words:
        hits = await store.search(SearchQuery(word))
        assert len(hits) == 2
        assert all(word in hit.snippet for hit in hits)


async def test_texts_with_every_word_hide_no_better_answer(store: Store) -> None:
    question = "Which database do we use for staging?"
    fact = "The staging database is PostgreSQL 16 on the harbour machine."
    asked = [
        NewMessage(
            {"role": "assistant", "content": f"Job {n}: {question} I look it up."}
        )
        for n in range(30)
    ]
    thread = await new_thread(store, *user_messages(fact), *asked)
    await store.put_output(thread.id, f"{question} {question}", tool="terminal")
    exact = await store.search(SearchQuery(question, limit=100))
    assert len(exact) == 31
    pages = [
        await store.find(SearchQuery(question, limit=8, offset=start))
        for start in range(0, 40, 8)
    ]
    assert fact in [hit.snippet for hit in pages[0].hits]
    assert [page.has_more for page in pages] == [True] * 3 + [False] * 2
    shown = [(hit.message, hit.output) for page in pages for hit in page.hits]
    assert len(shown) == len(set(shown))
    assert set(shown) >= {(hit.message, hit.output) for hit in exact}
    assert not any(page.is_approximate for page in pages)


async def test_the_closest_texts_come_in_pages_too(store: Store) -> None:
    own = (
        "anna berlin copper",
        "bert dublin cedar",
        "carl lisbon marble",
        "dora madrid velvet",
        "emil oslo granite",
        "frida prague linen",
        "gustav vienna bronze",
    )
    facts = [
        f"{words}: the harbour crane was painted. {words} {words}" for words in own
    ]
    await new_thread(store, *user_messages(*facts), *numbered_messages(1, 90))
    question = "Was the harbour crane painted purple?"
    first, second = [
        await store.find(SearchQuery(question, limit=5, offset=start))
        for start in (0, 5)
    ]
    assert (len(first.hits), first.has_more, first.is_approximate) == (5, True, True)
    assert second.hits
    assert not {hit.message for hit in first.hits} & {
        hit.message for hit in second.hits
    }


async def test_a_phrase_a_prefix_and_a_path_are_meant_as_typed(store: Store) -> None:
    await new_thread(store, "The harbour crane was painted red.", "A crane is tall.")
    for text in ('"crane was tall"', "harbour crane blu*"):
        assert (await store.find(SearchQuery(text))).hits == ()
    assert (
        await store.find(SearchQuery("which crane is tall", path="src/a.py"))
    ).hits == ()


async def neighbours_of(store: Store, text: str) -> list[tuple[str, str]]:
    """Return the neighbours of each hit."""
    hits = (await store.find(SearchQuery(text))).hits
    return [(str(hit.before or ""), str(hit.after or "")) for hit in hits]


async def test_a_hit_comes_with_its_neighbours(store: Store) -> None:
    await new_thread(store, "alpha", "bravo", "charlie")
    await new_thread(store, "other")
    assert await neighbours_of(store, "alpha") == [("", "user: bravo")]
    assert await neighbours_of(store, "bravo") == [("user: alpha", "user: charlie")]
    assert await neighbours_of(store, "charlie") == [("user: bravo", "")]
    assert await neighbours_of(store, "other") == [("", "")]
    assert await neighbours_of(store, "nothing") == []


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("which one?", "The other one over there."),
        ("what did you do then?", "Then I did it."),
        ("他们在哪里开会？", "他们在北京开会"),
    ],
)
async def test_a_plain_question_finds_the_texts_with_its_words(
    store: Store, question: str, answer: str
) -> None:
    await new_thread(
        store,
        *user_messages(
            "I live in Lisbon.", "The other one over there.", "Then I did it."
        ),
        *user_messages("他们在北京开会"),
    )
    page = await store.find(SearchQuery(question))
    assert answer in [hit.snippet for hit in page.hits]


async def test_a_damaged_neighbour_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = open_store(path)
    await new_thread(store, "alpha", "bravo", "charlie")
    assert await neighbours_of(store, "bravo") == [("user: alpha", "user: charlie")]
    await store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE messages SET body = CAST(replace(body, 'alpha\"}', 'alph') AS BLOB)"
        )
    store = open_store(path)
    assert await neighbours_of(store, "bravo") == [("", "user: charlie")]
    await store.close()


async def test_a_tool_result_in_a_user_message_is_not_the_users_text(
    store: Store,
) -> None:
    call: Any = {
        "role": "assistant",
        "content": [
            {
                "type": "tool_use",
                "id": "c",
                "name": "terminal",
                "input": {"command": "pytest"},
            }
        ],
    }
    told: Any = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": "12 passed"}
        ],
    }
    thread = await new_thread(
        store,
        user_message("run them"),
        NewMessage(call),
        NewMessage(told),
        user_message("thanks"),
    )
    assert await neighbours_of(store, "thanks") == [("user (terminal): 12 passed", "")]
    ((before, after),) = await neighbours_of(store, "passed")
    assert (before[:19], after) == ("assistant: terminal", "user: thanks")
    await store.append(
        thread.id, [tool_result("grep", "3 matches"), user_message("bye")]
    )
    assert await neighbours_of(store, "bye") == [("tool (grep): 3 matches", "")]


async def test_a_neighbour_is_short_and_holds_no_secret(store: Store) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    await new_thread(
        store, f"the key is {token}", "needle", f"first\n\nline {FILLER * 9}"
    )
    ((before, after),) = await neighbours_of(store, "needle")
    assert before.startswith("user: the key is ")
    assert token[:12] not in before
    assert after.startswith("user: first line lorem")
    assert after.endswith("…")
    assert len(after) < 110


async def test_searches_and_empty_messages_are_not_neighbours(store: Store) -> None:
    await new_thread(
        store,
        tool_result("recall", "the old needle"),
        user_message("spoon"),
        NewMessage({"role": "assistant"}),
    )
    assert await neighbours_of(store, "spoon") == [("", "")]


async def test_a_passage_of_two_messages_shows_neither_twice(store: Store) -> None:
    thread = await new_thread(store, "ok", "look at the ok button", "fine")
    ids = [message.id for message in await store.messages(thread.id)]
    ((before, after),) = await store.neighbours([(ids[1], "look at the ok button")])
    assert (str(before), str(after)) == ("user: ok", "user: fine"), (
        "a word of its own is no neighbour"
    )
    ((_, after),) = await store.neighbours([(ids[1], "look at the ok button\n→ fine")])
    assert after is None
    assert await store.neighbours([(None, "an output")]) == [(None, None)]


async def test_neighbours_are_found_across_a_compaction(store: Store) -> None:
    thread = await numbered_thread(store, 4)
    ids = [message.id for message in await store.messages(thread.id)]
    shorter = user_message("short", kind="derived", origin=ids[3])
    await store.continue_session(
        thread.id,
        [ids[0], user_message("summary", kind="summary"), shorter],
        seen_count=4,
    )
    await store.append(thread.id, numbered_messages(5, 6))
    assert await neighbours_of(store, "m4") == [("user: m3", "user: m5")]
    assert await neighbours_of(store, "m5") == [("user: m4", "user: m6")]
    assert await neighbours_of(store, "m1") == [("", "user: m2")]
    await store.undo(thread.id)
    assert await neighbours_of(store, "m5") == [("user: m4", "user: m6")]


async def test_a_branch_keeps_the_neighbours_it_shares(store: Store) -> None:
    thread = await numbered_thread(store, 4)
    await compact_session(store, thread.id, tail=1)
    await store.append(thread.id, numbered_messages(5, 6))
    history = await store.history(thread.id)
    branch = await store.branch(thread.id, history[4].id)
    await append_texts(store, branch, "twig")
    assert await neighbours_of(store, "twig") == [("user: m5", "")]
    assert await neighbours_of(store, "m5") == [("user: m4", "user: m6")]
    await store.delete_thread(thread.id)
    assert await neighbours_of(store, "m5") == [("user: m4", "user: twig")]
    assert await neighbours_of(store, "m2") == [("user: m1", "user: m3")]
