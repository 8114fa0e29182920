"""Which thread a request belongs to: the same one, a branch, or another; and never somebody else's."""

from __future__ import annotations

import asyncio
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

from everthread.core.messages import text_of
from everthread.core.types import Api, Reply
from everthread.errors import WireError
from everthread.gateway.request.json_slices import slice_body, splice
from everthread.thread.caller.sent_history import Outcome
from everthread.thread.events import Branched
from everthread.thread.history import build_history, identify, is_cleared
from everthread.wire import openai_responses
from tests.digest_chains import canonical_chain
from tests.gateway.manager_setup import (
    APIS,
    HistoryClient,
    ManagerSetup,
    answer_request,
    make_text,
    open_setup_without_provider,
    thread_of,
)


async def stored(setup: ManagerSetup, thread: str) -> list[str]:
    return [text_of(message.body) for message in await setup.store.history(thread)]


# The same conversation, whatever the client does to its looks


@pytest.mark.parametrize("api", APIS)
async def test_a_longer_request_is_the_same_thread(
    api: Api, setup: ManagerSetup
) -> None:
    managers = [setup.manager(), setup.manager()]
    client = HistoryClient(api)
    threads = set()
    for turn in range(6):
        client.add_user_message(f"Question {turn}")
        threads.add(
            thread_of(
                await answer_request(managers[turn % 2], client, f"Answer {turn}")
            )
        )
    assert len(threads) == 1
    said = [f"{kind} {turn}" for turn in range(6) for kind in ("Question", "Answer")]
    assert await stored(setup, threads.pop()) == said


async def test_looks_do_not_matter(setup: ManagerSetup) -> None:
    manager = setup.manager()
    client = HistoryClient("anthropic")
    client.add_user_message("Question")
    first = await answer_request(manager, client)
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
    client.add_user_message("Next")
    assert thread_of(await answer_request(manager, client)) == thread_of(first)
    assert await stored(setup, thread_of(first)) == [
        "Question",
        "Yes.",
        "Next",
        "Yes.",
    ]


async def test_an_answer_may_come_back_without_its_thinking(
    setup: ManagerSetup,
) -> None:
    for manager in (setup.manager(), setup.manager()):
        client = HistoryClient(
            "anthropic", tenant=f"t{len(setup.managers)}{id(manager)}"
        )
        client.add_user_message("Question")
        incoming = client.incoming()
        turn = await manager.prepare(incoming)
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
        parts = [thought, {"type": "text", "text": "Yes."}]
        reply = Reply({"role": "assistant", "content": parts}, "stop")
        await turn.record(Outcome(200, reply))
        client.messages.append({"role": "assistant", "content": "Yes."})
        client.add_user_message("Next")
        later = await answer_request(setup.manager(), client)
        assert thread_of(later) == thread_of(turn)
        assert await stored(setup, thread_of(turn)) == [
            "Question",
            "Yes.",
            "Next",
            "Yes.",
        ]


async def test_a_text_for_an_input_is_a_message(setup: ManagerSetup) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_responses")
    client.add_user_message("Question")
    raw = json.dumps({**client.body(), "input": "Question"}).encode()
    incoming = client.incoming()
    only = type(incoming)(
        "openai_responses", incoming.path, {}, raw, raw, "t", incoming.upstream
    )
    turn = await manager.prepare(only)
    assert turn.sent.body is raw
    await turn.record(
        Outcome(200, Reply({"role": "assistant", "content": "Yes."}, "stop"))
    )
    client.add_reply(Reply({"role": "assistant", "content": "Yes."}, "stop"))
    client.add_user_message("Next")
    assert thread_of(await answer_request(manager, client)) == thread_of(turn)


# Another conversation


