"""Search and read threads: exact, bounded, redacted, and only where allowed."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.search.search_results import (
    SearchPage,
    format_page,
    format_passage,
)
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.thread.lookup import pattern_matcher
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.lookup.word_search import EXCERPT_CHARS
from tests.chat_messages import calls_message, function_call, result_message, user_message
from tests.conversation.conversation_setup import make_text
from tests.thread.stored_threads import append, look_up

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


async def store_thread(store: Store, *texts: str, tenant: str = "default") -> str:
    """Store a thread in which each of these messages of the user gets an answer."""
    session = await store.create_session(NewSession(tenant=tenant))
    answer = {
        "role": "assistant",
        "content": "Noted.",
    }
    for text in texts:
        await append(store, session.id, user_message(text), answer)
    return session.thread


async def search_all_pages(lookup: StoreLookup, query: str, **options: Any) -> list[Any]:
    """Return the excerpts of all pages of a search."""
    excerpts: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        page: SearchPage = await lookup.search(query, offset=offset, **options)
        assert len(page.excerpts) <= options.get("limit", 8)
        assert all(len(excerpt.text) <= EXCERPT_CHARS + 2 for excerpt in page.excerpts)
        excerpts += page.excerpts
        assert page.next is None or page.next > offset
        offset = page.next
    return excerpts


@pytest.mark.parametrize(
    ("mode", "query"),
    [
        ("text", "invoice"),
        ("regex", r"^Invoice \d+:"),
    ],
)
async def test_pages_contain_every_match_once(store: Store, mode: Any, query: str) -> None:
    thread = await store_thread(
        store, *(f"Invoice {n}: {make_text(200, f'item {n}')}" for n in range(110))
    )
    excerpts = await search_all_pages(
        look_up(store, thread),
        query,
        mode=mode,
        role="user",
        limit=20,
    )
    assert sorted(excerpt.turn for excerpt in excerpts) == list(range(1, 111))
    assert len({excerpt.id for excerpt in excerpts}) == 110
    for excerpt in excerpts[:5]:
        passage = await look_up(store, thread).read(excerpt.id)
        assert excerpt.text.strip("…") in passage.text
        assert passage.turn == excerpt.turn
        assert passage.role == "user"
        assert passage.thread == thread


async def test_every_search_returns_the_same_turn_number(store: Store) -> None:
    """Text that a client injects does not count as a turn, and a branch continues its parent's numbers."""
    reminder = "<system-reminder>\nThe date has changed.\n</system-reminder>"
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": "3 files",
    }
    thread = await store_thread(store, "Good morning.", "We measure the office.")
    results: Any = {
        "role": "user",
        "content": [result],
    }
    await append(store, thread, user_message(reminder), results)
    last_message = (await store.list_messages(thread))[-1].id
    branch = await store.branch(thread, last_message, new=NewSession(kind="branch"))
    for searched_thread in (thread, branch.id):
        walnut = user_message("The walnut shelf is for the harbour office.")
        [message] = await append(store, searched_thread, walnut)
        lookup = look_up(store, searched_thread)
        pages = [
            await lookup.search("where is the walnut shelf for?"),
            await lookup.search("walnut"),
            await lookup.search("walnut", mode="regex"),
        ]
        turns = [
            excerpt.turn
            for page in pages
            for excerpt in page.excerpts
            if excerpt.id == f"message:{message.id}"
        ]
        assert turns == [3, 3, 3]
        assert (await lookup.read(str(message.id))).turn == 3


async def test_a_question_finds_the_users_message_before_tool_results(
    store: Store,
) -> None:
    """Tool results repeat the words of a task more often than the task itself does."""
    rule = "The theme tests go to coding-agent/test, I run them with npx."
    thread = await store_thread(store, rule, "Please continue.")
    call = function_call("c", "terminal", '{"command": "cat \\"a\\""}')
    for number in range(12):
        text = f"where should the theme test go: test theme tests go where should, line {number}"
        await append(
            store,
            thread,
            calls_message(call),
            result_message("c", text),
        )
    lookup = look_up(store, thread)
    page = await lookup.search("where should the theme test go")
    texts = [excerpt.text for excerpt in page.excerpts]
    better_excerpts = page.excerpts[: texts.index(rule)]
    assert sum(excerpt.role == "tool" for excerpt in better_excerpts) <= 1, (
        "only one of twelve similar results comes before the user's message"
    )
    assert not page.is_approximate
    excerpt = next(excerpt for excerpt in page.excerpts if excerpt.text == rule)
    assert excerpt.before == ""
    assert excerpt.after == "assistant: Noted."
    (match,) = (await lookup.search("^Please", mode="regex")).excerpts
    assert match.before == "assistant: Noted."
    assert match.after == "assistant: Noted."
    later = await lookup.search("where should the theme test go", offset=8)
    assert not {excerpt.id for excerpt in later.excerpts} & {
        excerpt.id for excerpt in page.excerpts
    }
    (excerpt_of_call,) = (await lookup.search('"cat"', limit=1)).excerpts
    assert 'cat "a"' in excerpt_of_call.text, "arguments are shown without escapes"


