"""A client adds reminders to its messages or changes answers: it is still in its thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from everthread.core.types import Api, ModelReply
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import Branched
from tests.apis import APIS
from tests.chat_messages import (
    calls_message,
    calls_reply,
    function_call,
    result_message,
)
from tests.gateway.forwarding_setup import stored_texts
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    answer_request,
    ask,
    prepare_request,
    text_of_tokens,
    text_reply,
    thread_of,
)


async def test_a_reminder_after_the_last_message_does_not_branch(
    managers: Managers,
) -> None:
    processes = [managers.open(), managers.open()]
    client = HistoryClient("openai_chat")
    threads = set()
    for number in range(4):
        client.add_user_message(f"Question {number}")
        reminder = {"role": "system", "content": f"Answer in full, {number}."}
        sent = await answer_request(
            processes[number % 2], RemindingClient(client, reminder), f"Answer {number}"
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
        self.messages = [
            *all_messages[:at],
            ended,
            *all_messages[at + 1 :],
        ]
        body = super().body()
        self.messages = all_messages
        return body


@pytest.mark.parametrize("as_block", [False, True])
@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_reminder_in_the_latest_user_message_does_not_branch(
    api: Api, remembered: bool, as_block: bool, managers: Managers
) -> None:
    manager = managers.open()
    client = EndReminderClient(api)
    threads = set()
    client.as_block = as_block
    for number in range(5):
        sent = await ask(
            manager if remembered else managers.open(),
            client,
            question=f"Question {number}\n\nwith a second part",
            text=f"Answer {number}",
        )
        threads.add(thread_of(sent))
    if remembered:  # some leave it away once the history is long
        client.rules = ""
        threads.add(thread_of(await ask(manager, client, "No reminder any more")))
    (thread,) = threads
    assert not managers.events_of(Branched)
    texts = await stored_texts(managers.store, thread)
    assert len(texts) == 10 + 2 * remembered
    client.rules = RULES
    client.messages[2:] = []
    assert thread_of(await ask(manager, client, "Another question")) != thread
    lengths = [event.length for event in managers.events_of(Branched)]
    assert lengths == [2]


@pytest.mark.parametrize("answers_first", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_client_with_a_reminder_may_continue_before_its_answer_is_stored(
    api: Api, answers_first: bool, managers: Managers
) -> None:
    manager = managers.open()
    client = EndReminderClient(api)
    thread = thread_of(
        await ask(
            manager,
            client,
            question="Question 0",
            text="Answer 0",
        )
    )
    turns = []
    for number in (1, 2):
        client.add_user_message(f"Question {number}")
        turns.append(await prepare_request(manager, client.incoming()))
        client.add_answer(f"Answer {number}")
    outcomes = [Outcome(200, text_reply(f"Answer {number}")) for number in (1, 2)]
    pairs = list(zip(turns, outcomes, strict=True))
    for turn, outcome in pairs if answers_first else reversed(pairs):
        await turn.record(outcome)
    assert (
        thread_of(
            await ask(
                manager,
                client,
                question="Question 3",
                text="Answer 3",
            )
        )
        == thread
    )
    threads = {turn.thread for turn in turns}
    assert threads == {thread}
    assert not managers.events_of(Branched)
    stored = await stored_texts(managers.store, thread)
    assert [text.partition("\n")[0] for text in stored] == [
        f"{kind} {number}" for number in range(4) for kind in ("Question", "Answer")
    ]


async def test_matches_an_answer_without_thinking_after_a_removed_reminder(
    managers: Managers,
) -> None:
    client = EndReminderClient("anthropic")
    threads = set()
    for number in range(3):
        client.add_user_message(f"Question {number}")
        turn = await prepare_request(managers.open(), client.incoming())
        threads.add(thread_of(turn))
        answer: Any = {"role": "assistant", "content": f"Answer {number}"}
        thought: Any = {**answer, "reasoning_content": "They ask again."}
        await turn.record(Outcome(200, ModelReply(thought, "stop")))
        client.add_reply(ModelReply(answer, "stop"))
    assert len(threads) == 1


@pytest.mark.parametrize("differs", ["answer", "end", "tenant", "session"])
async def test_a_message_with_the_same_beginning_is_another_conversation(
    differs: str, managers: Managers
) -> None:
    first = HistoryClient("openai_chat")
    thread = thread_of(
        await ask(
            managers.open(),
            first,
            question=f"Question{RULES}",
            text="Answer",
        )
    )
    other = HistoryClient("openai_chat", tenant="u" if differs == "tenant" else "t")
    other.headers = {"x-session-id": "another"} if differs == "session" else {}
    other.add_user_message("Question")
    other.add_answer("No" if differs == "answer" else "Answer")
    following = "Go on" if differs == "end" else f"Go on{RULES}"
    assert thread_of(await ask(managers.open(), other, following)) != thread


@pytest.mark.parametrize("remembered", [True, False])
async def test_matches_an_answer_split_by_a_reminder(remembered: bool, managers: Managers) -> None:
    """As goose sends its newest answer; in the next request it is one message again."""

    manager = managers.open()
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the files.")
    threads = set()
    for number in range(3):
        turn = await prepare_request(manager if remembered else managers.open(), client.incoming())
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
    assert not managers.events_of(Branched)


async def test_other_words_before_the_same_split_calls_begin_a_branch(
    managers: Managers,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the files.")
    turn = await prepare_request(managers.open(), client.incoming())
    call = function_call("c1", "shell", "{}")
    await turn.record(Outcome(200, calls_reply(call, text="Reading")))
    client.messages += [
        {"role": "assistant", "content": "No, I refuse to."},
        calls_message(call),
        result_message("c1", "done"),
    ]
    other = await prepare_request(managers.open(), client.incoming())
    assert thread_of(other) != thread_of(turn)


@dataclass(frozen=True)
class ChangedAnswer:
    """What a model answers in each round, and what its client sends back instead."""

    api: Api
    reply: Callable[[int], ModelReply]
    returned: Callable[[int], str]


def thoughtful_reply(number: int) -> ModelReply:
    thought = {
        "type": "thinking",
        "thinking": "Hm.",
        "signature": "s",
    }
    text = {"type": "text", "text": f"Answer {number}"}
    return ModelReply({"role": "assistant", "content": [thought, text]}, "stop")


def weather_reply(number: int) -> ModelReply:
    return calls_reply(function_call(f"c{number}", "weather", '{"in": "Rome"}'))


def marked_reply(number: int) -> ModelReply:
    thought = f"<think>They ask again, for the {number}. time.</think>"
    return text_reply(f"{thought}\n**The ledger** listens on port `844{number}`, as before.")


def settled_reply(number: int) -> ModelReply:
    return text_reply(
        f"Entry {number} of the ledger was settled and compared twice with its receipt by the office."
    )


def long_reply(number: int) -> ModelReply:
    return text_reply(f"The ledger {number} has four parts, namely {text_of_tokens(60, 'part')}")


CHANGED_ANSWERS = {
    "without its thinking": ChangedAnswer(
        "anthropic",
        thoughtful_reply,
        lambda number: f"Answer {number}",
    ),
    "calls as text": ChangedAnswer(
        "openai_chat",
        weather_reply,
        lambda number: (
            f'Calling tools: [{{"id": "c{number}", "name": "weather", "arguments": {{"in": "Rome"}}}}]'
        ),
    ),
    "without thoughts and marks": ChangedAnswer(
        "openai_chat",
        marked_reply,
        lambda number: f"The ledger listens on port 844{number}, as before.",
    ),
    "shortened": ChangedAnswer(
        "anthropic",
        long_reply,
        lambda number: f"The ledger {number} has four parts, namely item … [shortened]",
    ),
    "reworded": ChangedAnswer(
        "openai_chat",
        settled_reply,
        lambda number: (
            f"Entry {number} of the ledger got settled, then somebody compared it twice with its "
            "receipt by the office."
        ),
    ),
    "lengthened": ChangedAnswer(
        "openai_chat",
        settled_reply,
        lambda number: (
            f"Entry {number} of the ledger was settled and compared twice with its receipt by the "
            "office. That was all of it. (noted)"
        ),
    ),
}


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("answer", CHANGED_ANSWERS.values(), ids=CHANGED_ANSWERS.keys())
async def test_matches_an_answer_that_its_client_changed(
    answer: ChangedAnswer, remembered: bool, managers: Managers
) -> None:
    manager = managers.open()
    client = HistoryClient(answer.api)
    threads = set()
    for number in range(3):
        client.add_user_message(f"Question {number}")
        if not remembered:
            manager = managers.open()
        turn = await prepare_request(manager, client.incoming())
        threads.add(thread_of(turn))
        await turn.record(Outcome(200, answer.reply(number)))
        client.add_assistant_message(answer.returned(number))
    [thread] = threads
    assert not managers.events_of(Branched)
    texts = await stored_texts(managers.store, thread)
    assert texts[::2] == ["Question 0", "Question 1", "Question 2"]


async def test_another_answer_begins_a_branch(managers: Managers) -> None:
    client = HistoryClient("anthropic")
    answer = f"The ledger has four parts, namely {text_of_tokens(60, 'part')}"
    first = await ask(
        managers.open(),
        client,
        "What is in the ledger?",
        answer,
    )
    client.messages[1] = {
        "role": "assistant",
        "content": "There is no ledger at all, I am afraid.",
    }
    second = await ask(managers.open(), client, "And then?")
    assert thread_of(second) != thread_of(first)