@pytest.mark.parametrize("restarted", [False, True])
async def test_changed_words_of_the_user_are_a_branch(
    restarted: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_chat")
    client.add_user_message("Question 0")
    first = await answer_request(manager, client, "Answer 0")
    for turn in (1, 2):
        client.add_user_message(f"Question {turn}")
        await answer_request(manager, client, f"Answer {turn}")
    other = copy.deepcopy(client)
    other.messages = other.messages[:4]
    other.add_user_message("Something else")
    branch = await answer_request(
        setup.manager() if restarted else manager, other, "Fine."
    )
    assert thread_of(branch) != thread_of(first)
    shared = ["Question 0", "Answer 0", "Question 1", "Answer 1"]
    assert await stored(setup, thread_of(branch)) == [
        *shared,
        "Something else",
        "Fine.",
    ]
    assert await stored(setup, thread_of(first)) == [
        *shared,
        "Question 2",
        "Answer 2",
    ]
    [told] = setup.of(Branched)
    assert (told.parent, told.length) == (thread_of(first), 4)
    client.add_user_message("Go on")
    assert thread_of(await answer_request(manager, client)) == thread_of(first), (
        "the thread goes on beside its branch"
    )


async def test_the_same_question_again_is_no_branch_until_somebody_goes_on_otherwise(
    setup: ManagerSetup,
) -> None:
    manager = setup.manager()
    one = HistoryClient("openai_chat")
    two = HistoryClient("openai_chat")
    one.add_user_message("Hi")
    two.add_user_message("Hi")
    threads = [
        thread_of(await answer_request(manager, client, text))
        for client, text in ((one, "Hello."), (two, "Hey."))
    ]
    assert threads[0] == threads[1]
    one.add_user_message("I am one")
    two.add_user_message("I am two")
    threads = [
        thread_of(await answer_request(manager, client)) for client in (two, one)
    ]
    assert threads[0] != threads[1]
    assert await stored(setup, threads[0]) == ["Hi", "Hey.", "I am two", "Yes."]
    assert await stored(setup, threads[1]) == ["Hi", "Hello.", "I am one", "Yes."]


@pytest.mark.parametrize("differs", ["tenant", "header", "claude"])
async def test_tenants_and_client_sessions_are_apart(
    differs: str, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    one = HistoryClient("openai_chat")
    two = HistoryClient("openai_chat")
    if differs == "tenant":
        two.tenant = "other"
    else:
        name = {"header": "x-session-id", "claude": "x-claude-code-session-id"}[differs]
        one.headers = {name: "1"}
        two.headers = {name: "2"}
    threads = []
    for client in (one, two):
        client.add_user_message("Hi")
        threads.append(thread_of(await answer_request(manager, client)))
    assert threads[0] != threads[1]
    assert (await setup.store.session(threads[1])).tenant == two.tenant


async def test_a_named_session_is_one_thread_whatever_is_sent(
    setup: ManagerSetup,
) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_chat", headers={"x-everthread-session": "mine"})
    client.add_user_message("Hi")
    first = await answer_request(manager, client)
    client.messages = []
    client.add_user_message("Afresh")
    second = await answer_request(setup.manager(), client)
    assert thread_of(second) == thread_of(first)
    assert await stored(setup, thread_of(first)) == ["Hi", "Yes.", "Afresh", "Yes."]
    stranger = HistoryClient(
        "openai_chat",
        headers={"x-everthread-session": thread_of(first)},
        tenant="other",
    )
    stranger.add_user_message("Let me in")
    assert thread_of(await answer_request(manager, stranger)) != thread_of(first)
    again = HistoryClient(
        "openai_chat", headers={"x-everthread-session": thread_of(first)}
    )
    again.add_user_message("By its own id")
    assert thread_of(await answer_request(manager, again)) == thread_of(first)


async def test_of_two_processes_with_different_continuations_one_branches(
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
        *(
            answer_request(manager, each)
            for manager, each in zip(managers, clients, strict=True)
        )
    )
    for manager, each in zip(managers, clients, strict=True):
        each.add_user_message("Next")
        thread = thread_of(await answer_request(manager, each))
        assert await stored(setup, thread) == [
            str(message["content"]) for message in each.messages
        ]


# Known fields only


async def test_ids_and_metadata_do_not_make_another_thread(setup: ManagerSetup) -> None:
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
        {"status": "completed", "output": items, "id": "resp_1"}, model="gpt-5"
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
    assert not setup.of(Branched)


async def test_a_reminder_behind_the_last_message_moves_along(
    setup: ManagerSetup,
) -> None:
    managers = [setup.manager(), setup.manager()]
    client = HistoryClient("openai_chat")
    threads = set()
    for number in range(4):
        client.add_user_message(f"Question {number}")
        reminder = {"role": "system", "content": f"Answer in full, {number}."}
        sent = await answer_request(
            managers[number % 2], Reminded(client, reminder), f"Answer {number}"
        )
        client.add_reply(
            Reply({"role": "assistant", "content": f"Answer {number}"}, "stop")
        )
        assert json.loads(sent.body)["messages"][-1] == reminder
        threads.add(thread_of(sent))
    assert len(threads) == 1


class Reminded(HistoryClient):
    """A client that puts a reminder behind what is said, for each request anew."""

    def __init__(self, client: HistoryClient, reminder: dict[str, Any]) -> None:
        super().__init__(client.api, messages=[*client.messages, reminder])

    def hears(self, reply: Reply) -> None:
        """The client itself keeps the answer."""


RULES = "\n\n# Rules\n\n1. Answer in full.\n\n2. Reply in English.\n"


class Ended(HistoryClient):
    """A client that hangs a reminder on the newest user message, in its text or as a block of its own."""

    as_block = False
    rules = RULES

    def body(self) -> dict[str, Any]:
        whole = self.messages
        if not self.rules:
            return super().body()
        at = max(
            at for at, message in enumerate(whole) if message.get("role") == "user"
        )
        said = whole[at]["content"]
        kind = "input_text" if self.api == "openai_responses" else "text"
        blocks = [
            {"type": kind, "text": said},
            {"type": kind, "text": self.rules.strip()},
        ]
        ended = {
            "role": "user",
            "content": blocks if self.as_block else said + self.rules,
        }
        self.messages = [*whole[:at], ended, *whole[at + 1 :]]
        body = super().body()
        self.messages = whole
        return body


@pytest.mark.parametrize("as_block", [False, True])
@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_reminder_in_the_newest_user_message_moves_along(
    api: Api, remembered: bool, as_block: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = Ended(api)
    threads = set()
    client.as_block = as_block
    for number in range(5):
        client.add_user_message(f"Question {number}\n\nwith a second part")
        sent = await answer_request(
            manager if remembered else setup.manager(), client, f"Answer {number}"
        )
        threads.add(thread_of(sent))
    if remembered:  # some leave it away once the history is long
        client.rules = ""
        client.add_user_message("No reminder any more")
        threads.add(thread_of(await answer_request(manager, client)))
    (thread,) = threads
    assert not setup.of(Branched)
    assert len(await stored(setup, thread)) == 10 + 2 * remembered
    client.rules = RULES
    client.messages[2:] = []
    client.add_user_message("Another question")
    assert thread_of(await answer_request(manager, client)) != thread
    assert [event.length for event in setup.of(Branched)] == [2]


async def test_an_answer_without_its_thinking_behind_words_without_their_reminder_is_the_same(
    setup: ManagerSetup,
) -> None:
    client = Ended("anthropic")
    threads = set()
    for number in range(3):
        client.add_user_message(f"Question {number}")
        turn = await setup.manager().prepare(client.incoming())
        threads.add(thread_of(turn))
        said: Any = {"role": "assistant", "content": f"Answer {number}"}
        thought: Any = {**said, "reasoning_content": "They ask again."}
        await turn.record(Outcome(200, Reply(thought, "stop")))
        client.add_reply(Reply(said, "stop"))
    assert len(threads) == 1


@pytest.mark.parametrize("differs", ["answer", "end", "tenant", "session"])
async def test_words_that_only_begin_alike_are_not_the_same_conversation(
    differs: str, setup: ManagerSetup
) -> None:
    first = HistoryClient("openai_chat")
    first.add_user_message(f"Question{RULES}")
    thread = thread_of(await answer_request(setup.manager(), first, "Answer"))
    other = HistoryClient("openai_chat", tenant="u" if differs == "tenant" else "t")
    other.headers = {"x-session-id": "another"} if differs == "session" else {}
    other.add_user_message("Question")
    other.add_reply(
        Reply(
            {
                "role": "assistant",
                "content": "No" if differs == "answer" else "Answer",
            },
            "stop",
        )
    )
    other.add_user_message("Go on" if differs == "end" else f"Go on{RULES}")
    assert thread_of(await answer_request(setup.manager(), other)) != thread


@pytest.mark.parametrize("remembered", [True, False])
async def test_calls_that_come_back_as_text_are_the_same_answer(
    remembered: bool, setup: ManagerSetup
) -> None:
    manager = setup.manager()
    client = HistoryClient("openai_chat")
    client.add_user_message("How is the weather in Rome?")
    threads = set()
    for number in range(3):
        turn = await (manager if remembered else setup.manager()).prepare(
            client.incoming()
        )
        threads.add(thread_of(turn))
        function = {"name": "weather", "arguments": '{"in": "Rome"}'}
        call: Any = {"id": f"c{number}", "type": "function", "function": function}
        reply = Reply(
            {"role": "assistant", "content": None, "tool_calls": [call]},
            "tool_calls",
        )
        await turn.record(Outcome(200, reply))
        text = f'Calling tools: [{{"id": "c{number}", "name": "weather", "arguments": {{"in": "Rome"}}}}]'
        client.messages.append({"role": "assistant", "content": text})
        client.add_user_message(f"Observation: sunny, {number}")
    assert len(threads) == 1
    assert not setup.of(Branched)


@pytest.mark.parametrize("remembered", [True, False])
async def test_an_answer_in_two_parts_with_a_reminder_between_is_the_same(
    remembered: bool, setup: ManagerSetup
) -> None:
    """As goose sends its newest answer; in the next request it is one message again."""

    manager = setup.manager()
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the files.")
    threads = set()
    for number in range(3):
        turn = await (manager if remembered else setup.manager()).prepare(
            client.incoming()
        )
        threads.add(thread_of(turn))
        function = {"name": "shell", "arguments": f'{{"in": {number}}}'}
        call: Any = {"id": f"c{number}", "type": "function", "function": function}
        text = f"Round {number}: next."
        whole: Any = {"role": "assistant", "content": text, "tool_calls": [call]}
        await turn.record(Outcome(200, Reply(whole, "tool_calls")))
        note = f"<info-msg>\nIt is currently 12:0{number}\n</info-msg>"
        parts: list[Any] = [
            {"role": "assistant", "content": text},
            {"role": "user", "content": note},
            {"role": "assistant", "content": None, "tool_calls": [call]},
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
        result = {"role": "tool", "tool_call_id": f"c{number}", "content": "done"}
        client.messages = [*merged, *parts, result]
    assert len(threads) == 1
    assert not setup.of(Branched)


async def test_other_words_before_the_same_calls_in_two_parts_are_a_branch(
    setup: ManagerSetup,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the files.")
    turn = await setup.manager().prepare(client.incoming())
    function = {"name": "shell", "arguments": "{}"}
    call: Any = {"id": "c1", "type": "function", "function": function}
    whole: Any = {"role": "assistant", "content": "Reading", "tool_calls": [call]}
    await turn.record(Outcome(200, Reply(whole, "tool_calls")))
    client.messages += [
        {"role": "assistant", "content": "No, I refuse to."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    assert thread_of(await setup.manager().prepare(client.incoming())) != thread_of(
        turn
    )


async def test_a_shortened_answer_is_the_same_and_another_one_a_branch(
    setup: ManagerSetup,
) -> None:
    told = f"The ledger has four parts, namely {make_text(60, 'part')}"
    client = HistoryClient("anthropic")
    client.add_user_message("What is in the ledger?")
    first = await answer_request(setup.manager(), client, told)
    short = deepcopy(client)
    other = deepcopy(client)
    short.messages[1] = {
        "role": "assistant",
        "content": "The ledger has four parts, namely item … [shortened]",
    }
    short.add_user_message("And then?")
    assert thread_of(await answer_request(setup.manager(), short)) == thread_of(first)
    other.messages[1] = {
        "role": "assistant",
        "content": "There is no ledger at all, I am afraid.",
    }
    other.add_user_message("And then?")
    assert thread_of(await answer_request(setup.manager(), other)) != thread_of(first)


async def test_an_answer_whose_thoughts_and_marks_a_client_takes_out_is_the_same(
    setup: ManagerSetup,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Where does the ledger listen?")
    threads = set()
    for number in range(3):
        thought = f"<think>They ask again, for the {number}. time.</think>"
        said = f"{thought}\n**The ledger** listens on port `844{number}`, as before."
        threads.add(thread_of(await answer_request(setup.manager(), client, said)))
        client.messages[-1] = {
            "role": "assistant",
            "content": f"The ledger listens on port 844{number}, as before.",
        }
        client.add_user_message(f"And the {number}. replica?")
    assert len(threads) == 1


async def test_a_beginning_of_what_is_stored_is_known(setup: ManagerSetup) -> None:
    """Its longer form was stored first, in one go: it is no branch, and no thread of its own."""

    client = HistoryClient("openai_chat")
    client.add_user_message("One")
    first = await answer_request(setup.manager(), client, "Eins")
    longer = deepcopy(client)
    for text, reply in (("Two", "Zwei"), ("Three", "Drei")):
        longer.add_user_message(text)
        longer.add_reply(Reply({"role": "assistant", "content": reply}, "stop"))
    longer.add_user_message("Four")
    assert thread_of(await answer_request(setup.manager(), longer)) == thread_of(first)
    late = deepcopy(client)
    late.add_user_message("Two")
    turn = await setup.manager().prepare(late.incoming())
    await turn.record(Outcome(500))
    assert (await turn.response_headers())["x-everthread-thread"] == thread_of(first)
    assert not setup.of(Branched)
    assert len(await setup.store.list_threads(tenant="t")) == 1


# Never a mix-up

SAYINGS = ("Hi", "Go on", "Why?")


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
async def test_interleaved_conversations_are_never_mixed(seed: int) -> None:
    """Several clients that often say the same, two tenants, two processes, answers that differ: each thread is one."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret

    with tempfile.TemporaryDirectory() as folder:
        async with open_setup_without_provider(Path(folder)) as setup:
            managers = [setup.manager(threshold_tokens=400) for _ in range(2)]
            clients = [
                HistoryClient(
                    "openai_chat", tenant=dice.choice("ab"), system=f"S{index}"
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
                text = f"{client.tenant}{index} {dice.choice(('yes', 'no'))} {make_text(80, f'{client.tenant}{index}')}"
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
                assert own <= {index}, (
                    f"step {step}: another client's words went upstream"
                )
            for index, client in enumerate(clients):
                client.add_user_message(f"Last words of {index}")
                sent = await answer_request(dice.choice(managers), client, "Bye.")
                assert (
                    await setup.store.session(thread_of(sent))
                ).tenant == client.tenant
                said = [str(message["content"]) for message in client.messages]
                assert await stored(setup, thread_of(sent)) == said


# How a body is read


@given(st.lists(st.text(max_size=20), max_size=5), st.sampled_from([None, 0, 2]))
def test_a_body_is_sliced_where_its_messages_are(
    texts: list[str], indent: int | None
) -> None:
    values = [{"role": "user", "content": text} for text in texts]
    body = {
        "model": "m",
        "tools": [{"messages": ["no"]}],
        "messages": values,
        "stream": True,
    }
    raw = json.dumps(body, indent=indent).encode()
    sliced = slice_body(raw, "openai_chat")
    assert [element.value for element in sliced.elements] == values
    assert [json.loads(element.raw) for element in sliced.elements] == values
    assert {**sliced.fields, "messages": values} == body
    whole = splice(sliced.body, [(*sliced.spans["model"], '"n"')])
    assert json.loads(whole) == {**body, "model": "n"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages":[]',
        b'{"messages":[1,]}',
        b'{"messages":[]} x',
        b'{"messages":[],"messages":[]}',
        b'{"messages":"text"}',
        b'{"messages":[] "a":1}',
        b'{"a":1,}',
        b"{1:2}",
    ],
)
def test_what_is_no_request_is_refused_in_a_sentence(raw: bytes) -> None:
    with pytest.raises(WireError, match="the request"):
        slice_body(raw, "openai_chat")


def test_the_chain_is_the_canonical_one() -> None:
    client = HistoryClient("anthropic")
    client.add_user_message("One")
    client.messages.append(
        {"role": "assistant", "content": [{"type": "text", "text": "Two"}]}
    )
    client.add_result("call_1", "three")
    found = build_history(identify("anthropic", value) for value in client.messages)
    assert list(found.digests) == canonical_chain(client.messages)


@pytest.mark.parametrize(
    ("text", "is_placeholder"),
    [
        ("[Old tool result content cleared]", True),
        (
            "<tool_output_masked>\n001/0000 Eltham\n…\nOutput too large. Full output available at: /tmp/o.txt\n</x>",
            True,
        ),
        (f"Full output saved to: /tmp/o.txt\n{'preview ' * 100}", True),
        ("The full output of the pump is 40 litres a minute.", False),
        (f"{'line ' * 2_000} Full output available at: /tmp/o.txt", False),
    ],
)
def test_a_result_that_the_client_moved_elsewhere_is_a_placeholder(
    text: str, is_placeholder: bool
) -> None:
    assert is_cleared(text) is is_placeholder
