"""Server-sent events: any cut of the bytes gives the same events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.wire.sse import SseEvent, SseParser, SseSplitter, encode_event


def parse(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: hi\n\n", [SseEvent(None, "hi")]),
        (b"event: ping\ndata: {}\n\n", [SseEvent("ping", "{}")]),
        (b"data:no space\n\n", [SseEvent(None, "no space")]),
        (b"data:  two spaces\n\n", [SseEvent(None, " two spaces")]),
        (b"data: one\ndata: two\n\n", [SseEvent(None, "one\ntwo")]),
        (b"data\n\n", [SseEvent(None, "")]),
        (
            b"data: a\r\n\r\ndata: b\r\rdata: c\n\n",
            [SseEvent(None, "a"), SseEvent(None, "b"), SseEvent(None, "c")],
        ),
        (b": keep-alive\n\n: again\n\ndata: x\n\n", [SseEvent(None, "x")]),
        (b"id: 7\nretry: 100\nunknown: y\ndata: x\n\n", [SseEvent(None, "x")]),
        (b"event: only a name\n\ndata: x\n\n", [SseEvent(None, "x")]),
        (
            b"\xef\xbb\xbfdata: after a byte order mark\n\n",
            [SseEvent(None, "after a byte order mark")],
        ),
        (b"data: \xef\xbb\xbfkept inside\n\n", [SseEvent(None, "\ufeffkept inside")]),
        (b"data: cut off", [SseEvent(None, "cut off")]),
        (
            b"data: one\n\ndata: cut off\n",
            [SseEvent(None, "one"), SseEvent(None, "cut off")],
        ),
        ("data: 你好 🦉\n\n".encode(), [SseEvent(None, "你好 🦉")]),
        (b"data: \xff broken\n\n", [SseEvent(None, "\ufffd broken")]),
        (b"data: \xe4\xbd", [SseEvent(None, "\ufffd")]),
        (b"data: a\x0bb\xe2\x80\xa8c\n\n", [SseEvent(None, "a\x0bb\u2028c")]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_parses_events_as_the_standard_says(raw: bytes, events: list[SseEvent]) -> None:
    assert parse(raw) == events
    assert parse(*(raw[at : at + 1] for at in range(len(raw)))) == events


def test_returns_an_event_as_soon_as_it_is_complete() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\ndata: b") == [SseEvent(None, "a")]
    assert parser.close() == [SseEvent(None, "b")]
    assert parser.close() == []


def test_a_newline_after_a_lone_return_is_not_a_second_line_end() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\r") == []
    assert parser.feed(b"\n\r\n") == [SseEvent(None, "a\nb")]


lines = st.lists(
    st.sampled_from(
        [
            "data: text",
            "data: 你好",
            "data:",
            "data: 🦉 owl",
            ": comment",
            "event: delta",
            "id: 3",
            "retry: 5",
            "",
            "",
            "junk",
            "data: \ufeff",
        ]
    ),
    max_size=12,
)


@given(st.data(), lines, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_any_chunking_gives_the_same_events(
    data: st.DataObject, said: list[str], end: str, bom: bool
) -> None:
    raw = (("\ufeff" if bom else "") + "".join(line + end for line in said)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert parse(*chunks) == parse(raw)
    assert [(e.event, e.data) for e in parse(*chunks)] == _by_lines(said)


def _by_lines(said: list[str]) -> list[tuple[str | None, str]]:
    """Parse whole lines by the standard's algorithm, for comparison."""
    found = []
    name = ""
    data = list[str]()
    for line in [*said, ""]:
        field, _, value = line.partition(":")
        if line == "":
            if data:
                found.append((name or None, "\n".join(data)))
            name = ""
            data = []
        elif field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return found


@given(st.lists(st.tuples(st.none() | st.sampled_from(["ping", "message_start"]), st.text())))
def test_parses_encoded_events(said: list[tuple[str | None, str]]) -> None:
    events = [SseEvent(name, text.replace("\r\n", "\n").replace("\r", "\n")) for name, text in said]
    assert parse(b"".join(map(encode_event, events))) == events


def test_accepts_half_a_surrogate_pair() -> None:
    assert encode_event(SseEvent(None, "\ud800!")) == b"data: ?!\n\n"


def test_reads_small_chunks_in_linear_time() -> None:
    """Unfinished lines are collected, not joined again for each chunk."""
    parser = SseParser()
    for _ in range(50_000):
        parser.feed(b"data: x" if _ == 0 else b"y" * 100)
    [event] = parser.close()
    assert len(event.data) == 1 + 49_999 * 100


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_splits_a_stream_into_its_events(blank: bytes, size: int) -> None:
    stream = b"data: a" + blank + b": comment" + blank + b"event: b" + blank + b"data: unfinished"
    splitter = SseSplitter()
    cut = [
        event
        for at in range(0, len(stream), size)
        for event in splitter.feed(stream[at : at + size])
    ]
    assert cut == [b"data: a" + blank, b": comment" + blank, b"event: b" + blank]
    assert splitter.pop_pending() == b"data: unfinished"
    assert splitter.pop_pending() == b""
