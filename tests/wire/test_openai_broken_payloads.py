"""Broken payloads of OpenAI's protocols are restored, or refused with `WireError`."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.errors import WireError
from everthread.wire import openai_chat, openai_responses
from tests.wire import openai_strategies


@pytest.mark.parametrize(
    ("codec", "requests"),
    [
        (openai_chat, openai_strategies.chat_request),
        (openai_responses, openai_strategies.responses_request),
    ],
    ids=["chat", "responses"],
)
@openai_strategies.few
@given(data=st.data())
def test_broken_requests_are_restored_or_refused(
    codec: Any, requests: Any, data: st.DataObject
) -> None:
    body = data.draw(openai_strategies.broken_payloads(requests))
    with contextlib.suppress(WireError):
        request = codec.decode_request(body)
        assert codec.encode_request(request) == body
        openai_chat.encode_messages(request.messages)
        openai_responses.encode_messages(request.messages)


EACH_REPLY = pytest.mark.parametrize(
    ("codec", "replies"),
    [
        (openai_chat, openai_strategies.chat_reply),
        (openai_responses, openai_strategies.responses_reply),
    ],
    ids=["chat", "responses"],
)


@EACH_REPLY
@openai_strategies.few
@given(data=st.data())
def test_broken_replies_are_read_or_refused(codec: Any, replies: Any, data: st.DataObject) -> None:
    body = data.draw(openai_strategies.broken_payloads(replies))
    with contextlib.suppress(WireError):
        assert codec.decode_reply(body).message["role"] == "assistant"


@EACH_REPLY
@openai_strategies.few
@given(data=st.data())
def test_broken_streams_are_read_or_refused(codec: Any, replies: Any, data: st.DataObject) -> None:
    body = data.draw(replies)
    events = [
        json.loads(event.data) for event in codec.encode_stream(body) if event.data != "[DONE]"
    ]
    with contextlib.suppress(WireError):
        at = data.draw(st.integers(0, len(events) - 1))
        events[at] = data.draw(openai_strategies.broken_payloads(st.just(events[at])))
        decoder = codec.stream_decoder(model=None)
        for event in events:
            decoder.feed(event)
        assert decoder.reply().message["role"] == "assistant"
