"""A body whose beginning is known is read as if it were not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.core.types import Api
from everthread.errors import WireError
from everthread.gateway.body import slice_text
from everthread.gateway.management.reader import ParsedRequest, RequestReader, SizeCache

TOOLS = [{"name": f"tool_{index}", "description": "Reads. " * 20, "input_schema": {}} for index in range(3)]
WORDS = st.text('abcé漢 "\\', max_size=30)


def message(index: int, words: str) -> dict[str, Any]:
    if index % 3 == 2:
        result = {"type": "tool_result", "tool_use_id": f"call_{index}", "content": words * 30}
        return {"role": "user", "content": [result]}
    return {"role": ("user", "assistant")[index % 2], "content": f"{words} {index} " * 10}


def written(api: Api, messages: list[Any], *, lead: bool, indent: int | None, first: bool) -> bytes:
    system = [{"role": "system", "content": "Be brief."}] if lead else []
    listed = {"input" if api == "openai_responses" else "messages": [*system, *messages]}
    around = {"model": "m", "tools": TOOLS, "max_tokens": 9}
    body = {**listed, **around} if first else {**around, **listed}
    return json.dumps(body, indent=indent, ensure_ascii=False).encode()


def seen(read: ParsedRequest) -> Any:
    return (
        read.sliced.fields, read.sliced.spans, [(one.start, one.end, one.value) for one in read.sliced.elements],
        read.first, read.history, read.frame, read.sizes, read.fixed,
    )  # fmt: skip


@settings(max_examples=60)
@given(
    api=st.sampled_from(["openai_chat", "openai_responses", "anthropic"]),
    words=st.lists(WORDS, min_size=3, max_size=14),
    changed=st.integers(0, 13),
    lead=st.booleans(),
    indent=st.sampled_from([None, 1]),
    first=st.booleans(),
)
def test_what_is_known_changes_nothing(
    *, api: Api, words: list[str], changed: int, lead: bool, indent: int | None, first: bool
) -> None:
    """Histories that grow, shrink, and go on otherwise from some message on."""
    messages = [message(index, text) for index, text in enumerate(words)]
    other = [*messages[:changed], *(message(index, "other") for index in range(changed, len(words)))]
    knowing = RequestReader(SizeCache())
    for history in (messages[:2], messages, other, messages[:-1], [*messages, message(len(words), "more")]):
        body = written(api, history, lead=lead, indent=indent, first=first)
        for _ in range(2):
            assert seen(knowing.read(api, body)) == seen(RequestReader(SizeCache()).read(api, body))


@pytest.mark.parametrize("place", [3, 40, 90, 119])
def test_bodies_that_differ_between_their_samples_are_told_apart(place: int) -> None:
    """Only a part of a long body is hashed to find one that begins alike."""
    knowing = RequestReader(SizeCache())
    histories = []
    for changed in ("one", "two"):
        messages = [{"role": ("user", "assistant")[index % 2], "content": "x" * 1_500} for index in range(120)]
        messages[place] = {**messages[place], "content": "x" * 700 + changed + "x" * 797}
        for end in (messages, [*messages, {"role": "user", "content": "More?"}]):
            body = json.dumps({"model": "m", "messages": end}).encode()
            read = knowing.read("anthropic", body)
            assert seen(read) == seen(RequestReader(SizeCache()).read("anthropic", body))
            histories.append(read.history.digest(len(read.history)))
    assert len(set(histories)) == 4


@pytest.mark.parametrize("end", [b"]", b"", b",]}", b" 1]}", b'],"messages":[]}', b'],"a":1}', b"]} x"])
def test_a_known_beginning_does_not_excuse_a_broken_end(end: bytes) -> None:
    rest = json.dumps({"a": 1, "tools": TOOLS})[1:].encode()
    start = b'{"model":"m","a":0,"messages":[' + b",".join(
        json.dumps(message(index, "words")).encode() for index in range(9)
    )
    reader = RequestReader(SizeCache())
    reader.read("openai_chat", start + b"]}")
    for broken in (start + end, start + b"]," + rest):
        with pytest.raises(WireError, match="the request"):
            reader.read("openai_chat", broken)


def test_a_number_may_go_on_where_the_known_part_ends() -> None:
    """A message is complete only where something is seen behind it."""
    start = '{"messages":[1'
    begun = slice_text(start + "]}", "openai_chat").layout.until("messages", len(start))
    sliced = slice_text(start + "2,3]}", "openai_chat", begun)
    assert [element.value for element in sliced.elements] == [12, 3]
