"""SQLite and PostgreSQL find the same messages in the same order, for any content and any query."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everthread.core.secrets.redaction import redact
from everthread.store.records import NewMessage, NewSession
from everthread.store.search.index_query import parse_query
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.conftest import BACKENDS, close_sound, open_at
from tests.store.messages import new_user_message, tool_result

FRAGMENTS = [
    "error",
    "Error:",
    "the",
    "of",
    "a",
    "x",
    "connection refused",
    "src/app/main.py",
    "main.py",
    "getUserName",
    "user",
    "user_name",
    "v1.2.3",
    "--dry-run",
    "3f2a9c1e7b0d",
    "don't",
    "naïve",
    "café",
    "CAFE\u0301",
    "straße",
    "ﬁle",
    "Ⅷ",
    "数据库",
    "数据",
    "库",
    "连接失败",
    "的",
    "，",
    "検索",
    "ｶﾀｶﾅ",
    "ひらがな",
    "검색",
    "한국어",
    "ไทย",
    "العربية",
    "हिन्दी",
    "😀",
    "👩‍💻",
    "\u200b",
    "\u0301",
    "１２３",
    "ſ",
    "ẞ",
    "İstanbul",
    "Σίσυφος",
    "x\u0327\u0301",
    "𝕬𝖇",
    "꙰",
    "AND",
    "OR",
    "NOT",
    "NEAR",
    "NEAR(",
    ")",
    "(",
    "*",
    "err*",
    "us*",
    "数*",
    '"',
    '""',
    "'",
    "\\",
    "\\'",
    ":",
    ":*",
    "&",
    "|",
    "!",
    "<->",
    "<2>",
    "-",
    "+",
    "^",
    "{",
    "}",
    "%",
    "_",
    "?",
    "$1",
    "%s",
    ";",
    "--",
    "/*",
    "\0",
    "\n",
    "\t",
    "terms:",
    "filters:",
    "rowid",
    "tenant_default",
    "role_user",
    "_",
    "__",
    "_41_",
    "0",
    "1",
    "0 0 0",
    "\ud800",
]
QUERIES = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map(" ".join),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3).map(
        lambda some: f'"{" ".join(some)}"'
    ),
    st.text(max_size=12),
)
TEXTS = st.lists(
    st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), min_size=1, max_size=12
).map(" ".join)
CHECKS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Both = tuple[Store, Store]


@pytest.fixture
def both(new_url: Callable[..., str], clock: SteppedClock) -> Iterator[Both]:
    """An empty store on each database."""
    first, second = (open_at(new_url(kind), clock) for kind in BACKENDS)
    yield first, second
    asyncio.run(close_sound(first))
    asyncio.run(close_sound(second))


def corpus() -> list[NewMessage]:
    """Messages of all kinds of fragments; some long enough to be cut, some with one word over and over."""
    make = random.Random(11)  # noqa: S311 - a corpus, always the same
    texts = [
        make.choice(" \n-").join(make.choices(FRAGMENTS, k=make.randint(1, 25))) for _ in range(150)
    ]
    texts += [" ".join(make.choices(FRAGMENTS, k=3_000)) for _ in range(3)] + [
        "0 " * 700 + "error",
        "的" * 600 + "库",
    ]
    events = (f"event {number}" for number in range(len(texts)))
    made = [new_user_message(text, event=event) for text, event in zip(texts, events, strict=True)]
    return [
        *made,
        tool_result("terminal", "error in main.py", event="a"),
        tool_result("grep", "数据 of main.py", event="b"),
    ]


async def ask(store: Store, query: SearchQuery) -> list[tuple[int | None, str, float]]:
    return [(hit.message, hit.snippet, hit.score) for hit in await store.search(query)]


async def both_answer(both: Both, query: SearchQuery) -> list[tuple[int | None, str, float]]:
    first, second = [await ask(store, query) for store in both]
    assert first == second
    return first


async def fill_both(both: Both, messages: list[NewMessage]) -> None:
    for store in both:
        await store.create_session(NewSession(id="thread"))
        await store.append("thread", messages)


def test_any_query_finds_the_same(both: Both) -> None:
    asyncio.run(fill_both(both, corpus()))

    @CHECKS
    @given(QUERIES)
    @example("error OR user")
    @example('"connection refused" main.py')
    def check(text: str) -> None:
        everything = asyncio.run(both_answer(both, SearchQuery(text, limit=1_000)))
        assert (
            asyncio.run(both_answer(both, SearchQuery(text, limit=5, offset=2))) == everything[2:7]
        )

    check()


async def test_word_repeated_any_number_of_times(both: Both) -> None:
    await fill_both(both, [new_user_message("needle " * count) for count in range(1, 256)])
    hits = await both_answer(both, SearchQuery("needle", limit=1_000))
    assert len(hits) == 255


def test_any_query_within_bounds_finds_the_same(both: Both) -> None:
    asyncio.run(fill_both(both, corpus()))

    @CHECKS
    @given(
        QUERIES,
        st.sampled_from(["user", "tool", None]),
        st.sampled_from(["terminal", "grep", None]),
    )
    def check(text: str, role: str | None, tool: str | None) -> None:
        query = SearchQuery(
            text,
            role=role,
            tool=tool,
            thread="thread",
            session="thread",
            since=0.0,
        )
        within = {hit[0] for hit in asyncio.run(both_answer(both, query))}
        assert within <= {
            hit[0] for hit in asyncio.run(both_answer(both, SearchQuery(text, limit=1_000)))
        }

    check()


def test_any_text_is_found_by_its_own_words(both: Both) -> None:
    asyncio.run(fill_both(both, []))

    @CHECKS
    @given(TEXTS, st.data())
    def check(text: str, data: st.DataObject) -> None:
        words = redact(text).split()
        first = data.draw(st.integers(0, max(len(words) - 1, 0)))
        part = " ".join(words[first : first + data.draw(st.integers(1, 4))])
        ids = [
            asyncio.run(store.append("thread", [new_user_message(text)]))[0].id for store in both
        ]
        assert ids[0] == ids[1]
        hits = asyncio.run(both_answer(both, SearchQuery(part, limit=1_000)))
        assert not parse_query(part).variants or ids[0] in {hit[0] for hit in hits}

    check()
