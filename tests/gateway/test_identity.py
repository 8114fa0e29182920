"""The thread of a request: the same one, a branch, or another; never another client's."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import Branched
from everthread.wire import openai_responses
from tests.gateway.forwarding_setup import stored_texts
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    answer_request,
    ask,
    open_managers,
    prepare_request,
    text_of_tokens,
    text_reply,
    thread_of,
)


async def test_different_spelling_of_the_same_messages_is_the_same_thread(
    managers: Managers,
) -> None:
    manager = managers.open()
    client = HistoryClient("anthropic")
    first = await ask(manager, client, "Question")
    blocks: list[Any] = [
        {
            "type": "text",
            "text": "Question ",
            "cache_control": {"type": "ephemeral"},
        }
    ]
    reminder = {
        "type": "text",
        "text": "<system-reminder>It is late.</system-reminder>",
    }
    client.messages[0] = {"content": [reminder, *blocks], "role": "user"}
    client.messages[1] = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Yes."}],
    }
    client.system = "Another system prompt"
    client.extra = {"temperature": 0}
    assert thread_of(await ask(manager, client, "Next")) == thread_of(first)
    texts = await stored_texts(managers.store, thread_of(first))
    assert texts == [
        "Question",
        "Yes.",
        "Next",
        "Yes.",
    ]


async def test_a_text_as_input_is_a_user_message(managers: Managers) -> None:
    manager = managers.open()
    client = HistoryClient("openai_responses")
    client.add_user_message("Question")
    raw = json.dumps({**client.body(), "input": "Question"}).encode()
    turn = await prepare_request(manager, client.make_incoming(raw))
    assert turn.outgoing.body is raw
    await turn.record(Outcome(200, text_reply("Yes.")))
    client.add_answer("Yes.")
    assert thread_of(await ask(manager, client, "Next")) == thread_of(turn)


@pytest.mark.parametrize("restarted", [False, True])
async def test_changed_words_of_the_user_begin_a_branch(
    restarted: bool, managers: Managers
) -> None:
    manager = managers.open()
    client = HistoryClient("openai_chat")
    first = await ask(
        manager,
        client,
        question="Question 0",
        text="Answer 0",
    )
    for turn in (1, 2):
        await ask(
            manager,
            client,
            question=f"Question {turn}",
            text=f"Answer {turn}",
        )
    other = copy.deepcopy(client)
    other.messages = other.messages[:4]
    branch = await ask(
        managers.open() if restarted else manager,
        other,
        question="Something else",
        text="Fine.",
    )
    assert thread_of(branch) != thread_of(first)
    shared = ["Question 0", "Answer 0", "Question 1", "Answer 1"]
    texts = await stored_texts(managers.store, thread_of(branch))
    assert texts == [
        *shared,
        "Something else",
        "Fine.",
    ]
    texts = await stored_texts(managers.store, thread_of(first))
    assert texts == [
        *shared,
        "Question 2",
        "Answer 2",
    ]
    [branched] = managers.events_of(Branched)
    assert branched.parent == thread_of(first)
    assert branched.length == 4
    assert thread_of(await ask(manager, client, "Go on")) == thread_of(first), (
        "the thread goes on beside its branch"
    )


async def test_a_repeated_question_branches_only_when_continued_differently(
    managers: Managers,
) -> None:
    manager = managers.open()
    one = HistoryClient("openai_chat")
    two = HistoryClient("openai_chat")
    first = await ask(
        manager,
        one,
        question="Hi",
        text="Hello.",
    )
    assert thread_of(
        await ask(
            manager,
            two,
            question="Hi",
            text="Hey.",
        )
    ) == thread_of(first)
    branch = thread_of(await ask(manager, two, "I am two"))
    thread = thread_of(await ask(manager, one, "I am one"))
    assert branch != thread
    texts = await stored_texts(managers.store, branch)
    assert texts == ["Hi", "Hey.", "I am two", "Yes."]
    texts = await stored_texts(managers.store, thread)
    assert texts == ["Hi", "Hello.", "I am one", "Yes."]


@pytest.mark.parametrize(
    "differs",
    [
        {"tenant": "other"},
        {"headers": {"x-session-id": "2"}},
        {"headers": {"x-claude-code-session-id": "2"}},
        {"extra": {"prompt_cache_key": "2"}},
    ],
    ids=["tenant", "session", "session of Claude Code", "cache key"],
)
async def test_tenants_and_client_sessions_share_no_thread(
    differs: dict[str, Any], managers: Managers
) -> None:
    manager = managers.open()
    names = differs.get("headers", {})
    one = HistoryClient(
        "openai_chat",
        headers=dict.fromkeys(names, "1"),
        extra=dict.fromkeys(differs.get("extra", {}), "1"),
    )
    two = HistoryClient("openai_chat", **differs)
    first = await ask(manager, one, "Hi")
    second = await ask(manager, two, "Hi")
    assert thread_of(first) != thread_of(second)
    session = await managers.store.load_session(thread_of(second))
    assert session.tenant == two.tenant
    assert await managers.store.list_family(session.thread) == [session.thread]


async def test_a_named_session_is_one_thread_whatever_it_sends(
    managers: Managers,
) -> None:
    def client_of(session: str, **more: Any) -> HistoryClient:
        headers = {"x-everthread-session": session}
        return HistoryClient("openai_chat", headers=headers, **more)

    manager = managers.open()
    thread = thread_of(await ask(manager, client_of("mine"), "Hi"))
    assert thread_of(await ask(managers.open(), client_of("mine"), "Afresh")) == thread
    texts = await stored_texts(managers.store, thread)
    assert texts == ["Hi", "Yes.", "Afresh", "Yes."]
    stranger = client_of(thread, tenant="other")
    assert thread_of(await ask(manager, stranger, "Let me in")) != thread
    assert thread_of(await ask(manager, client_of(thread), "By its own id")) == thread


async def test_ids_and_metadata_do_not_change_the_thread(managers: Managers) -> None:
    client = HistoryClient("openai_responses")
    client.add_user_message("Look it up.")
    turn = await prepare_request(managers.open(), client.incoming())
    items = [
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "look",
            "arguments": "{}",
            "status": "done",
        }
    ]
    reply = openai_responses.decode_reply(
        {
            "status": "completed",
            "output": items,
            "id": "resp_1",
        },
        model="gpt-5",
    )
    await turn.record(Outcome(200, reply))
    client.messages[0] = {
        **client.messages[0],
        "id": "msg_1",
        "metadata": {"turn": 1},
    }
    client.messages.append(
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "look",
            "arguments": "{ }",
        }
    )
    client.messages.append(
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": "found",
            "metadata": {},
        }
    )
    later = await answer_request(managers.open(), client)
    assert thread_of(later) == thread_of(turn)
    assert not managers.events_of(Branched)


async def test_finds_the_thread_of_a_history_cut_at_its_end(managers: Managers) -> None:
    """Its longer form was stored first: it is neither a branch nor a thread of its own."""

    client = HistoryClient("openai_chat")
    first = await ask(
        managers.open(),
        client,
        question="One",
        text="Eins",
    )
    longer = deepcopy(client)
    for text, reply in (("Two", "Zwei"), ("Three", "Drei")):
        longer.add_user_message(text)
        longer.add_answer(reply)
    assert thread_of(await ask(managers.open(), longer, "Four")) == thread_of(first)
    late = deepcopy(client)
    late.add_user_message("Two")
    turn = await prepare_request(managers.open(), late.incoming())
    await turn.record(Outcome(500))
    headers = await turn.make_response_headers()
    assert headers["x-everthread-thread"] == thread_of(first)
    assert not managers.events_of(Branched)
    rows = await managers.store.list_threads(tenant="t")
    assert len(rows) == 1


SAYINGS = ("Hi", "Go on", "Why?")


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
async def test_interleaved_conversations_never_mix(seed: int) -> None:
    """Several clients that often say the same, two tenants, two processes, answers that differ: each thread is one."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret

    with tempfile.TemporaryDirectory() as folder:
        async with open_managers(Path(folder)) as managers:
            processes = [managers.open(threshold_tokens=400) for _ in range(2)]
            clients = [
                HistoryClient(
                    "openai_chat",
                    tenant=dice.choice("ab"),
                    system=f"S{index}",
                )
                for index in range(5)
            ]
            for step in range(40):
                index = dice.randrange(len(clients))
                client = clients[index]
                if len(client.messages) > 3 and dice.random() < 0.15:
                    client.messages = client.messages[
                        : 2 * dice.randrange(1, len(client.messages) // 2)
                    ]
                client.add_user_message(dice.choice(SAYINGS))
                mark = f"{client.tenant}{index}"
                text = f"{mark} {dice.choice(('yes', 'no'))} {text_of_tokens(80, mark)}"
                sent = await answer_request(dice.choice(processes), client, text)
                foreign = {name for name in ("a", "b") if name != client.tenant}
                assert not any(
                    f"{name}{number} item".encode() in sent.body
                    for name in foreign
                    for number in range(5)
                )
                own = {
                    int(word[1:])
                    for word in sent.body.decode().split()
                    if word[:1] in "ab" and word[1:].isdigit()
                }
                assert own <= {index}, f"step {step}: another client's words went upstream"
            for index, client in enumerate(clients):
                sent = await ask(
                    dice.choice(processes),
                    client,
                    question=f"Last words of {index}",
                    text="Bye.",
                )
                session = await managers.store.load_session(thread_of(sent))
                assert session.tenant == client.tenant
                expected = [str(message["content"]) for message in client.messages]
                texts = await stored_texts(managers.store, thread_of(sent))
                assert texts == expected
