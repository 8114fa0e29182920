"""Everything that was said is found again: by words, by pattern, by id; exact, bounded, redacted, in its own thread."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.search.search_results import (
    SearchPage,
    format_page,
    format_passage,
)
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from everthread.thread.lookup import pattern_matcher
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.lookup.word_search import EXCERPT_CHARS
from everthread.thread.options import RecallOptions
from tests.chat_messages import calls_message, function_call, result_message
from tests.conversation.conversation_setup import make_text

QUICK: Any = {"background": False, "recall": RecallOptions(enabled=False)}
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


async def store_thread(store: Store, *texts: str, tenant: str = "default") -> str:
    """A thread in which the user says each of these and gets an answer."""
    session = await store.create_session(NewSession(tenant=tenant))
    for text in texts:
        said: list[Any] = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "Noted."},
        ]
        await store.append(session.id, [NewMessage(body) for body in said])
    return session.thread


async def every_page(lookup: StoreLookup, query: str, **how: Any) -> list[Any]:
    found: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        page: SearchPage = await lookup.search(query, offset=offset, **how)
        assert len(page.excerpts) <= how.get("limit", 8)
        assert all(len(place.text) <= EXCERPT_CHARS + 2 for place in page.excerpts)
        found += page.excerpts
        assert page.next is None or page.next > offset
        offset = page.next
    return found


@pytest.mark.parametrize(
    ("mode", "query"), [("text", "invoice"), ("regex", r"^Invoice \d+:")]
)
async def test_every_place_is_found_once_page_by_page(
    store: Store, mode: Any, query: str
) -> None:
    conversation = await store_thread(
        store, *(f"Invoice {n}: {make_text(200, f'item {n}')}" for n in range(110))
    )
    found = await every_page(
        StoreLookup(store, "default", conversation),
        query,
        mode=mode,
        role="user",
        limit=20,
    )
    assert sorted(place.turn for place in found) == list(range(1, 111))
    assert len({place.id for place in found}) == 110
    for place in found[:5]:
        passage = await StoreLookup(store, "default", conversation).read(place.id)
        assert place.text.strip("…") in passage.text
        assert passage.turn == place.turn
        assert passage.role == "user"
        assert passage.thread == conversation


async def test_a_message_has_one_turn_number_however_it_is_found(
    store: Store,
) -> None:
    """Text that a client injects does not count as a turn, and a branch continues its parent's numbers."""
    injected: list[Any] = [
        {
            "role": "user",
            "content": "<system-reminder>\nThe date has changed.\n</system-reminder>",
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "3 files"}
            ],
        },
    ]
    walnut: Any = {
        "role": "user",
        "content": "The walnut shelf is for the harbour office.",
    }

    async def numbers(store: Store, conversation: str) -> set[int | None]:
        lookup = StoreLookup(store, "default", conversation)
        pages = [
            await lookup.search(query)
            for query in ("where is the walnut shelf for?", "walnut")
        ]
        pages.append(await lookup.search("walnut", mode="regex"))
        found = {
            place.id: place.turn
            for page in pages
            for place in page.excerpts
            if "walnut" in place.text
        }
        turns = [
            place.turn
            for page in pages
            for place in page.excerpts
            if "walnut" in place.text
        ]
        return {*turns, *[(await lookup.read(place)).turn for place in found]}

    conversation = await store_thread(store, "Good morning.", "We measure the office.")
    await store.append(conversation, [NewMessage(message) for message in injected])
    left = (await store.messages(conversation))[-1].id
    branch = await store.branch(conversation, left, new=NewSession(kind="branch"))
    for one in (conversation, branch.id):
        await store.append(one, [NewMessage(walnut)])
        assert await numbers(store, one) == {3}


async def test_a_question_finds_what_the_user_said_though_tools_hold_its_words(
    store: Store,
) -> None:
    rule = "The theme tests go to coding-agent/test, I run them with npx."
    conversation = await store_thread(store, rule, "Please continue.")
    call = function_call("c", "terminal", '{"command": "cat \\"a\\""}')
    for number in range(12):
        text = f"where should the theme test go: test theme tests go where should, line {number}"
        said: list[Any] = [
            calls_message(call),
            result_message("c", text),
        ]
        await store.append(conversation, [NewMessage(body) for body in said])
    lookup = StoreLookup(store, "default", conversation)
    found = await lookup.search("where should the theme test go")
    texts = [place.text for place in found.excerpts]
    before = found.excerpts[: texts.index(rule)]
    assert sum(place.role == "tool" for place in before) <= 1, (
        "of twelve results alike only one comes before what the user said"
    )
    assert not found.is_approximate
    place = next(place for place in found.excerpts if place.text == rule)
    assert place.before == ""
    assert place.after == "assistant: Noted."
    (again,) = (await lookup.search("^Please", mode="regex")).excerpts
    assert again.before == "assistant: Noted."
    assert again.after == "assistant: Noted."
    later = await lookup.search("where should the theme test go", offset=8)
    assert not {place.id for place in later.excerpts} & {
        place.id for place in found.excerpts
    }
    (shown,) = (await lookup.search('"cat"', limit=1)).excerpts
    assert 'cat "a"' in shown.text, "arguments are shown as they were meant"


