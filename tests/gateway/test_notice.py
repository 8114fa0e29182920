"""`gateway.notice`: one line for the person when a compaction takes effect; the model never reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Api, Reply
from everthread.gateway.management.events import CompactionReceipt
from everthread.gateway.management.notice import (
    NoticeStream,
    has_notice,
    notice_line,
    strip_notices,
    takes_notice,
    with_notice,
)
from everthread.wire.codecs import CODECS
from everthread.wire.common import SseParser
from tests.gateway.clients import Client, Gate, answer, running, words
from tests.gateway.test_recall import BOTH, Talk, shown, talking

KEY = b"secret"
SETTINGS = "  notice: true\n"
THOUGHT = {"type": "thinking", "thinking": "t"}


async def fill(talk: Talk) -> Reply:
    """Until the first compaction; its answer."""
    await talk.fill()
    codec = CODECS[talk.client.api]
    if not talk.streams:
        return codec.decode_reply(json.loads(talk.raw), model=talk.client.model)
    decoder = codec.stream_decoder(model=talk.client.model)
    for event in talk.events:
        decoder.feed(event)
    return decoder.reply()


@pytest.mark.parametrize(("api", "streams"), BOTH)
async def test_the_person_reads_one_line_and_the_model_none(api: Api, streams: bool, tmp_path: Path) -> None:
    async with talking(tmp_path, api, streams=streams, settings=SETTINGS) as talk:
        reply = await fill(talk)
        text, _ = shown(reply)
        assert text.startswith("Noted: ")
        assert text.count("[everthread ") == 1
        assert "compaction 1: " in text
        assert "recall" in text
        assert reply.stop == "stop"
        before = talk.messages(1)
        assert "[everthread" in json.dumps(talk.client.messages), "the client keeps it"
        for question in ("And now?", "What is the boat called?", "Thank you."):
            again = await talk.ask(question)
            assert "[everthread" not in text_of(again.message), "once is enough"
            assert "x-everthread-receipt" not in talk.told
            assert "[everthread" not in json.dumps(talk.sent()), "it never goes upstream"
            assert talk.messages(1)[: len(before)] == before, "and changes nothing there"
            before = talk.messages(1)
        [row] = await talk.house.store.list_threads()
        stored = json.dumps([message.body for message in await talk.house.store.history(row.first.id)])
        assert "[everthread" not in stored
        assert all(record.status == 200 for record in talk.house.provider.log)


@pytest.mark.parametrize("notice", [False, True])
async def test_without_the_setting_there_is_a_receipt_and_no_line(notice: bool, tmp_path: Path) -> None:
    async def work(here: Gate) -> None:
        manager = here.manager(background=False, notice=notice)
        client = Client("openai_chat")
        client.says("Hello")
        sent = await answer(manager, client)
        while not sent.rewritten:
            client.says(f"Ledger: {words(600, f'ledger {len(client.messages)}')}")
            sent = await answer(manager, client)
        assert sent.headers["x-everthread-receipt"].startswith("compaction 1: ")
        assert bool(sent.notice) is notice
        assert [event.text for event in here.of(CompactionReceipt)] == [sent.headers["x-everthread-receipt"]]

    await running(tmp_path, work)


def history(api: Api, *contents: Any) -> str:
    listed = "input" if api == "openai_responses" else "messages"
    return json.dumps({"model": "m", listed: [{"role": "user", "content": "hi"}, *contents]})


def test_a_line_that_is_not_ours_stays() -> None:
    forged = notice_line("compaction 1: 10 -> 5 tokens", b"other")
    quoted = {"role": "user", "content": notice_line("mine", KEY)}
    text = history("openai_chat", {"role": "assistant", "content": f"So\n\n{forged}"}, quoted)
    assert has_notice(text.encode())
    assert strip_notices(text, "openai_chat", KEY) is None


def test_an_item_named_like_ours_stays() -> None:
    part = {"type": "input_text", "text": notice_line("Never push to main.", b"other")}
    named = {"id": "msg_everthread_1", "type": "message", "role": "user", "content": [part]}
    assert strip_notices(history("openai_responses", named), "openai_responses", KEY) is None


@pytest.mark.parametrize(
    ("api", "sent", "kept"),
    [
        ("openai_chat", [{"role": "assistant", "content": "So\n\nLINE"}], [{"role": "assistant", "content": "So"}]),
        ("openai_chat", [{"role": "assistant", "content": "So LINE\n"}], [{"role": "assistant", "content": "So"}]),
        (
            "openai_chat",
            [{"role": "assistant", "content": "LINE", "tool_calls": [1]}],
            [{"role": "assistant", "content": None, "tool_calls": [1]}],
        ),
        ("openai_chat", [{"role": "assistant", "content": "LINE"}, {"role": "user", "content": "x"}],
         [{"role": "user", "content": "x"}]),
        (
            "anthropic",
            [{"role": "assistant", "content": [{"type": "text", "text": "So"}, {"type": "text", "text": "LINE"}]}],
            [{"role": "assistant", "content": [{"type": "text", "text": "So"}]}],
        ),
        (
            "anthropic",
            [{"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "a\n\nLINE"}]}],
            [{"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "a"}]}],
        ),
        (
            "openai_responses",
            [
                {"role": "assistant", "content": [{"type": "output_text", "text": "LINE"}]},
                {"type": "item_reference", "id": "msg_everthread_0123456789abcdef"},
                "text",
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "LINE"}]},
                {"type": "message", "id": "msg_everthread_0123456789abcdef", "role": "assistant", "content": []},
            ],
            ["text", {"role": "user", "content": "x"}],
        ),
        ("openai_responses", [{"role": "assistant", "content": None}], [{"role": "assistant", "content": None}]),
    ],
)  # fmt: skip
def test_a_line_of_ours_is_taken_out(api: Api, sent: list[Any], kept: list[Any]) -> None:
    line = notice_line("compaction [1]: 10 -> 5 tokens", KEY)
    text = history(api, *sent).replace("LINE", line)
    found = strip_notices(text, api, KEY)
    listed = "input" if api == "openai_responses" else "messages"
    assert json.loads(found or text)[listed][1:] == kept


@pytest.mark.parametrize(
    ("api", "fields", "takes"),
    [
        ("openai_chat", {}, True),
        ("openai_chat", {"n": 2}, False),
        ("openai_chat", {"response_format": {"type": "json_object"}}, False),
        ("openai_chat", {"response_format": {"type": "text"}}, True),
        ("openai_responses", {"text": {"format": {"type": "json_schema"}}}, False),
        ("openai_responses", {"text": {"verbosity": "low"}}, True),
        ("anthropic", {"output_format": {"type": "json_schema"}}, False),
        ("anthropic", {}, True),
    ],
)
def test_what_a_program_reads_gets_no_line(api: Api, fields: dict[str, Any], takes: bool) -> None:
    assert takes_notice(api, fields) is takes


@pytest.mark.parametrize("raw", [b"no json", b"[]", b"{}", b'{"choices": [{}]}'])
def test_an_answer_that_cannot_be_read_goes_as_it_came(raw: bytes) -> None:
    for api in ("openai_chat", "anthropic", "openai_responses"):
        assert with_notice(api, raw, "line") == raw


def test_the_last_words_that_come_with_the_end_stand_before_the_line() -> None:
    stream = NoticeStream("openai_chat", "LINE")
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    last = {**head, "choices": [{"index": 0, "delta": {"content": "end"}, "finish_reason": "stop"}]}
    parts = [b": waiting\n\n", f"data: {json.dumps({**head, 'choices': []})}\n\n".encode(),
             f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode(), b"data: rest"]  # fmt: skip
    made = b"".join(stream.feed(part) for part in parts) + stream.end()
    assert made.startswith(b": waiting\n\n")
    assert made.endswith(b"data: [DONE]\n\ndata: rest")
    chunks = [json.loads(event.data) for event in SseParser().feed(made) if event.data.startswith("{")]
    assert [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]] == [{"content": "end\n\nLINE"}, {}]
