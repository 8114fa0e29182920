"""Encode messages of other APIs in Anthropic's form."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from everthread.core.caching.claude_cache_marks import apply_cache_control
from everthread.core.message_repair import OPENING_TEXT, repair_messages
from everthread.core.messages import Message, parts_of
from everthread.core.turns import is_user_message
from everthread.core.types import ModelRequest
from everthread.core.validation import validate_messages
from everthread.wire import anthropic
from everthread.wire.native_values import with_native
from tests.chat_messages import (
    assistant_message,
    call_block,
    custom_call,
    function_call,
    image_part,
    result_block,
    result_message,
    user_message,
)
from tests.shared_data import shared_path
from tests.wire.anthropic_strategies import chat_histories, copy_of

MARKER = {"type": "ephemeral"}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def call(call_id: str, arguments: Any = "{}", name: str = "t") -> Any:
    return function_call(call_id, name, arguments)


def calls_message(*calls: Any, content: Any = None) -> Any:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: str, content: Any = "ok") -> Any:
    return result_message(call_id, content)


def encode(*messages: Any, model: str | None = None) -> list[dict[str, Any]]:
    before = copy_of(messages)
    encoded = anthropic.encode_messages(list(messages), model=model)
    assert copy_of(messages) == before
    return encoded


USER: Any = user_message("q")
ASKED = user_message([text("q")])


def test_joins_results_and_the_next_user_message() -> None:
    encoded = encode(
        USER,
        calls_message(call("1"), call("2"), content="Both."),
        result("2"),
        result("1"),
        USER,
    )
    assert encoded == [
        ASKED,
        assistant_message(
            [
                text("Both."),
                call_block("1", "t", {}),
                call_block("2", "t", {}),
            ]
        ),
        user_message(
            [
                result_block("2", "ok"),
                result_block("1", "ok"),
                text("q"),
            ]
        ),
    ]


def test_moves_results_before_text() -> None:
    encoded = encode(USER, calls_message(call("1")), USER, result("1"))
    assert [block["type"] for block in encoded[2]["content"]] == ["tool_result", "text"]


def test_joins_neighbours_of_one_role() -> None:
    said: Any = assistant_message("a")
    assert encode(USER, USER, said, said) == [
        user_message([text("q"), text("q")]),
        assistant_message([text("a"), text("a")]),
    ]


def test_joins_a_translated_message_with_a_native_neighbour() -> None:
    native = anthropic.decode_messages([user_message("native")])
    assert encode(*native, USER) == [user_message([text("native"), text("q")])]
    assert encode(USER, *native) == [user_message([text("q"), text("native")])]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1, "二"]}', {"a": [1, "二"]}),
        ("", {}),
        ("  ", {}),
        ("null", {}),
        (None, {}),
        (7, {}),
        ({"already": "an object"}, {"already": "an object"}),
        ('{"cut": "of', {"INVALID_JSON": '{"cut": "of'}),
        ("[1, 2]", {"INVALID_JSON": "[1, 2]"}),
        ("ls -la", {"INVALID_JSON": "ls -la"}),
        ('{"x": NaN}', {"INVALID_JSON": '{"x": NaN}'}),
        ("[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
    ],
)
def test_arguments_are_always_an_object(arguments: Any, value: dict[str, Any]) -> None:
    assert encode(USER, calls_message(call("1", arguments)))[1]["content"][0]["input"] == value


def test_encodes_custom_calls_with_one_input() -> None:
    custom = custom_call("1", "patch", "*** Begin")
    assert encode(USER, calls_message(custom))[1]["content"] == [
        call_block("1", "patch", {"input": "*** Begin"})
    ]


def test_drops_invalid_calls_and_names_nameless_ones() -> None:
    encoded = encode(
        USER,
        calls_message("garbage", {"id": "x"}, call("1", name="")),
        {"role": "assistant", "tool_calls": 3},
    )
    assert encoded[1]["content"] == [call_block("1", "unknown", {})]


def test_cleans_call_ids_of_calls_and_results_alike() -> None:
    encoded = encode(
        USER,
        calls_message(call("functions.bash:0"), call("functions_bash_0")),
        result("functions.bash:0"),
    )
    assert [block["id"] for block in encoded[1]["content"]] == [
        "functions_bash_0",
        "functions_bash_0_2",
    ]
    assert encoded[2]["content"][0]["tool_use_id"] == "functions_bash_0"


def test_makes_reused_ids_unique() -> None:
    turn = [calls_message(call("call_0")), result("call_0")]
    encoded = encode(USER, *turn, *turn, *turn)
    assert [m["content"][0]["id"] for m in encoded[1::2]] == [
        "call_0",
        "call_0_2",
        "call_0_3",
    ]
    assert [m["content"][0]["tool_use_id"] for m in encoded[2::2]] == [
        "call_0",
        "call_0_2",
        "call_0_3",
    ]


def test_keeps_native_ids_and_matches_translated_results() -> None:
    made = assistant_message([call_block("call_0", "t", {})])
    encoded = encode(
        USER,
        *anthropic.decode_messages([made]),
        result("call_0"),
        calls_message(call("call_0")),
        result("call_0"),
    )
    assert encoded[1] == made
    assert encoded[2]["content"][0]["tool_use_id"] == "call_0"
    assert encoded[3]["content"][0]["id"] == encoded[4]["content"][0]["tool_use_id"] == "call_0_2"


def test_cleans_the_id_of_an_orphan_result() -> None:
    assert encode(USER, result("a b"), {"role": "tool", "content": "x"})[0]["content"][:2] == [
        result_block("a_b", "ok"),
        result_block("call", "x"),
    ]


@pytest.mark.parametrize("content", ["", " \n", None, [], [text("")]])
def test_encodes_an_empty_result_without_content(content: Any) -> None:
    assert encode(USER, calls_message(call("1")), result("1", content))[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "1"}
    ]


@pytest.mark.parametrize("content", ["", " \n", None, [], [text(" ")]])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_drops_blank_messages(role: str, content: Any) -> None:
    assert encode(USER, {"role": role, "content": content}) == [ASKED]


def test_inserts_an_opening_before_the_assistant() -> None:
    opening = user_message(OPENING_TEXT)
    said: Any = assistant_message("Hello!")
    assert encode() == []
    assert encode(user_message("")) == [opening]
    assert encode(said) == [opening, assistant_message([text("Hello!")])]
    native = anthropic.decode_messages([assistant_message("Hello!")])
    assert encode(*native) == [assistant_message("Hello!")]


def test_wraps_instructions_in_mid_conversation() -> None:
    encoded = encode(
        USER,
        assistant_message("a"),
        {"role": "developer", "content": "Be brief."},
        USER,
    )
    reminder = "<system-reminder>\nBe brief.\n</system-reminder>"
    assert encoded[2] == user_message([text(reminder), text("q")])
    assert not is_user_message(user_message(reminder))


@pytest.mark.parametrize(
    ("part", "block"),
    [
        ({"text": "without a type"}, text("without a type")),
        ({"type": "input_text", "text": "x"}, text("x")),
        (
            text("x", citations=[{"type": "page_location"}]),
            text("x", citations=[{"type": "page_location"}]),
        ),
        (
            text("x", annotations=[], cache_control=MARKER),
            text("x", cache_control=MARKER),
        ),
        ({"type": "refusal", "refusal": "No."}, text("No.")),
        (
            {
                "type": "image_url",
                "image_url": {"url": "data:image/jpg;base64,AAAA"},
                "cache_control": MARKER,
            },
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/jpeg",
                    "data": "AAAA",
                },
                "cache_control": MARKER,
            },
        ),
        (
            image_part("data:IMAGE/PNG;name=a.png;base64,AAAA"),
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
            },
        ),
        (
            {"type": "input_image", "image_url": "https://example.org/a.png"},
            {
                "type": "image",
                "source": {"type": "url", "url": "https://example.org/a.png"},
            },
        ),
        (
            image_part("data:image/svg+xml,<svg/>"),
            text("[image omitted]"),
        ),
        (
            image_part("data:image/tiff;base64,AAAA"),
            text("[image omitted]"),
        ),
        ({"type": "image_url", "image_url": None}, text("[image omitted]")),
        (
            {
                "type": "file",
                "file": {
                    "filename": "a.pdf",
                    "file_data": "data:application/pdf;base64,JVBE",
                },
            },
            {
                "type": "document",
                "source": {
                    "type": "base64",
                    "media_type": "application/pdf",
                    "data": "JVBE",
                },
                "title": "a.pdf",
            },
        ),
        (
            {"type": "input_file", "file_url": "https://example.org/a.pdf"},
            {
                "type": "document",
                "source": {"type": "url", "url": "https://example.org/a.pdf"},
            },
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, text("[file omitted]")),
        (
            {"type": "file", "file": {"filename": "a.csv", "file_data": 7}},
            text("[file a.csv omitted]"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AA=="}},
            text("[audio omitted]"),
        ),
        ({"type": "video_url", "video_url": {"url": "x"}}, text("[video omitted]")),
        ({"type": "something_new", "a": 1}, {"type": "something_new", "a": 1}),
    ],
)
def test_encodes_parts(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert encode(user_message([part])) == [user_message([block])]
    in_result = encode(USER, calls_message(call("1")), result("1", [part]))[2]["content"][0][
        "content"
    ]
    assert in_result == [block]


def test_replaces_the_assistants_media_by_text() -> None:
    shown = image_part("https://example.org/a.png")
    said: Any = {"role": "assistant", "content": ["see", shown], "refusal": "No more."}
    assert encode(USER, said)[1]["content"] == [
        text("see"),
        text("[image omitted]"),
        text("No more."),
    ]


def test_accepts_histories_of_blocks() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    made = {
        "type": "tool_use",
        "id": "a:b",
        "name": "t",
        "input": {"x": 1},
        "caller": {"type": "direct"},
    }
    answer = {
        "type": "tool_result",
        "tool_use_id": "a:b",
        "content": [text(""), text("x")],
        "is_error": True,
    }
    encoded = encode(
        USER,
        assistant_message([thinking, made]),
        user_message([text("w"), answer]),
    )
    assert encoded[1]["content"] == [thinking, {**made, "id": "a_b"}]
    assert encoded[2]["content"] == [
        {**answer, "tool_use_id": "a_b", "content": [text("x")]},
        text("w"),
    ]


def test_drops_reasoning_of_another_api() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    unsigned = {"type": "thinking", "thinking": "hm"}
    other = {"type": "reasoning", "summary": []}
    said: Message = {
        "role": "assistant",
        "content": [thinking, unsigned, other, text("a")],
        "reasoning_content": "hm",
    }
    assert encode(USER, said)[1]["content"] == [thinking, text("a")]
    assert encode(USER, with_native(said, "openai_chat", None))[1]["content"] == [text("a")]


@pytest.mark.parametrize("value", [None, 3, {"role": "tool", "content": "x"}, {"role": "alien"}])
def test_ignores_a_native_value_that_is_not_a_message(value: Any) -> None:
    assert encode(with_native(USER, "anthropic", value)) == [ASKED]


class TestCacheMarkers:
    def test_moves_the_mark_of_a_message_to_its_last_block(self) -> None:
        asked: Any = {**USER, "cache_control": MARKER}
        made: Any = {**calls_message(call("1"), content="x"), "cache_control": MARKER}
        answered: Any = {**result("1"), "cache_control": MARKER}
        encoded = encode(asked, made, answered)
        assert [m["content"][-1]["cache_control"] for m in encoded] == [MARKER] * 3
        assert [len(m["content"]) for m in encoded] == [1, 2, 1]

    def test_never_marks_reasoning_or_blank_text(self) -> None:
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        native = assistant_message([text("a"), text(" "), thinking])
        [message] = anthropic.decode_messages([native])
        [encoded] = encode({**message, "cache_control": MARKER})
        assert encoded == assistant_message([text("a", cache_control=MARKER), text(" "), thinking])
        [alone] = anthropic.decode_messages([assistant_message([thinking])])
        assert encode({**alone, "cache_control": MARKER}) == [assistant_message([thinking])]
        assert encode(USER, {"role": "user", "content": "", "cache_control": MARKER}) == [ASKED]
        [empty] = anthropic.decode_messages([user_message("")])
        assert encode({**empty, "cache_control": MARKER}) == [user_message("")]

    def test_encodes_marks_set_on_a_decoded_history(self) -> None:
        """Marks are set on the core form and sent on the native one: reasoning stays signed, old marks are removed."""
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        use = call_block("1", "t", {"cache_control": "an argument"})
        history: list[dict[str, Any]] = [
            user_message([text("old", cache_control=MARKER)]),
            assistant_message("b"),
            user_message("c"),
            assistant_message([thinking, text("d"), use]),
            user_message([result_block("1", "e")]),
        ]
        marked = apply_cache_control(anthropic.decode_messages(history), native_anthropic=True)
        assert anthropic.encode_messages(marked) == [
            user_message([text("old")]),
            history[1],
            user_message([text("c", cache_control=MARKER)]),
            assistant_message([thinking, text("d"), {**use, "cache_control": MARKER}]),
            user_message([{**history[4]["content"][0], "cache_control": MARKER}]),
        ]


class TestRules:
    """Encoded requests keep the rules of the API, whatever a repaired history contains."""

    @given(chat_histories())
    def test_encodes_valid_requests_from_any_history(self, history: list[Message]) -> None:
        before = copy_of(history)
        body = anthropic.encode_request(ModelRequest("claude-a", history))
        assert history == before
        assert problems(body) == []

    @pytest.mark.parametrize("folder", ["transcripts", "requests"])
    def test_encodes_valid_requests_from_recorded_histories(self, folder: str) -> None:
        for path in sorted(shared_path(folder).glob("*.json")):
            recorded = json.loads(path.read_text(encoding="utf-8"))
            history = repair_messages(recorded["messages"])
            request = ModelRequest("claude-a", history, tools=recorded.get("tools") or [])
            body = anthropic.encode_request(request)
            assert problems(body) == [], path.name
            assert anthropic.encode_request(anthropic.decode_request(body)) == body, path.name

    @given(chat_histories(), chat_histories())
    def test_longer_history_begins_like_a_shorter_one(
        self, first: list[Message], more: list[Message]
    ) -> None:
        """A prompt cache needs that only the last message grows, at its end."""
        answer: list[Message] = [
            user_message("q"),
            assistant_message("a"),
        ]
        short = anthropic.encode_messages([*first, *answer])
        long = anthropic.encode_messages([*first, *answer, *more])
        assert long[: len(short) - 1] == short[:-1]
        assert long[len(short) - 1]["content"][: len(short[-1]["content"])] == short[-1]["content"]


def problems(body: dict[str, Any]) -> list[str]:
    """Return the rules of the API that a request breaks."""
    messages = body["messages"]
    found = [str(problem) for problem in validate_messages(messages, api="anthropic")]
    roles = [message["role"] for message in messages]
    found += [f"two of {one}" for one, other in pairwise(roles) if one == other]
    blocks = [block for message in messages for block in parts_of(message)]
    inner_blocks = [inner for block in blocks for inner in parts_of(block)]
    system = parts_of({"content": body.get("system")})
    found += [
        "blank text"
        for block in (*blocks, *inner_blocks, *system)
        if not block.get("text", "x").strip()
    ]
    found += [
        "input is not an object" for block in blocks if not isinstance(block.get("input", {}), dict)
    ]
    return found
