"""Fields of a body without parsing it: always what a parser of the whole would say."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.filters.usage_option import UsageChunkRemover, add_usage_option
from everthread.gateway.request.outer_fields import OuterFields, peek_field

NAMES = st.sampled_from(["model", "stream", "x", 'a"model', "\\", '"model":', "model\\"])
VALUES: Any = st.recursive(
    st.one_of(st.booleans(), st.none(), st.integers(), NAMES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)


@given(
    body=st.dictionaries(NAMES, VALUES, max_size=4),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_finds_the_same_value_as_a_json_parser(
    body: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    for name in ("model", "stream"):
        for found in (peek_field(text, name), OuterFields(text).find(name)):
            assert (found is not None) == (name in body)
            if found is not None:
                assert found.value == body[name]


@given(
    pairs=st.lists(st.tuples(NAMES, VALUES), max_size=5),
    blank=st.sampled_from(["", " ", "\n\t"]),
    escaped=st.booleans(),
)
@example(pairs=[('a"model', None)], blank="", escaped=True)
def test_refuses_a_duplicate_field(pairs: list[tuple[str, Any]], blank: str, escaped: bool) -> None:
    """However it is written; an unused field may occur twice."""
    keys = [
        json.dumps(name).replace("o", "\\u006f") if escaped else json.dumps(name)
        for name, _ in pairs
    ]
    fields = [
        f"{blank}{key}{blank}:{blank}{json.dumps(value)}"
        for key, (_, value) in zip(keys, pairs, strict=True)
    ]
    text = f"{blank}{{{','.join(fields)}{blank}}}{blank}".encode()
    names = [name for name, _ in pairs]
    hidden = escaped and "model" in names
    try:
        outer = OuterFields(text)
    except RequestRefused:
        assert hidden or any(names.count(name) > 1 for name in ("model", "stream"))
        return
    assert not hidden
    assert all(names.count(name) <= 1 for name in ("model", "stream"))
    assert outer.wants_stream == any(name == "stream" and value is True for name, value in pairs)


@given(st.binary(max_size=80).map(lambda raw: b'{"model":' + raw))
def test_never_raises_for_bytes_that_are_not_json(body: bytes) -> None:
    value = peek_field(body, "model")
    assert value is None or value.start < len(body)
    changed = add_usage_option(body)
    assert changed is None or b"include_usage" in changed


@given(
    body=st.dictionaries(NAMES, VALUES, max_size=4),
    options=st.sampled_from(
        [None, {}, {"include_usage": False}, {"include_usage": True}, {"other": 1}]
    ),
    absent=st.booleans(),
)
def test_asking_for_usage_changes_nothing_else(
    body: dict[str, Any], options: Any, absent: bool
) -> None:
    sent = body if absent else {**body, "stream_options": options}
    changed = add_usage_option(json.dumps(sent).encode())
    silent = absent or (options is not None and "include_usage" not in options)
    assert (changed is not None) == (body.get("stream") is True and silent)
    if changed is not None:
        assert json.loads(changed) == {
            **sent,
            "stream_options": {
                **(sent.get("stream_options") or {}),
                "include_usage": True,
            },
        }


EVENTS = st.lists(
    st.sampled_from(
        [
            b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n',
            b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}\r\n\r\n',
            b": a comment\n\n",
            b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
            b"data: [DONE]\n\n",
        ]
    ),
    max_size=6,
)
EXTRA = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'


@given(
    before=EVENTS,
    after=EVENTS,
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    rest=st.sampled_from([b"", b"data: {"]),
)
def test_removes_only_the_added_usage_chunk(
    before: list[bytes], after: list[bytes], cuts: list[int], rest: bytes
) -> None:
    """However the bytes are cut."""
    data = b"".join([*before, EXTRA, *after]) + rest
    stream = UsageChunkRemover()
    output = b""
    start = 0
    while start < len(data):
        size = cuts[start % len(cuts)]
        output += stream.feed(data[start : start + size])
        start += size
    assert output + stream.end() == b"".join([*before, *after]) + rest