async def test_shows_a_repeated_text_once(
    store: Store,
) -> None:
    """Clients repeat instructions in each turn; one excerpt of them is enough."""
    prompt = "Solve the issue below. The release notes and the release branch tell how a release is made. Issue {}."
    texts = [prompt.format(number) for number in range(30)]
    thread = await store_thread(
        store, *texts[:15], "We ship on Thursdays, never on Fridays.", *texts[15:]
    )
    page = await look_up(store, thread).search("on which days do we ship a release")
    assert any("Thursdays" in excerpt.text for excerpt in page.excerpts)
    assert sum("Solve the issue" in excerpt.text for excerpt in page.excerpts) == 1


async def test_finds_stored_outputs_but_not_earlier_searches(store: Store) -> None:
    thread = await store_thread(store, "Look at the pump.")
    call = function_call("c1", "recall", '{"query": "E-7731"}')
    result = result_message("c1", "E-7731 was found")
    await append(store, thread, calls_message(call, text=""), result)
    stored_output = await store.outputs.put_output(
        thread,
        f"{make_text(9_000)} code E-7731 {make_text(9_000)}",
        tool="dump",
        call_id="c0",
    )
    for mode in ("text", "regex"):
        excerpts = await search_all_pages(look_up(store, thread), "E-7731", mode=mode)
        assert [(excerpt.id, excerpt.tool) for excerpt in excerpts] == [(stored_output.id, "dump")]
        assert "code E-7731 " in excerpts[0].text


async def test_a_secret_is_neither_shown_nor_found(store: Store) -> None:
    """A search for a secret's own text must not confirm that it was stored."""
    thread = await store_thread(store, f"Deploy with GITHUB_TOKEN={TOKEN} to staging.")
    lookup = look_up(store, thread)
    for query, mode in (
        ("staging", "text"),
        (r"to \w+\.", "regex"),
    ):
        excerpts = await search_all_pages(lookup, query, mode=mode)
        assert "staging" in excerpts[0].text
        assert TOKEN not in excerpts[0].text
    assert not await search_all_pages(lookup, "ghp_[A-Za-z0-9]{10}", mode="regex")
    for offset in range(0, 60, 7):
        assert TOKEN[4:] not in (await lookup.read("1", offset=offset)).text


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(?:a{9999}){9999}", "(", "", "x" * 1_001, "((a{1,99}){1,99}){99}"],
)
async def test_a_hostile_pattern_is_refused_in_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """A model writes the pattern, so it must not be able to block the process."""
    monkeypatch.setattr(pattern_matcher, "PATTERN_TIMEOUT_SECONDS", 0.2)

    thread = await store_thread(store, "a" * 40_000 + "!")
    with pytest.raises(InputError):
        await look_up(store, thread).search(pattern, mode="regex")


async def test_searches_other_threads_only_if_allowed(
    store: Store,
) -> None:
    thread = await store_thread(store, "Here.")
    other = await store_thread(store, "The vault is behind the mirror.")
    foreign = await store_thread(store, "The vault is in the cellar.", tenant="rival")
    foreign_output = await store.outputs.put_output(foreign, "vault number 9", tool="dump")
    other_message = (await store.load_history(other))[0].id
    foreign_message = (await store.load_history(foreign))[0].id
    thread_lookup = look_up(store, thread)
    tenant_lookup = look_up(store, thread, reach="all")
    for mode in ("text", "regex"):
        assert not await search_all_pages(thread_lookup, "vault", mode=mode)
        assert [
            excerpt.thread
            for excerpt in await search_all_pages(tenant_lookup, "vault", mode=mode, scope="all")
        ] == [other]
    with pytest.raises(InputError):
        await thread_lookup.search("vault", scope="all")
    assert (await tenant_lookup.read(f"message:{other_message}")).thread == other
    for lookup, item_id in (
        (thread_lookup, other_message),
        (thread_lookup, foreign_message),
        (tenant_lookup, foreign_message),
        (thread_lookup, foreign_output.id),
        (tenant_lookup, foreign_output.id),
    ):
        with pytest.raises(UnknownIdError):
            await lookup.read(str(item_id))
    threadless_lookup = look_up(store, None)
    with pytest.raises(InputError):
        await threadless_lookup.search("vault")
    assert len(await search_all_pages(threadless_lookup, "vault", scope="all")) == 1


async def test_an_empty_result_advises_against_repeating_the_search(
    store: Store,
) -> None:
    """Otherwise models try the same words again and again."""
    thread = await store_thread(store, "Hello there.")
    lookup = look_up(store, thread)
    page = await lookup.search("zeppelin")
    assert "Do not repeat this search." in format_page(
        page, "zeppelin", tool="recall", searched_place="this thread"
    )
    past_end = format_passage(await lookup.read("1", offset=10_000), tool="recall")
    assert "That was all of it" in past_end
