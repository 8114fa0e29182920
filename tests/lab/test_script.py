"""ScriptedAnswers from a recording, from a file, and in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.messages import calls_of, text_of
from everthread.core.types import ModelReply, ModelRequest
from everthread.errors import InputError
from everthread.lab.provider import Provider, RecordedAnswers
from everthread.lab.provider.answers import split_events
from everthread.lab.provider.faults import Fault
from everthread.lab.provider.script import ScriptedAnswers, echo, read_script
from everthread.lab.provider.served_models import PROTOCOLS, Protocol
from everthread.wire import anthropic, gemini, openai_chat, openai_responses
from tests.chat_messages import function_call, result_message
from tests.lab.official_clients import CLAUDE, open_clients
from tests.shared_data import shared_path

DECODERS: dict[str, Any] = {
    "openai_chat": openai_chat.stream_decoder,
    "openai_responses": openai_responses.stream_decoder,
    "anthropic": anthropic.stream_decoder,
    "gemini": gemini.stream_decoder,
}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


TALK = [
    user("go on"),
    assistant("one"),
    user("go on"),
    assistant("two"),
    user("stop"),
    assistant("three"),
]


def answer_text(recorded: RecordedAnswers, *messages: Any) -> str:
    answer = recorded(ModelRequest("gpt-5", list(messages)))
    return text_of(answer.message) if isinstance(answer, ModelReply) else str(answer)


class TestRecorded:
    def test_answers_as_recorded(self) -> None:
        recorded = RecordedAnswers(TALK)
        assert [answer_text(recorded, *TALK[:end]) for end in (1, 3, 5)] == [
            "one",
            "two",
            "three",
        ]

    def test_a_repeated_request_gets_the_same_answer(self) -> None:
        recorded = RecordedAnswers(TALK)
        assert [answer_text(recorded, *TALK[:3]) for _ in range(3)] == ["two"] * 3

    def test_recognizes_a_request_after_a_compaction(self) -> None:
        recorded = RecordedAnswers(TALK)
        assert answer_text(recorded, user("[a summary]"), *TALK[1:3]) == "two"
        assert answer_text(recorded, user("[a summary]"), TALK[4]) == "three"

    def test_echoes_an_unknown_request(self) -> None:
        assert (
            answer_text(RecordedAnswers(TALK), user("Summarise this."))
            == "You said: Summarise this."
        )
        assert answer_text(RecordedAnswers([]), user("Hi")) == "You said: Hi"

    async def test_replays_a_recorded_conversation_over_http(self) -> None:
        """As a client would have it: each answer goes back, each call gets its recorded result."""
        messages = json.loads(
            shared_path("transcripts", "coding-long-claude.json").read_text("utf-8")
        )["messages"]
        start = next(at for at, message in enumerate(messages) if message["role"] == "user")
        talk = messages[start : start + 24]
        while talk[-1]["role"] != "assistant" or calls_of(talk[-1]):
            talk.pop()
        turns = [at for at in range(1, len(talk)) if talk[at]["role"] == "assistant"]

        provider = Provider({CLAUDE: 200_000}, RecordedAnswers(talk))
        expected = [(text_of(talk[at]), [call.name for call in calls_of(talk[at])]) for at in turns]
        async with open_clients(provider) as clients:
            answers = []
            for at in turns:
                request = ModelRequest(CLAUDE, talk[:at], params={"max_tokens": 8000})
                raw = await clients.claude.messages.with_raw_response.create(
                    **anthropic.encode_request(request)
                )
                reply = anthropic.decode_reply(json.loads(raw.http_response.text))
                answers.append(
                    (
                        text_of(reply.message),
                        [call.name for call in calls_of(reply.message)],
                    )
                )
            assert answers == expected
        assert all(record.shared and record.shared.is_extension for record in provider.log[1:])


class TestFiles:
    def test_reads_texts_messages_and_faults(self) -> None:
        call = function_call("c1", "ls")
        script = read_script(
            ["Hi.", {"tool_calls": [call]}, {"fault": "rate_limit", "retry_after": 2}]
        )
        assert script == [
            "Hi.",
            ModelReply({"content": None, "tool_calls": [call], "role": "assistant"}),
            Fault("rate_limit", retry_after=2),
        ]

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ({"a": 1}, "a list of answers, not dict"),
            ([3], "answer 0 of the script is a text or an object, not int"),
            ([{"text": "Hi"}], "neither content nor tool_calls nor fault"),
            ([{"fault": "weather"}], "fault 'weather' is unknown"),
            ([{"fault": "hang", "minutes": 3}], "answer 0 of the script: .*minutes"),
        ],
    )
    def test_refuses_an_invalid_answer(self, value: Any, words: str) -> None:
        with pytest.raises(InputError, match=words):
            read_script(value)


def test_echoes_results_and_empty_requests() -> None:
    assert echo(ModelRequest("m", [result_message("c", "42")])) == "You said: 42"
    assert echo(ModelRequest("m", [])) == "You said nothing."


async def test_uses_a_list_in_order() -> None:
    answers = ScriptedAnswers(["a", lambda request: request.model, "c"])

    async def run() -> list[Any]:
        return [await answers.next(ModelRequest("m", [])) for _ in range(3)]

    assert await run() == ["a", "m", "c"]


@given(
    text=st.text(max_size=300),
    thinking=st.text(min_size=1, max_size=100),
    arguments=st.dictionaries(st.text(max_size=5), st.text(max_size=80), max_size=3),
    protocol=st.sampled_from(PROTOCOLS),
)
def test_splits_a_stream_without_changing_its_message(
    text: str, thinking: str, arguments: dict[str, str], protocol: Protocol
) -> None:
    message: Any = {
        "role": "assistant",
        "content": text,
        "reasoning_content": thinking,
        "tool_calls": [function_call("c1", "ls", json.dumps(arguments))],
    }
    body = protocol.codec.encode_reply(ModelReply(message, "tool_calls", model="m", id="r"))
    whole = DECODERS[protocol.api]()
    pieces = DECODERS[protocol.api]()
    for event in protocol.codec.encode_stream(body):
        whole.feed(event)
    events = list(split_events(protocol.codec.encode_stream(body)))
    deltas = [delta for event in events for delta in pieces.feed(event)]
    assert openai_chat.encode_messages([pieces.reply().message]) == openai_chat.encode_messages(
        [whole.reply().message]
    )
    assert all(len(delta.text) <= 24 for delta in deltas if delta.kind == "text")
