"""The threads of a framework's conversations, without a framework: the part that all integrations share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everthread.config import parse_config
from everthread.core.messages import Message, text_of
from everthread.core.validation import validate_messages
from everthread.integrations.model_calls import FittedCall, ModelCall
from everthread.integrations.threads import FrameworkThreads
from everthread.thread.events import CompactionDone, Event
from tests.chat_messages import calls_message, function_call, result_message
from tests.integrations.framework_setup import FILLER

WINDOW = 6_000
FACT = "The code of the vault is 7731-KESTREL."
USAGE = {
    "prompt_tokens": 1_200,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 1_000},
}


def user(text: str) -> Message:
    return {
        "role": "user",
        "content": text,
    }


def answer(text: str) -> Message:
    return {
        "role": "assistant",
        "content": text,
    }


def calls(*ids: str) -> Any:
    return calls_message(*[function_call(one, "look_up") for one in ids])


def result(call_id: str, text: str = "settled") -> Any:
    return result_message(call_id, text)


def role_of(name: str) -> str:
    """A system prompt of many lines, none of them another role's."""
    return "\n".join(f"As {name} you mind rule {number}." for number in range(12))


class Framework:
    """Keeps its whole history, as frameworks do, and checks every request it sends."""

    def __init__(self, threads: FrameworkThreads, key: str = "books") -> None:
        self.threads = threads
        self.key = key
        self.history: list[Message] = []
        self.sent: list[list[Message]] = []
        self.system = "You keep the books."
        self.owner = ""
        self.max_tokens: int | None = None

    async def prepare(self) -> FittedCall:
        turn = await self.threads.prepare(
            ModelCall(
                list(self.history),
                list(self.history),
                "gpt-4o",
                self.key,
                self.system,
                owner=self.owner,
                window=WINDOW,
                max_tokens=self.max_tokens,
            )
        )
        assert turn is not None
        self.sent.append(turn.messages_to_send(lambda message: message))
        assert validate_messages(self.sent[-1]) == []
        return turn

    async def ask(self, *messages: Message, reply: Message | None = None) -> FittedCall:
        self.history += messages
        turn = await self.prepare()
        message = reply or answer(f"Noted {len(self.history)}.")
        await self.threads.record(turn, message, None, "stop")
        self.history.append(message)
        return turn

    async def work(self, turns: int, start: int = 0) -> None:
        """Take this many turns, each with a tool's page."""
        for number in range(start, start + turns):
            await self.ask(
                user(f"Entry {number}: {FILLER}"),
                reply=calls(f"call_{self.key}_{number}"),
            )
            await self.ask(result(f"call_{self.key}_{number}", FILLER * 8))


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def threads(tmp_path: Path, events: list[Event]) -> AsyncIterator[FrameworkThreads]:
    opened = open_threads(tmp_path, events)
    yield opened
    await opened.aclose()


def open_threads(folder: Path, events: list[Event]) -> FrameworkThreads:
    settings = parse_config("compression: {background: false}")
    return FrameworkThreads(
        "lab",
        logging.getLogger("lab"),
        store=folder / "books.db",
        config=settings,
        listener=events.append,
    )


async def test_a_history_that_fits_is_sent_unchanged(threads: FrameworkThreads) -> None:
    framework = Framework(threads)
    turn = await framework.ask(user("Hello."), reply=calls("call_1", "call_2"))
    assert not turn.is_changed
    turn = await framework.ask(result("call_1"), result("call_2"))
    assert turn.items == [0, 1, 2, 3]
    assert turn.note == ""


