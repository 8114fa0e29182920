"""Whatever is sent, the provider has an answer."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from everthread.lab.provider.answers import ProviderLogic, RequestRecord
from everthread.lab.provider.script import ScriptedAnswers
from everthread.lab.provider.served_models import PROTOCOLS, Protocol, index_models

WORDS = [
    "type",
    "role",
    "content",
    "text",
    "user",
    "assistant",
    "tool",
    "tool_use",
    "tool_result",
    "thinking",
    "system",
]
WORDS += [
    "id",
    "tool_use_id",
    "input",
    "name",
    "cache_control",
    "function_call",
    "call_id",
    "reasoning",
    "signature",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(WORDS) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)
BLOCKS = st.lists(st.dictionaries(st.sampled_from(WORDS), JSON, max_size=5), max_size=4)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "robot"])},
        optional={
            "content": st.text(max_size=5) | BLOCKS | JSON,
            "tool_calls": BLOCKS | JSON,
            "cache_control": JSON,
        },
    ),
    max_size=4,
)
FIELDS = st.fixed_dictionaries(
    {
        "model": st.just("claude-sonnet-5") | st.just("gpt-5") | JSON,
        "max_tokens": st.just(10) | JSON,
    },
    optional={
        "messages": MESSAGES | JSON,
        "input": MESSAGES | BLOCKS | JSON,
        "system": BLOCKS | JSON,
        "instructions": JSON,
        "tools": BLOCKS | JSON,
        "stream": st.booleans(),
        "stream_options": JSON,
        "thinking": st.just({"type": "enabled"}) | JSON,
        "cache_control": JSON,
    },
)

LOGIC = ProviderLogic(index_models(None), ScriptedAnswers(), None, lambda: 0.0)


@given(body=FIELDS | JSON, protocol=st.sampled_from(PROTOCOLS))
async def test_answers_or_refuses_any_request_in_the_form_of_the_protocol(
    body: Any, protocol: Protocol
) -> None:
    record = RequestRecord(1, protocol.api, protocol.path, headers={}, arrival_time=0.0, body=body)
    outgoing = await LOGIC.answer(protocol, record)
    assert outgoing.status == record.status
    assert outgoing.status in (200, 400, 404)
    if outgoing.status != 200:
        assert json.loads(outgoing.body)["error"]["message"] == record.error
    elif outgoing.events is None:
        assert protocol.codec.decode_reply(json.loads(outgoing.body)).message["role"] == "assistant"