async def test_a_text_that_is_sent_again_and_again_takes_one_place_of_a_question(
    store: Store,
) -> None:
    prompt = "Solve the issue below. The release notes and the release branch tell how a release is made. Issue {}."
    texts = [prompt.format(number) for number in range(30)]
    conversation = await store_thread(
        store, *texts[:15], "We ship on Thursdays, never on Fridays.", *texts[15:]
    )
    found = await StoreLookup(store, "default", conversation).search(
        "on which days do we ship a release"
    )
    assert any("Thursdays" in place.text for place in found.excerpts)
    assert sum("Solve the issue" in place.text for place in found.excerpts) == 1


async def test_stored_outputs_are_found_and_searches_are_not(store: Store) -> None:
    conversation = await store_thread(store, "Look at the pump.")
    bodies: list[Any] = [
        calls_message(function_call("c1", "recall", '{"query": "E-7731"}'), text=""),
        result_message("c1", "E-7731 was found"),
    ]
    await store.append(conversation, [NewMessage(body) for body in bodies])
    kept = await store.put_output(
        conversation,
        f"{make_text(9_000)} code E-7731 {make_text(9_000)}",
        tool="dump",
        call_id="c0",
    )
    for mode in ("text", "regex"):
        found = await every_page(
            StoreLookup(store, "default", conversation), "E-7731", mode=mode
        )
        assert [(place.id, place.tool) for place in found] == [(kept.id, "dump")]
        assert "code E-7731 " in found[0].text


async def test_a_secret_is_neither_shown_nor_found(store: Store) -> None:
    conversation = await store_thread(
        store, f"Deploy with GITHUB_TOKEN={TOKEN} to staging."
    )
    lookup = StoreLookup(store, "default", conversation)
    for query, mode in (("staging", "text"), (r"to \w+\.", "regex")):
        found = await every_page(lookup, query, mode=mode)
        assert "staging" in found[0].text
        assert TOKEN not in found[0].text
    assert not await every_page(lookup, "ghp_[A-Za-z0-9]{10}", mode="regex")
    for offset in range(0, 60, 7):
        assert TOKEN[4:] not in (await lookup.read("1", offset=offset)).text


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(?:a{9999}){9999}", "(", "", "x" * 1_001, "((a{1,99}){1,99}){99}"],
)
async def test_a_hostile_pattern_is_refused_in_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr(pattern_matcher, "PATTERN_SECONDS", 0.2)

    conversation = await store_thread(store, "a" * 40_000 + "!")
    with pytest.raises(InputError):
        await StoreLookup(store, "default", conversation).search(pattern, mode="regex")


async def test_other_threads_are_seen_only_where_that_is_allowed_and_other_tenants_never(
    store: Store,
) -> None:
    mine = await store_thread(store, "Here.")
    other = await store_thread(store, "The vault is behind the mirror.")
    foreign = await store_thread(store, "The vault is in the cellar.", tenant="rival")
    kept = await store.put_output(foreign, "vault number 9", tool="dump")
    said = (await store.history(other))[0].id
    theirs = (await store.history(foreign))[0].id
    alone = StoreLookup(store, "default", mine)
    wide = StoreLookup(store, "default", mine, reach="all")
    for mode in ("text", "regex"):
        assert not await every_page(alone, "vault", mode=mode)
        assert [
            place.thread
            for place in await every_page(wide, "vault", mode=mode, scope="all")
        ] == [other]
    with pytest.raises(InputError):
        await alone.search("vault", scope="all")
    assert (await wide.read(f"message:{said}")).thread == other
    for lookup, wanted in (
        (alone, said),
        (alone, theirs),
        (wide, theirs),
        (alone, kept.id),
        (wide, kept.id),
    ):
        with pytest.raises(UnknownIdError):
            await lookup.read(str(wanted))
    nobody = StoreLookup(store, "default", None)
    with pytest.raises(InputError):
        await nobody.search("vault")
    assert len(await every_page(nobody, "vault", scope="all")) == 1


async def test_nothing_found_is_said_finally(store: Store) -> None:
    conversation = await store_thread(store, "Hello there.")
    lookup = StoreLookup(store, "default", conversation)
    found = await lookup.search("zeppelin")
    assert "Do not repeat this search." in format_page(
        found, "zeppelin", tool="recall", searched_place="this thread"
    )
    beyond = format_passage(await lookup.read("1", offset=10_000), tool="recall")
    assert "That was all of it" in beyond