async def test_a_long_conversation_stays_one_thread(
    threads: FrameworkThreads, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    framework = Framework(threads)
    await framework.ask(user(f"Hello. {FACT}"))
    with caplog.at_level(logging.INFO, "lab"):
        await framework.work(60)
    done = [event for event in events if isinstance(event, CompactionDone)]
    assert len(done) >= 3
    assert len(framework.sent[-1]) < len(framework.history)
    assert "Everthread compacted the conversation" in caplog.text
    store = await threads.get_store()
    (thread,) = await store.list_threads()
    assert thread.message_count == len(framework.history)
    assert thread.first.client == "lab"
    assert thread.first.client_session == "books"
    assert len(await store.usage.list_usage(thread.first.id)) == len(framework.sent)
    assert "7731-KESTREL" in await threads.recall("books", {"query": "code of the vault"})
    assert "could not be looked up" in await threads.recall("books", {"id": "output:none"})


async def test_a_fitted_call_has_the_events_and_the_note(
    threads: FrameworkThreads,
) -> None:
    framework = Framework(threads)
    fitted_calls = [
        await framework.ask(user(f"Entry {number}: {FILLER * 10}")) for number in range(20)
    ]
    calls_with_events = [
        turn
        for turn in fitted_calls
        if any(isinstance(event, CompactionDone) for event in turn.events)
    ]
    assert calls_with_events
    assert calls_with_events[0].is_changed
    assert calls_with_events[0].note.startswith("Note: parts of this conversation are compacted")


async def test_another_process_continues_a_thread(
    threads: FrameworkThreads, tmp_path: Path, events: list[Event]
) -> None:
    first = Framework(threads)
    await first.work(20)
    later = open_threads(tmp_path, events)
    second = Framework(later)
    second.history = list(first.history)
    turn = await second.ask(user("And now?"))
    assert turn.is_changed
    assert (
        turn.prepared_call.thread_id == (await first.ask(user("And now?"))).prepared_call.thread_id
    )
    (thread,) = await (await threads.get_store()).list_threads()
    assert thread.message_count == len(second.history)
    await later.aclose()


async def test_two_processes_continue_one_thread_in_turns(
    threads: FrameworkThreads, tmp_path: Path, events: list[Event]
) -> None:
    other = open_threads(tmp_path, events)
    first = Framework(threads)
    second = Framework(other)
    for number in range(24):
        speaker = (first, second)[number % 2]
        await speaker.ask(user(f"Entry {number}: {FILLER * 10}"))
        first.history = second.history = speaker.history
    assert second.sent[-1] != second.history[:-1], "it was compacted"
    store = await threads.get_store()
    (thread,) = await store.list_threads()
    stored_texts = [text_of(message.body) for message in await store.load_history(thread.first.id)]
    assert stored_texts == [text_of(message) for message in second.history]
    assert thread.compaction_count == len(
        [event for event in events if isinstance(event, CompactionDone)]
    )
    await other.aclose()


async def test_sends_unchanged_messages_in_the_frameworks_form(
    threads: FrameworkThreads,
) -> None:
    """Kept messages are sent in the framework's form, which may hold more: reasoning, signatures, ids."""
    framework = Framework(threads)
    await framework.ask(user("Hello."), reply=answer("Good morning."))
    await framework.work(24)
    turn = await framework.prepare()
    assert turn.is_changed
    assert list(turn.items[:2]) == [0, 1], "the first exchange"
    assert turn.items[-1] == len(framework.history) - 1
    ours = [item for item in turn.items if not isinstance(item, int)]
    assert all(message not in framework.history for message in ours)


async def test_an_agent_with_another_role_takes_the_conversation_over(
    threads: FrameworkThreads,
) -> None:
    framework = Framework(threads)
    framework.system = role_of("bookkeeper")
    await framework.work(2)
    first = (await framework.prepare()).prepared_call.thread_id
    framework.system = role_of("auditor")
    turn = await framework.ask(user("Go on, auditor."))
    assert turn.prepared_call.thread_id == first


async def test_threads_of_two_owners_never_mix(threads: FrameworkThreads) -> None:
    first = Framework(threads)
    second = Framework(threads)
    second.owner = "another"
    for framework in (first, second):
        await framework.ask(user("Hello."), reply=answer("Good morning."))
    calls = [(await framework.prepare()).prepared_call for framework in (first, second)]
    assert calls[0].thread_id != calls[1].thread_id
    assert calls[0].match.tenant != calls[1].match.tenant


async def test_the_output_cap_is_lowered_for_one_call(
    threads: FrameworkThreads,
) -> None:
    framework = Framework(threads)
    framework.max_tokens = 3_000
    await framework.ask(user("Hello."))
    turn = await framework.prepare()
    assert turn.output_cap is None
    refusal = RuntimeError(
        "This model's maximum context length is 6000 tokens. However, you requested 8000 tokens "
        "(5000 in the messages, 3000 in the completion). Please reduce the length of the completion."
    )
    again = await threads.recover(turn, refusal)
    assert again.output_cap is not None
    assert again.output_cap < 3_000
    assert list(again.items) == [0, 1]


async def test_a_changed_history_is_a_branch(
    threads: FrameworkThreads,
) -> None:
    framework = Framework(threads)
    await framework.work(2)
    first = (await framework.prepare()).prepared_call.thread_id
    full_history = list(framework.history)
    framework.history = full_history[:4]
    turn = await framework.ask(user("Rather something else."))
    assert turn.prepared_call.thread_id != first
    assert turn.items == [0, 1, 2, 3, 4]
    framework.history = full_history
    again = await framework.ask(user("Go on."))
    assert again.prepared_call.thread_id == first


async def test_a_subagent_with_the_same_name_gets_its_own_thread(
    threads: FrameworkThreads,
) -> None:
    main = Framework(threads)
    helper = Framework(threads)
    await main.ask(user("Settle the books."), reply=calls("call_1"))
    await helper.ask(user("Look for receipts."))
    helper_call = await helper.prepare()
    turn = await main.ask(result("call_1"))
    assert turn.items == [0, 1, 2]
    assert turn.prepared_call.thread_id != helper_call.prepared_call.thread_id
    store = await threads.get_store()
    assert (
        await store.load_session(helper_call.prepared_call.thread_id)
    ).parent == turn.prepared_call.thread_id
    (conversation,) = await store.list_threads()
    assert conversation.first.id == turn.prepared_call.thread_id
    assert conversation.side_call_count == 1


async def test_a_thread_without_a_name_is_found_by_its_opening(
    threads: FrameworkThreads, tmp_path: Path, events: list[Event]
) -> None:
    first_framework = Framework(threads, key="")
    second_framework = Framework(threads, key="")
    await first_framework.ask(user("Hello."), reply=answer("Good morning."))
    await second_framework.ask(user("Hello."), reply=answer("Good evening."))
    first = await first_framework.ask(user("Go on."))
    second = await second_framework.ask(user("Go on."))
    assert first.prepared_call.thread_id != second.prepared_call.thread_id
    later = open_threads(tmp_path, events)
    again = Framework(later, key="")
    again.history = first_framework.history
    assert (
        await again.ask(user("Once more."))
    ).prepared_call.thread_id == first.prepared_call.thread_id
    await later.aclose()


async def test_a_refusal_for_size_is_recovered_from_and_others_are_raised(
    threads: FrameworkThreads,
) -> None:
    framework = Framework(threads)
    for number in range(6):
        await framework.ask(user(f"Entry {number}: {FILLER * 5}"))
    turn = await framework.prepare()
    refusal = RuntimeError(
        "This model's maximum context length is 2000 tokens, however you requested 2400 tokens"
    )
    smaller = await threads.recover(turn, refusal)
    assert len(smaller.items) < len(turn.items)
    assert smaller.prepared_call.limits.window == 2_000
    with pytest.raises(RuntimeError, match="of money"):
        await threads.recover(smaller, RuntimeError("out of money"))
    with pytest.raises(RuntimeError, match="maximum"):
        await threads.recover(None, refusal)


async def test_a_large_result_is_stored_and_cited(threads: FrameworkThreads) -> None:
    framework = Framework(threads)
    await framework.ask(user("Hello."), reply=calls("call_1"))
    await framework.ask(result("call_1", FILLER * 4_000))
    assert "output:" in text_of(framework.sent[-1][-1])
    assert len(framework.history[2]["content"] or "") > 300_000


async def test_the_framework_continues_after_a_failure(
    threads: FrameworkThreads, caplog: pytest.LogCaptureFixture
) -> None:
    framework = Framework(threads)
    turn = await framework.ask(user("Hello."))
    await (await threads.get_store()).close()
    turn = await framework.ask(user("Go on."))
    assert turn.items == [0, 1, 2]
    assert "could not store" in caplog.text
    other = Framework(threads, key="others")
    other.history = [user("Hello.")]
    unread = ModelCall(other.history, other.history, "gpt-4o", "others", window=WINDOW)
    assert await threads.prepare(unread) is None
    assert "could not prepare a model call" in caplog.text
    assert (
        await threads.prepare(
            ModelCall(
                [],
                [],
                "gpt-4o",
            )
        )
        is None
    )
    await threads.record(None, answer("Hi."))


def test_works_without_a_running_event_loop(tmp_path: Path, events: list[Event]) -> None:
    threads = open_threads(tmp_path, events)
    turn = threads.run_in_own_loop_and_wait(
        threads.prepare(
            ModelCall(
                [user("Hello.")],
                [],
                "gpt-4o",
                "books",
            )
        )
    )
    assert turn is not None
    threads.run_in_own_loop_and_wait(threads.record(turn, answer("Hi."), USAGE))
    threads.close()
    assert "Hello." in threads.run_in_own_loop_and_wait(threads.recall("books", {"query": "Hello"}))
    assert (
        threads.run_in_own_loop_and_wait(threads.recall("others", {"query": "Hello"}))
        == "Nothing was said in this conversation yet."
    )
    threads.close()
