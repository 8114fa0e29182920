"""The table of codecs: each protocol's own functions, which understand one another."""

from __future__ import annotations

from typing import get_args

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Api, Reply, Request
from everthread.wire.codecs import CODECS
from tests.chat_messages import assistant_message, result_block, text_part, user_message


def test_every_api_has_a_codec() -> None:
    assert set(CODECS) == set(get_args(Api))


@pytest.mark.parametrize("api", get_args(Api))
def test_decodes_its_own_output(api: Api) -> None:
    codec = CODECS[api]
    request = Request("some-model", [user_message("Hello?")], params={"max_tokens": 9})
    read = codec.decode_request(codec.encode_request(request))
    assert [text_of(message) for message in read.messages] == ["Hello?"]
    messages = codec.decode_messages(codec.encode_messages(request.messages))
    assert [text_of(message) for message in messages] == ["Hello?"]
    reply = Reply(assistant_message("Hello."), "stop", model="some-model", id="r1")
    assert text_of(codec.decode_reply(codec.encode_reply(reply)).message) == "Hello."
    decoder = codec.stream_decoder(model="some-model")
    for event in codec.encode_stream(reply):
        decoder.feed(event)
    assert text_of(decoder.reply().message) == "Hello."


def test_text_before_a_result_is_decoded_separately_and_encoded_together() -> None:
    codec = CODECS["anthropic"]
    result = result_block("t1", "done")
    wire = [user_message([text_part("First this."), result])]
    core = codec.decode_messages(wire)
    assert [message["role"] for message in core] == ["user", "tool"]
    assert codec.encode_messages(core) == wire
