"""A body whose beginning is known is read with the same result."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.core.tokens import TokenCounter
from everthread.core.types import Api
from everthread.errors import WireError
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.gateway.request.json_slices import slice_body
from everthread.gateway.request.request_reader import (
    LocatedBody,
    ParsedRequest,
    RequestReader,
)
from everthread.thread.caller.message_caches import SizeCache

TOOLS = [
    {
        "name": f"tool_{index}",
        "description": "Reads. " * 20,
        "input_schema": {},
    }
    for index in range(3)
]
WORDS = st.text('abcé漢 "\\', max_size=30)


def message(index: int, words: str) -> dict[str, Any]:
    if index % 3 == 2:
        result = {
            "type": "tool_result",
            "tool_use_id": f"call_{index}",
            "content": words * 30,
        }
        return {"role": "user", "content": [result]}
    return {
        "role": ("user", "assistant")[index % 2],
        "content": f"{words} {index} " * 10,
    }


def write_body(
    api: Api, messages: list[Any], *, lead: bool, indent: int | None, first: bool
) -> bytes:
    system = [{"role": "system", "content": "Be brief."}] if lead else []
    listed = {"input" if api == "openai_responses" else "messages": [*system, *messages]}
    around = {
        "model": "m",
        "tools": TOOLS,
        "max_tokens": 9,
    }
    body = {**listed, **around} if first else {**around, **listed}
    return json.dumps(body, indent=indent, ensure_ascii=False).encode()


def locate(reader: RequestReader, api: Api, body: bytes) -> LocatedBody:
    origin = BodyOrigin(api)
    return reader.locate(origin, body, reader.bodies.find(origin, body))


class ReadBody(NamedTuple):
    located_body: LocatedBody
    parsed: ParsedRequest


def read(reader: RequestReader, api: Api, body: bytes, thread: str = "t") -> ReadBody:
    """Read a body as the next one of a thread."""
    located_body = locate(reader, api, body)
    parsed = reader.read_now(located_body)
    reader.remember(thread, located_body, parsed)
    return ReadBody(located_body, parsed)


def read_alone(api: Api, body: bytes) -> ReadBody:
    return read(RequestReader(SizeCache()), api, body)


def comparable(read: ReadBody) -> Any:
    slices = read.located_body.slices
    return (
        slices.fields,
        slices.spans,
        [(one.start, one.end, one.value) for one in slices.messages],
        read.located_body.system_count,
        read.parsed.history,
        read.parsed.settings,
        read.parsed.sizes,
        read.parsed.fixed_tokens,
    )


@settings(max_examples=60)
@given(
    api=st.sampled_from(["openai_chat", "openai_responses", "anthropic"]),
    words=st.lists(WORDS, min_size=3, max_size=14),
    changed=st.integers(0, 13),
    lead=st.booleans(),
    indent=st.sampled_from([None, 1]),
    first=st.booleans(),
)
def test_reusing_a_prefix_does_not_change_the_result(
    *,
    api: Api,
    words: list[str],
    changed: int,
    lead: bool,
    indent: int | None,
    first: bool,
) -> None:
    """Histories that grow, shrink, and differ from some message on."""
    messages = [message(index, text) for index, text in enumerate(words)]
    other = [
        *messages[:changed],
        *(message(index, "other") for index in range(changed, len(words))),
    ]
    knowing = RequestReader(SizeCache())
    for history in (
        messages[:2],
        messages,
        other,
        messages[:-1],
        [*messages, message(len(words), "more")],
    ):
        body = write_body(
            api,
            history,
            lead=lead,
            indent=indent,
            first=first,
        )
        for _ in range(2):
            assert comparable(read(knowing, api, body)) == comparable(read_alone(api, body))


def anthropic_body(messages: list[Any]) -> bytes:
    body = {
        "model": "m",
        "messages": messages,
        "tools": TOOLS,
    }
    return json.dumps(body, ensure_ascii=False).encode()


def text_message(index: int, text: str, *, marked: bool = False) -> dict[str, Any]:
    block: Any = {"type": "text", "text": text}
    if marked:
        block["cache_control"] = {"type": "ephemeral"}
    return {"role": ("user", "assistant")[index % 2], "content": [block]}


@pytest.mark.parametrize("place", [3, 40, 90, 119])
def test_similar_threads_do_not_evict_each_other(place: int) -> None:
    knowing = RequestReader(SizeCache())
    threads = {}
    for name in ("one", "two"):
        messages = [text_message(index, "größer " * 200) for index in range(120)]
        messages[place] = text_message(place, f"größer {name} " * 200)
        threads[name] = messages
        read(
            knowing,
            "anthropic",
            body=anthropic_body(messages),
            thread=name,
        )
    digests = set()
    for name, messages in threads.items():
        body = anthropic_body([*messages, text_message(120, "More?")])
        located_body = locate(knowing, "anthropic", body)
        assert located_body.match is not None
        assert located_body.match.cached_body.thread == name
        assert located_body.match.message_count == 120
        read_body = read(
            knowing,
            "anthropic",
            body=body,
            thread=name,
        )
        assert comparable(read_body) == comparable(read_alone("anthropic", body))
        digests.add(read_body.parsed.history.digest(121))
    assert len(digests) == 2


def test_reuses_the_prefix_after_cache_marks_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[Any] = []
    count_messages = TokenCounter.messages

    def record_and_count(counter: TokenCounter, messages: Any) -> int:
        counted.append(messages)
        return count_messages(counter, messages)

    monkeypatch.setattr(TokenCounter, "messages", record_and_count)
    knowing = RequestReader(SizeCache())
    messages = [text_message(index, f"größer {index} " * 50) for index in range(41)]
    for length in (37, 39, 41):
        marked = [
            text_message(index, message["content"][0]["text"], marked=index + 3 >= length)
            for index, message in enumerate(messages[:length])
        ]
        body = anthropic_body(marked)
        located_body = locate(knowing, "anthropic", body)
        if length > 37:
            assert located_body.match is not None
            assert located_body.match.message_count == length - 5
            assert located_body.match.tail_bytes
            assert located_body.new_bytes < 6 * 1_000
        counted.clear()
        parsed = read(knowing, "anthropic", body).parsed
        if length > 37:
            assert len(counted) == 2, "the new messages"
        alone = read_alone("anthropic", body).parsed
        assert parsed.history.digests == alone.history.digests
        assert parsed.sizes == alone.sizes
        assert parsed.fixed_tokens == alone.fixed_tokens


def test_a_cache_mark_in_call_arguments_is_content() -> None:
    knowing = RequestReader(SizeCache())
    histories = set()
    for mark in ({"cache_control": {"type": "ephemeral"}}, {}):
        call = {
            "type": "tool_use",
            "id": "1",
            "name": "edit",
            "input": mark,
        }
        messages = [
            text_message(0, "Edit it. " * 90),
            {"role": "assistant", "content": [call]},
        ]
        body = anthropic_body([*messages, text_message(2, "Go on.")])
        read_body = read(knowing, "anthropic", body)
        assert comparable(read_body) == comparable(read_alone("anthropic", body))
        histories.add(read_body.parsed.history.digest(3))
    assert len(histories) == 2


@pytest.mark.parametrize(
    "end", [b"]", b"", b",]}", b" 1]}", b'],"messages":[]}', b'],"a":1}', b"]} x"]
)
def test_refuses_an_invalid_end_after_a_known_prefix(end: bytes) -> None:
    rest = json.dumps({"a": 1, "tools": TOOLS})[1:].encode()
    start = b'{"model":"m","a":0,"messages":[' + b",".join(
        json.dumps(message(index, "words")).encode() for index in range(9)
    )
    reader = RequestReader(SizeCache())
    read(reader, "openai_chat", start + b"]}")
    for broken in (start + end, start + b"]," + rest):
        with pytest.raises(WireError, match="the request"):
            read(reader, "openai_chat", broken)


def test_a_number_may_continue_after_the_known_prefix() -> None:
    """A message is complete only if something is seen after it."""
    start = b'{"messages":[1'
    slices = slice_body(start + b"]}", "openai_chat")
    assert slices.count_complete(len(start)) == 0
    assert slices.count_complete(len(start) + 1) == 1
