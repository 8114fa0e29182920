"""All codecs restore payloads verbatim, and read the output of each other function."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.messages import text_of
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.wire.codecs import CODECS
from tests.chat_messages import assistant_message, result_block, text_part, user_message
from tests.wire import anthropic_strategies, gemini_strategies, openai_strategies
from tests.wire.openai_bodies import MESSAGE, REASONING, completion, response


@pytest.mark.parametrize("api", get_args(Api))
def test_decodes_its_own_output(api: Api) -> None:
    codec = CODECS[api]
    request = ModelRequest("some-model", [user_message("Hello?")], params={"max_tokens": 9})
    read = codec.decode_request(codec.encode_request(request))
    assert [text_of(message) for message in read.messages] == ["Hello?"]
    messages = codec.decode_messages(codec.encode_messages(request.messages))
    assert [text_of(message) for message in messages] == ["Hello?"]
    reply = ModelReply(assistant_message("Hello."), "stop", model="some-model", id="r1")
    assert text_of(codec.decode_reply(codec.encode_reply(reply)).message) == "Hello."
    decoder = codec.stream_decoder(model="some-model")
    for event in codec.encode_stream(codec.encode_reply(reply)):
        decoder.feed(event)
    assert text_of(decoder.reply().message) == "Hello."


REQUESTS = {
    "openai_chat": openai_strategies.chat_request,
    "openai_responses": openai_strategies.responses_request,
    "gemini": gemini_strategies.requests,
}
REPLIES = {
    "openai_chat": openai_strategies.chat_reply,
    "openai_responses": openai_strategies.responses_reply,
    "anthropic": anthropic_strategies.replies,
    "gemini": gemini_strategies.replies,
}


@pytest.mark.parametrize("api", REQUESTS)
@given(data=st.data())
def test_restores_requests_verbatim(api: Api, data: st.DataObject) -> None:
    body = data.draw(REQUESTS[api])
    original = copy.deepcopy(body)
    codec = CODECS[api]
    assert codec.encode_request(codec.decode_request(body)) == original
    assert body == original


@pytest.mark.parametrize("api", REPLIES)
@given(data=st.data())
def test_decoding_a_reply_does_not_change_its_body(api: Api, data: st.DataObject) -> None:
    body = data.draw(REPLIES[api])
    original = copy.deepcopy(body)
    CODECS[api].decode_reply(body)
    assert body == original


THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
THOUGHT_PARTS = [{"text": "hm", "thought": True}, {"text": "x"}]
REPLIES_WITH_REASONING: dict[Api, Any] = {
    "openai_chat": completion(
        {"role": "assistant", "content": "x", "reasoning": "hm"}, model="served"
    ),
    "openai_responses": response(REASONING, MESSAGE, model="served"),
    "anthropic": {
        "model": "served",
        "content": [THINKING, text_part("x")],
        "stop_reason": "end_turn",
        "usage": {},
    },
    "gemini": {
        "modelVersion": "served",
        "candidates": [
            {
                "content": {"role": "model", "parts": THOUGHT_PARTS},
                "finishReason": "STOP",
            }
        ],
    },
}


@pytest.mark.parametrize("api", get_args(Api))
def test_requested_model_is_the_author_of_reasoning(api: Api) -> None:
    codec = CODECS[api]
    body = REPLIES_WITH_REASONING[api]
    decoder = codec.stream_decoder(model="alias")
    for event in codec.encode_stream(body):
        decoder.feed(event)
    for reply in (codec.decode_reply(body, model="alias"), decoder.reply()):
        with_reasoning = codec.encode_messages([reply.message], model="alias")
        without_reasoning = codec.encode_messages([reply.message], model="served")
        assert '"hm"' in json.dumps(with_reasoning) or REASONING in with_reasoning
        assert '"hm"' not in json.dumps(without_reasoning)
        assert REASONING not in without_reasoning
    [written] = codec.encode_messages([codec.decode_reply(body).message], model="served")[:1]
    assert '"hm"' in json.dumps(written) or written == REASONING


@pytest.mark.parametrize(
    ("api", "field"),
    [
        ("openai_chat", '"finish_reason": "length"'),
        ("openai_responses", '"reason": "max_output_tokens"'),
        ("anthropic", '"stop_reason": "max_tokens"'),
        ("gemini", '"finishReason": "MAX_TOKENS"'),
    ],
)
def test_encodes_a_changed_stop(api: Api, field: str) -> None:
    codec = CODECS[api]
    reply = codec.decode_reply(REPLIES_WITH_REASONING[api])
    changed = dataclasses.replace(reply, stop="length")
    assert field not in json.dumps(codec.encode_reply(reply))
    assert field in json.dumps(codec.encode_reply(changed))


def test_text_before_a_result_is_decoded_separately_and_encoded_together() -> None:
    codec = CODECS["anthropic"]
    result = result_block("t1", "done")
    wire = [user_message([text_part("First this."), result])]
    core = codec.decode_messages(wire)
    assert [message["role"] for message in core] == ["user", "tool"]
    assert codec.encode_messages(core) == wire
