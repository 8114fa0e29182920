"""The thread of a request: the same one, a branch, or another; never another client's."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.core.messages import text_of
from everthread.core.types import Api, Reply
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import Branched
from everthread.wire import openai_responses
from tests.chat_messages import (
    calls_message,
    calls_reply,
    function_call,
    result_message,
)
from tests.gateway.manager_setup import (
    APIS,
    HistoryClient,
    ManagerSetup,
    answer_request,
    ask,
    open_setup_without_provider,
    text_of_tokens,
    text_reply,
    thread_of,
)


async def stored_texts(setup: ManagerSetup, thread: str) -> list[str]:
    return [text_of(message.body) for message in await setup.store.history(thread)]


# The same conversation, whatever the client does to its looks


@pytest.mark.parametrize("api", APIS)
async def test_a_longer_request_is_the_same_thread(api: Api, setup: ManagerSetup) -> None:
    managers = [setup.manager(), setup.manager()]
    client = HistoryClient(api)
    threads = set()
    for turn in range(6):
        threads.add(
            thread_of(
                await ask(
                    managers[turn % 2],
                    client,
                    question=f"Question {turn}",
                    text=f"Answer {turn}",
                )
            )
        )
    assert len(threads) == 1
    expected = [f"{kind} {turn}" for turn in range(6) for kind in ("Question", "Answer")]
    texts = await stored_texts(setup, threads.pop())
    assert texts == expected


async def test_different_spelling_of_the_same_messages_is_the_same_thread(
    setup: ManagerSetup,
) -> None:
    manager = setup.manager()
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
    texts = await stored_texts(setup, thread_of(first))
    assert texts == [
        "Question",
        "Yes.",
        "Next",
        "Yes.",
    ]


async def test_an_answer_may_come_back_without_its_thinking(
    setup: ManagerSetup,
) -> None:
    client = HistoryClient("anthropic")
    client.add_user_message("Question")
    turn = await setup.manager().prepare(client.incoming())
    thought = {
        "type": "thinking",
        "thinking": "Hm.",
        "signature": "s",
    }
    parts = [thought, {"type": "text", "text": "Yes."}]
    await turn.record(Outcome(200, Reply({"role": "assistant", "content": parts}, "stop")))
    client.add_assistant_message("Yes.")
    later = await ask(setup.manager(), client, "Next")
    assert thread_of(later) == thread_of(turn)
    texts = await stored_texts(setup, thread_of(turn))
    assert texts == [
        "Question",
        "Yes.",
        "Next",
        "Yes.",
    ]


async def test_a_text_as_input_is_a_user_message(setup: ManagerSetup) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_responses")
    client.add_user_message("Question")
    raw = json.dumps({**client.body(), "input": "Question"}).encode()
    turn = await manager.prepare(replace(client.incoming(), raw=raw, body=raw))
    assert turn.outgoing.body is raw
    await turn.record(Outcome(200, text_reply("Yes.")))
    client.add_answer("Yes.")
    assert thread_of(await ask(manager, client, "Next")) == thread_of(turn)


# Another conversation


@pytest.mark.parametrize("restarted", [False, True])
async def test_changed_words_of_the_user_begin_a_branch(
    restarted: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_chat")
    first = await ask(manager, client, question="Question 0", text="Answer 0")
    for turn in (1, 2):
        await ask(manager, client, question=f"Question {turn}", text=f"Answer {turn}")
    other = copy.deepcopy(client)
    other.messages = other.messages[:4]
    branch = await ask(
        setup.manager() if restarted else manager,
        other,
        question="Something else",
        text="Fine.",
    )
    assert thread_of(branch) != thread_of(first)
    shared = ["Question 0", "Answer 0", "Question 1", "Answer 1"]
    texts = await stored_texts(setup, thread_of(branch))
    assert texts == [
        *shared,
        "Something else",
        "Fine.",
    ]
    texts = await stored_texts(setup, thread_of(first))
    assert texts == [
        *shared,
        "Question 2",
        "Answer 2",
    ]
    [branched] = setup.events_of(Branched)
    assert branched.parent == thread_of(first)
    assert branched.length == 4
    assert thread_of(await ask(manager, client, "Go on")) == thread_of(first), (
        "the thread goes on beside its branch"
    )


async def test_a_repeated_question_branches_only_when_continued_differently(
    setup: ManagerSetup,
) -> None:
    manager = setup.manager()
    one = HistoryClient("openai_chat")
    two = HistoryClient("openai_chat")
    first = await ask(manager, one, question="Hi", text="Hello.")
    assert thread_of(await ask(manager, two, question="Hi", text="Hey.")) == thread_of(first)
    branch = thread_of(await ask(manager, two, "I am two"))
    thread = thread_of(await ask(manager, one, "I am one"))
    assert branch != thread
    texts = await stored_texts(setup, branch)
    assert texts == ["Hi", "Hey.", "I am two", "Yes."]
    texts = await stored_texts(setup, thread)
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
    differs: dict[str, Any], setup: ManagerSetup
) -> None:
    manager = setup.manager()
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
    session = await setup.store.session(thread_of(second))
    assert session.tenant == two.tenant


async def test_a_named_session_is_one_thread_whatever_it_sends(
    setup: ManagerSetup,
) -> None:
    def client_of(session: str, **more: Any) -> HistoryClient:
        headers = {"x-everthread-session": session}
        return HistoryClient("openai_chat", headers=headers, **more)

    manager = setup.manager()
    thread = thread_of(await ask(manager, client_of("mine"), "Hi"))
    assert thread_of(await ask(setup.manager(), client_of("mine"), "Afresh")) == thread
    texts = await stored_texts(setup, thread)
    assert texts == ["Hi", "Yes.", "Afresh", "Yes."]
    stranger = client_of(thread, tenant="other")
    assert thread_of(await ask(manager, stranger, "Let me in")) != thread
    assert thread_of(await ask(manager, client_of(thread), "By its own id")) == thread


async def test_two_processes_continuing_differently_make_one_branch(
    setup: ManagerSetup,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Hi")
    managers = [setup.manager(), setup.manager()]
    await answer_request(managers[0], client)
    clients = [copy.deepcopy(client) for _ in range(2)]
    for index, each in enumerate(clients):
        # Both know the thread's last point.
        await managers[index].prepare(client.incoming())
        each.add_user_message(f"I am {index}")
    await asyncio.gather(
        *(answer_request(manager, each) for manager, each in zip(managers, clients, strict=True))
    )
    for manager, each in zip(managers, clients, strict=True):
        thread = thread_of(await ask(manager, each, "Next"))
        texts = await stored_texts(setup, thread)
        assert texts == [str(message["content"]) for message in each.messages]


# Known fields only


async def test_ids_and_metadata_do_not_change_the_thread(setup: ManagerSetup) -> None:
    client = HistoryClient("openai_responses")
    client.add_user_message("Look it up.")
    turn = await setup.manager().prepare(client.incoming())
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
    later = await answer_request(setup.manager(), client)
    assert thread_of(later) == thread_of(turn)
    assert not setup.events_of(Branched)


async def test_a_reminder_after_the_last_message_does_not_branch(
    setup: ManagerSetup,
) -> None:
    managers = [setup.manager(), setup.manager()]
    client = HistoryClient("openai_chat")
    threads = set()
    for number in range(4):
        client.add_user_message(f"Question {number}")
        reminder = {"role": "system", "content": f"Answer in full, {number}."}
        sent = await answer_request(
            managers[number % 2], RemindingClient(client, reminder), f"Answer {number}"
        )
        client.add_answer(f"Answer {number}")
        assert json.loads(sent.body)["messages"][-1] == reminder
        threads.add(thread_of(sent))
    assert len(threads) == 1


class RemindingClient(HistoryClient):
    """A client that adds a reminder after the newest message, a new one in each request."""

    def __init__(self, client: HistoryClient, reminder: dict[str, Any]) -> None:
        super().__init__(client.api, messages=[*client.messages, reminder])


RULES = "\n\n# Rules\n\n1. Answer in full.\n\n2. Reply in English.\n"


class EndReminderClient(HistoryClient):
    """A client that hangs a reminder on the newest user message, in its text or as a block of its own."""

    as_block = False
    rules = RULES

    def body(self) -> dict[str, Any]:
        all_messages = self.messages
        if not self.rules:
            return super().body()
        at = max(at for at, message in enumerate(all_messages) if message.get("role") == "user")
        text = all_messages[at]["content"]
        kind = "input_text" if self.api == "openai_responses" else "text"
        blocks = [
            {"type": kind, "text": text},
            {"type": kind, "text": self.rules.strip()},
        ]
        ended = {
            "role": "user",
            "content": blocks if self.as_block else text + self.rules,
        }
        self.messages = [*all_messages[:at], ended, *all_messages[at + 1 :]]
        body = super().body()
        self.messages = all_messages
        return body


@pytest.mark.parametrize("as_block", [False, True])
@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_reminder_in_the_latest_user_message_does_not_branch(
    api: Api, remembered: bool, as_block: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = EndReminderClient(api)
    threads = set()
    client.as_block = as_block
    for number in range(5):
        sent = await ask(
            manager if remembered else setup.manager(),
            client,
            question=f"Question {number}\n\nwith a second part",
            text=f"Answer {number}",
        )
        threads.add(thread_of(sent))
    if remembered:  # some leave it away once the history is long
        client.rules = ""
        threads.add(thread_of(await ask(manager, client, "No reminder any more")))
    (thread,) = threads
    assert not setup.events_of(Branched)
    texts = await stored_texts(setup, thread)
    assert len(texts) == 10 + 2 * remembered
    client.rules = RULES
    client.messages[2:] = []
    assert thread_of(await ask(manager, client, "Another question")) != thread
    lengths = [event.length for event in setup.events_of(Branched)]
    assert lengths == [2]


@pytest.mark.parametrize("answers_first", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_client_with_a_reminder_may_continue_before_its_answer_is_stored(
    api: Api, answers_first: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = EndReminderClient(api)
    thread = thread_of(await ask(manager, client, question="Question 0", text="Answer 0"))
    turns = []
    for number in (1, 2):
        client.add_user_message(f"Question {number}")
        turns.append(await manager.prepare(client.incoming()))
        client.add_answer(f"Answer {number}")
    outcomes = [Outcome(200, text_reply(f"Answer {number}")) for number in (1, 2)]
    pairs = list(zip(turns, outcomes, strict=True))
    for turn, outcome in pairs if answers_first else reversed(pairs):
        await turn.record(outcome)
    assert thread_of(await ask(manager, client, question="Question 3", text="Answer 3")) == thread
    threads = {turn.thread for turn in turns}
    assert threads == {thread}
    assert not setup.events_of(Branched)
    stored = await stored_texts(setup, thread)
    assert [text.partition("\n")[0] for text in stored] == [
        f"{kind} {number}" for number in range(4) for kind in ("Question", "Answer")
    ]


async def test_matches_an_answer_without_thinking_after_a_removed_reminder(
    setup: ManagerSetup,
) -> None:
    client = EndReminderClient("anthropic")
    threads = set()
    for number in range(3):
        client.add_user_message(f"Question {number}")
        turn = await setup.manager().prepare(client.incoming())
        threads.add(thread_of(turn))
        answer: Any = {"role": "assistant", "content": f"Answer {number}"}
        thought: Any = {**answer, "reasoning_content": "They ask again."}
        await turn.record(Outcome(200, Reply(thought, "stop")))
        client.add_reply(Reply(answer, "stop"))
    assert len(threads) == 1


@pytest.mark.parametrize("differs", ["answer", "end", "tenant", "session"])
async def test_a_message_with_the_same_beginning_is_another_conversation(
    differs: str, setup: ManagerSetup
) -> None:
    first = HistoryClient("openai_chat")
    thread = thread_of(
        await ask(setup.manager(), first, question=f"Question{RULES}", text="Answer")
    )
    other = HistoryClient("openai_chat", tenant="u" if differs == "tenant" else "t")
    other.headers = {"x-session-id": "another"} if differs == "session" else {}
    other.add_user_message("Question")
    other.add_answer("No" if differs == "answer" else "Answer")
    following = "Go on" if differs == "end" else f"Go on{RULES}"
    assert thread_of(await ask(setup.manager(), other, following)) != thread


@pytest.mark.parametrize("remembered", [True, False])
async def test_matches_an_answer_whose_calls_return_as_text(
    remembered: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_chat")
    client.add_user_message("How is the weather in Rome?")
    threads = set()
    for number in range(3):
        turn = await (manager if remembered else setup.manager()).prepare(client.incoming())
        threads.add(thread_of(turn))
        await turn.record(
            Outcome(
                200,
                calls_reply(function_call(f"c{number}", "weather", '{"in": "Rome"}')),
            )
        )
        client.add_assistant_message(
            f'Calling tools: [{{"id": "c{number}", "name": "weather", "arguments": {{"in": "Rome"}}}}]'
        )
        client.add_user_message(f"Observation: sunny, {number}")
    assert len(threads) == 1
    assert not setup.events_of(Branched)


@pytest.mark.parametrize("remembered", [True, False])
async def test_matches_an_answer_split_by_a_reminder(remembered: bool, setup: ManagerSetup) -> None:
    """As goose sends its newest answer; in the next request it is one message again."""

    manager = setup.manager()
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the files.")
    threads = set()
    for number in range(3):
        turn = await (manager if remembered else setup.manager()).prepare(client.incoming())
        threads.add(thread_of(turn))
        call = function_call(f"c{number}", "shell", f'{{"in": {number}}}')
        text = f"Round {number}: next."
        await turn.record(Outcome(200, calls_reply(call, text=text)))
        note = f"<info-msg>\nIt is currently 12:0{number}\n</info-msg>"
        parts: list[Any] = [
            {"role": "assistant", "content": text},
            {"role": "user", "content": note},
            calls_message(call),
        ]
        merged = [
            message
            for message in client.messages
            if not str(message["content"]).startswith("<info-msg>")
        ]
        for index in range(len(merged) - 1, 0, -1):
            if merged[index]["role"] == merged[index - 1]["role"] == "assistant":
                rest = merged.pop(index)
                merged[index - 1] = {**rest, **merged[index - 1]}
        result = result_message(f"c{number}", "done")
        client.messages = [*merged, *parts, result]
    assert len(threads) == 1
    assert not setup.events_of(Branched)


async def test_other_words_before_the_same_split_calls_begin_a_branch(
    setup: ManagerSetup,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the files.")
    turn = await setup.manager().prepare(client.incoming())
    call = function_call("c1", "shell", "{}")
    await turn.record(Outcome(200, calls_reply(call, text="Reading")))
    client.messages += [
        {"role": "assistant", "content": "No, I refuse to."},
        calls_message(call),
        result_message("c1", "done"),
    ]
    other = await setup.manager().prepare(client.incoming())
    assert thread_of(other) != thread_of(turn)


@pytest.mark.parametrize(
    ("answer", "is_same"),
    [
        ("The ledger has four parts, namely item … [shortened]", True),
        ("There is no ledger at all, I am afraid.", False),
    ],
    ids=["shortened", "another"],
)
async def test_matches_a_shortened_answer_and_branches_at_another(
    answer: str, is_same: bool, setup: ManagerSetup
) -> None:
    client = HistoryClient("anthropic")
    full_answer = f"The ledger has four parts, namely {text_of_tokens(60, 'part')}"
    first = await ask(
        setup.manager(),
        client,
        question="What is in the ledger?",
        text=full_answer,
    )
    client.messages[1] = {"role": "assistant", "content": answer}
    second = await ask(setup.manager(), client, "And then?")
    assert (thread_of(second) == thread_of(first)) is is_same


async def test_matches_an_answer_without_its_thoughts_and_marks(
    setup: ManagerSetup,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Where does the ledger listen?")
    threads = set()
    for number in range(3):
        thought = f"<think>They ask again, for the {number}. time.</think>"
        answer = f"{thought}\n**The ledger** listens on port `844{number}`, as before."
        threads.add(thread_of(await answer_request(setup.manager(), client, answer)))
        client.messages[-1] = {
            "role": "assistant",
            "content": f"The ledger listens on port 844{number}, as before.",
        }
        client.add_user_message(f"And the {number}. replica?")
    assert len(threads) == 1


async def test_finds_the_thread_of_a_history_cut_at_its_end(setup: ManagerSetup) -> None:
    """Its longer form was stored first: it is neither a branch nor a thread of its own."""

    client = HistoryClient("openai_chat")
    first = await ask(setup.manager(), client, question="One", text="Eins")
    longer = deepcopy(client)
    for text, reply in (("Two", "Zwei"), ("Three", "Drei")):
        longer.add_user_message(text)
        longer.add_answer(reply)
    assert thread_of(await ask(setup.manager(), longer, "Four")) == thread_of(first)
    late = deepcopy(client)
    late.add_user_message("Two")
    turn = await setup.manager().prepare(late.incoming())
    await turn.record(Outcome(500))
    headers = await turn.response_headers()
    assert headers["x-everthread-thread"] == thread_of(first)
    assert not setup.events_of(Branched)
    rows = await setup.store.list_threads(tenant="t")
    assert len(rows) == 1


# Never a mix-up

SAYINGS = ("Hi", "Go on", "Why?")


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
async def test_interleaved_conversations_never_mix(seed: int) -> None:
    """Several clients that often say the same, two tenants, two processes, answers that differ: each thread is one."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret

    with tempfile.TemporaryDirectory() as folder:
        async with open_setup_without_provider(Path(folder)) as setup:
            managers = [setup.manager(threshold_tokens=400) for _ in range(2)]
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
                sent = await answer_request(dice.choice(managers), client, text)
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
                    dice.choice(managers),
                    client,
                    question=f"Last words of {index}",
                    text="Bye.",
                )
                session = await setup.store.session(thread_of(sent))
                assert session.tenant == client.tenant
                expected = [str(message["content"]) for message in client.messages]
                texts = await stored_texts(setup, thread_of(sent))
                assert texts == expected
