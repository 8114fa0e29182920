"""Gemini's protocol: a content or reply comes back verbatim, and any other message is said in its terms."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.message_repair import OPENING_TEXT
from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.types import ModelReply, ModelRequest
from everthread.core.validation import validate_messages
from everthread.wire import gemini
from everthread.wire.codecs import decode_any
from everthread.wire.sse import SseEvent
from tests.chat_messages import (
    assistant_message,
    calls_message,
    function_call,
    image_part,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.wire.anthropic_strategies import chat_histories
from tests.wire.gemini_strategies import replies, wire_contents

MODEL = "gemini-3-pro-preview"
SIGNED: dict[str, Any] = {
    "functionCall": {"name": "read_file", "args": {"path": "a.py"}},
    "thoughtSignature": "c2lnbmVk",
}
ANSWERED = {"functionResponse": {"name": "read_file", "response": {"output": "print(1)"}}}


@given(wire_contents)
def test_restores_contents_verbatim(wire: list[dict[str, Any]]) -> None:
    assert gemini.encode_messages(gemini.decode_messages(wire)) == wire


@given(replies)
def test_streamed_reply_equals_the_whole_one(body: dict[str, Any]) -> None:
    reply = gemini.decode_reply(body)
    decoder = gemini.stream_decoder()
    deltas = [delta for event in gemini.encode_stream(body) for delta in decoder.feed(event)]
    streamed = decoder.reply()
    assert text_of(streamed.message) == text_of(reply.message)
    assert [call[1:] for call in calls_of(streamed.message)] == [
        call[1:] for call in calls_of(reply.message)
    ]
    assert (streamed.stop, streamed.usage, streamed.model, streamed.id) == (
        reply.stop,
        reply.usage,
        reply.model,
        reply.id,
    )
    texts = [
        part
        for part in body["candidates"][0]["content"]["parts"]
        if "text" in part and "thought" not in part
    ]
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "".join(
        part["text"] for part in texts
    )


@given(chat_histories())
def test_encodes_valid_contents_from_any_history(history: list[Any]) -> None:
    wire = gemini.encode_messages(history, model=MODEL)
    assert all(content["parts"] for content in wire)
    assert all(one["role"] != other["role"] for one, other in pairwise(wire))
    assert not wire or wire[0]["role"] == "user"
    read = gemini.decode_messages(wire)
    assert not [
        problem
        for problem in validate_messages(read)
        if problem.rule in ("orphan-result", "missing-result")
    ]
    assert sum(len(calls_of(message)) for message in read) == sum(
        len(calls_of(message)) for message in history
    )


class TestPairing:
    def test_responses_answer_the_calls_of_their_name_in_order(self) -> None:
        wire = [
            {"role": "user", "parts": [{"text": "Read both."}]},
            {
                "role": "model",
                "parts": [SIGNED, {"functionCall": {"name": "list", "args": {}}}],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "list", "response": {}}},
                    ANSWERED,
                ],
            },
        ]
        core = gemini.decode_messages(wire)
        read, listed = calls_of(core[1])
        assert [results_of(message)[0].call_id for message in core[2:]] == [
            listed.id,
            read.id,
        ]
        assert not validate_messages(core)

    def test_native_ids_take_precedence(self) -> None:
        calls: Any = [
            {"functionCall": {"name": "f", "id": name, "args": {}}} for name in ("one", "two")
        ]
        answers = [
            {
                "functionResponse": {
                    "name": "f",
                    "id": name,
                    "response": {"output": name},
                }
            }
            for name in ("two", "one")
        ]
        core = gemini.decode_messages(
            [{"role": "model", "parts": calls}, {"role": "user", "parts": answers}]
        )
        assert [call.id for call in calls_of(core[0])] == ["one", "two"]
        assert [results_of(message)[0].call_id for message in core[1:]] == [
            "two",
            "one",
        ]

    def test_ignores_made_up_response_ids(self) -> None:
        answer = {
            "functionResponse": {
                "name": "read_file",
                "id": "read_file-17-x",
                "response": {"output": "x"},
            }
        }
        core = gemini.decode_messages(
            [{"role": "model", "parts": [SIGNED]}, {"role": "user", "parts": [answer]}]
        )
        assert results_of(core[1])[0].call_id == calls_of(core[0])[0].id

    def test_repeated_calls_have_different_ids(self) -> None:
        turn = [
            {"role": "model", "parts": [SIGNED]},
            {"role": "user", "parts": [ANSWERED]},
        ]
        core = gemini.decode_messages([*turn, *turn])
        first, second = (calls_of(message)[0].id for message in (core[0], core[2]))
        assert first != second
        assert [results_of(core[1])[0].call_id, results_of(core[3])[0].call_id] == [
            first,
            second,
        ]

    def test_pairs_a_response_with_the_previous_content(self) -> None:
        called = {"role": "model", "parts": [SIGNED]}
        [answer] = gemini.decode_messages(
            [{"role": "user", "parts": [ANSWERED]}], previous_content=called
        )
        assert results_of(answer)[0].call_id == calls_of(gemini.decode_messages([called])[0])[0].id

    def test_response_without_a_call_has_an_id(self) -> None:
        [answer] = gemini.decode_messages([{"role": "user", "parts": [ANSWERED]}])
        assert results_of(answer)[0].call_id == "call_read_file"


class TestMeaning:
    def test_decodes_texts_thoughts_and_calls(self) -> None:
        parts = [
            {"text": "Hm.", "thought": True},
            {"text": "Let "},
            {"text": "me."},
            SIGNED,
        ]
        [message] = gemini.decode_messages([{"role": "model", "parts": parts}], model=MODEL)
        assert text_of(message) == "Let me."
        assert message["reasoning_content"] == "Hm."
        assert json.loads(calls_of(message)[0].arguments) == {"path": "a.py"}

    @pytest.mark.parametrize(
        ("response", "text", "is_error"),
        [
            ({"output": "done"}, "done", False),
            ({"error": "no such file"}, "no such file", True),
            ({"rows": [1, 2]}, '{"rows": [1, 2]}', False),
            (None, "", False),
        ],
    )
    def test_decodes_results(self, response: Any, text: str, is_error: bool) -> None:
        part = {"functionResponse": {"name": "f", "response": response}}
        [message] = gemini.decode_messages([{"parts": [part]}])
        assert (text_of(message), message.get("is_error", False)) == (text, is_error)

    def test_decodes_media_of_users_and_results(self) -> None:
        image = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}
        pdf = {
            "inline_data": {
                "mime_type": "application/pdf",
                "data": "JVBE",
                "display_name": "a.pdf",
            }
        }
        shot = {
            "functionResponse": {
                "name": "f",
                "response": {"output": "shot"},
                "parts": [image],
            }
        }
        said, result = gemini.decode_messages(
            [{"role": "user", "parts": [image, pdf]}, {"role": "user", "parts": [shot]}]
        )
        assert said["content"] == [
            image_part("data:image/png;base64,iVBO"),
            {
                "type": "file",
                "file": {
                    "filename": "a.pdf",
                    "file_data": "data:application/pdf;base64,JVBE",
                },
            },
        ]
        assert result["content"] == [
            text_part("shot"),
            said["content"][0],
        ]

    def test_comparable_content_ignores_thoughts_signatures_and_ids(self) -> None:
        said = {
            "role": "model",
            "parts": [
                {"text": "H", "thought": True},
                {"text": "A"},
                {"text": "b"},
                SIGNED,
            ],
        }
        bare = {
            "role": "model",
            "parts": [
                {"text": "Ab"},
                {"functionCall": {**SIGNED["functionCall"], "id": "x"}},
            ],
        }
        assert gemini.make_comparable_message(said) == gemini.make_comparable_message(bare)
        answered = gemini.make_comparable_message(
            {"role": "user", "parts": [ANSWERED, "no object"]}
        )
        block = result_block("read_file", "print(1)")
        assert answered == user_message([block])
        assert (
            gemini.make_comparable_message({"role": "user", "parts": [ANSWERED, ANSWERED]})
            == answered
        ), "Gemini CLI resumed"
        assert (
            gemini.make_comparable_message("nothing")
            == gemini.make_comparable_message({"parts": 1})
            == user_message([])
        )


class TestSignatures:
    def test_drops_thoughts_and_signatures_of_another_model(self) -> None:
        content = {"role": "model", "parts": [{"text": "Hm.", "thought": True}, SIGNED]}
        core = gemini.decode_messages([content], model="gemini-2.5-pro")
        [old] = gemini.encode_messages(core, model="gemini-2.0-flash")
        assert old["parts"] == [{"functionCall": SIGNED["functionCall"]}]
        [new] = gemini.encode_messages(core, model=MODEL)
        assert new["parts"] == [
            {
                "functionCall": SIGNED["functionCall"],
                "thoughtSignature": "skip_thought_signature_validator",
            }
        ]

    def test_a_message_of_another_model_without_calls_needs_no_signature(self) -> None:
        content = {"role": "model", "parts": [{"text": "Hello."}]}
        assert gemini.encode_messages(
            gemini.decode_messages([content], model="gemini-2.5-pro"), model=MODEL
        ) == [content]

    def test_calls_of_other_apis_get_a_placeholder_signature(self) -> None:
        call = function_call("c1", "f", "no json")
        history: Any = [
            {
                "role": "assistant",
                "content": None,
                "refusal": "No.",
                "tool_calls": [call, {**call, "id": "c2"}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "one", "is_error": True},
            result_message(
                "c2",
                [
                    text_part("two"),
                    image_part("https://x.test/a"),
                ],
            ),
        ]
        opening, called, answered = gemini.encode_messages(history, model=MODEL)
        assert opening == {"role": "user", "parts": [{"text": OPENING_TEXT}]}
        function = {"functionCall": {"name": "f", "args": {"input": "no json"}}}
        unsigned = {**function, "thoughtSignature": "skip_thought_signature_validator"}
        assert called["parts"] == [{"text": "No."}, unsigned, function]
        assert answered["parts"] == [
            {"functionResponse": {"name": "f", "response": {"error": "one"}}},
            {"functionResponse": {"name": "f", "response": {"output": "two"}}},
            {"fileData": {"fileUri": "https://x.test/a"}},
        ]

    def test_an_edited_result_keeps_the_id_of_its_call(self) -> None:
        called = {
            "role": "model",
            "parts": [{"functionCall": {"name": "f", "id": "n1", "args": {}}}],
        }
        core = gemini.decode_messages([{"role": "user", "parts": [{"text": "Go."}]}, called])
        wire = gemini.encode_messages([*core, result_message("n1", "cut")])
        assert wire[2]["parts"] == [
            {
                "functionResponse": {
                    "id": "n1",
                    "name": "f",
                    "response": {"output": "cut"},
                }
            }
        ]


def test_encodes_parts_of_other_apis() -> None:
    given: Any = [
        text_part(" "),
        text_part("See."),
        image_part("data:image/png;base64,iVBO"),
        image_part("file:///a"),
        {"type": "image_url", "image_url": "data:image/gif;base64,R0"},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "somethingNew", "somethingNew": {"a": 1}},
    ]
    history: Any = [
        {"role": "developer", "content": "Be kind."},
        {"role": "system", "content": " "},
        user_message(given),
        result_message("gone", "alone"),
    ]
    [content] = gemini.encode_messages(history)
    assert content["parts"] == [
        {"functionResponse": {"name": "unknown", "response": {"output": "alone"}}},
        {"text": "<system-reminder>\nBe kind.\n</system-reminder>"},
        {"text": "See."},
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
        {"text": "[image omitted]"},
        {"inlineData": {"mimeType": "image/gif", "data": "R0"}},
        {"text": "[file omitted]"},
        {"somethingNew": {"a": 1}},
    ]
    assert gemini.encode_messages([user_message("")]) == [
        {"role": "user", "parts": [{"text": OPENING_TEXT}]}
    ]


def test_adds_a_missing_role() -> None:
    reply = gemini.decode_reply(
        {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}
    )
    assert gemini.encode_messages([reply.message]) == [{"role": "model", "parts": [{"text": "Hi"}]}]


class TestRequests:
    def test_translates_openai_settings(self) -> None:
        params = {
            "max_tokens": 9,
            "temperature": 0.5,
            "stop": "END",
            "generation_config": {"topK": 3},
        }
        body = gemini.encode_request(ModelRequest(MODEL, [], "Be brief.", params=params))
        settings = {
            "maxOutputTokens": 9,
            "temperature": 0.5,
            "stopSequences": ["END"],
            "topK": 3,
        }
        assert body["generation_config"] == settings
        assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}

    def test_encodes_tools_of_another_api(self) -> None:
        function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
        foreign = {
            "type": "web_search",
            "_native": {"api": "openai_responses", "value": {}},
        }
        body = gemini.encode_request(
            ModelRequest(MODEL, [], tools=[{"type": "function", "function": function}, foreign])
        )
        [tool] = body["tools"]
        assert tool["functionDeclarations"] == [
            {
                "name": "f",
                "description": "d",
                "parametersJsonSchema": {"type": "object"},
            }
        ]
        assert gemini.encode_tools([{"type": "function", "function": {"name": "g"}}]) == [
            {"functionDeclarations": [{"name": "g"}]}
        ]

    @pytest.mark.parametrize(
        "declaration",
        [
            {"name": "f"},
            {
                "name": "f",
                "description": "d",
                "parametersJsonSchema": {"type": "object"},
            },
            {"name": "f", "parameters": {"type": "OBJECT"}, "behavior": "BLOCKING"},
        ],
    )
    def test_restores_tools_verbatim(self, declaration: dict[str, Any]) -> None:
        wire: list[dict[str, Any]] = [
            {"functionDeclarations": [declaration]},
            {"googleSearch": {}},
        ]
        function, search = gemini.decode_tools(wire)
        assert function["function"]["name"] == "f"
        assert "googleSearch" in search
        assert gemini.encode_tools([function, search]) == wire
        body = {"model": MODEL, "contents": [], "tools": wire}
        assert gemini.encode_request(gemini.decode_request(body)) == body
        assert "tools" not in gemini.decode_request(body).params

    def test_changed_system_prompt_and_tools_replace_the_originals(
        self,
    ) -> None:
        body: Any = {
            "model": MODEL,
            "contents": [],
            "system_instruction": {"role": "user", "parts": [{"text": "Old."}]},
            "tools": [{"functionDeclarations": []}],
        }
        read = gemini.decode_request(body)
        assert read.system == [text_part("Old.")]
        written = gemini.encode_request(ModelRequest(MODEL, [], "New.", params=read.params))
        assert written == {
            "model": MODEL,
            "contents": [],
            "systemInstruction": {"parts": [{"text": "New."}]},
            "tools": body["tools"],
        }
        tool = {"type": "function", "function": {"name": "g"}}
        assert (
            gemini.encode_request(ModelRequest(MODEL, [], None, [tool], read.params))["tools"]
            != body["tools"]
        )

    def test_restores_a_text_system_prompt(self) -> None:
        body = {"model": MODEL, "contents": [], "systemInstruction": "Be brief."}
        assert gemini.encode_request(gemini.decode_request(body)) == body

    def test_is_detected_by_its_contents(self) -> None:
        api, request = decode_any({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]})
        assert (api, text_of(request.messages[0])) == ("gemini", "Hi")


class TestReplies:
    @pytest.mark.parametrize(
        ("reason", "stop"),
        [
            ("STOP", "stop"),
            ("MAX_TOKENS", "length"),
            ("SPII", "content_filter"),
            ("X", "other"),
        ],
    )
    def test_decodes_finish_reasons(self, reason: str, stop: str) -> None:
        body = {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [{"text": "Hi"}]},
                    "finishReason": reason,
                }
            ]
        }
        assert gemini.decode_reply(body).stop == stop

    def test_calls_change_the_stop_reason(self) -> None:
        body = {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [SIGNED]},
                    "finishReason": "STOP",
                }
            ]
        }
        assert gemini.decode_reply(body).stop == "tool_calls"

    def test_decodes_a_blocked_prompt(self) -> None:
        body = {
            "promptFeedback": {"blockReason": "SAFETY"},
            "usageMetadata": {"promptTokenCount": 4},
        }
        reply = gemini.decode_reply(body)
        assert (reply.stop, text_of(reply.message)) == ("content_filter", "")
        decoder = gemini.stream_decoder()
        for event in gemini.encode_stream(body):
            decoder.feed(event)
        assert decoder.reply().stop == "content_filter"
        empty = {**body, "candidates": []}
        assert gemini.decode_reply(empty).stop == "content_filter"
        [event] = gemini.encode_stream(empty)
        assert json.loads(event.data) == empty

    def test_streams_a_candidate_without_content(self) -> None:
        body = {"candidates": [{"finishReason": "MAX_TOKENS"}], "modelVersion": MODEL}
        assert gemini.decode_reply(body).stop == "length"
        assert [json.loads(event.data)["candidates"] for event in gemini.encode_stream(body)] == [
            body["candidates"]
        ]

    def test_reads_usage(self) -> None:
        usage = {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 60,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 5,
        }
        figures = normalize_usage(usage, api="gemini")
        assert (
            figures.input_tokens,
            figures.cache_read_tokens,
            figures.output_tokens,
            figures.reasoning_tokens,
        ) == (
            40,
            60,
            12,
            5,
        )

    def test_encodes_a_reply_of_another_api(self) -> None:
        call: Any = function_call("c", "f")
        usage = {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        reply = ModelReply(
            calls_message(call, text="Hi"),
            "tool_calls",
            usage,
            "m",
            "r1",
        )
        body = gemini.encode_reply(reply)
        assert body["candidates"][0]["finishReason"] == "STOP"
        assert body["usageMetadata"] == {
            "promptTokenCount": 9,
            "cachedContentTokenCount": 0,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 2,
            "totalTokenCount": 14,
        }
        assert gemini.decode_reply(body).stop == "tool_calls"
        silent = gemini.encode_reply(ModelReply(assistant_message(""), None))
        assert silent == {"candidates": [{"index": 0, "content": {"role": "model", "parts": []}}]}
        assert (
            gemini.encode_reply(ModelReply(assistant_message("x"), "pause"))["candidates"][0][
                "finishReason"
            ]
            == "OTHER"
        )


def _chunk(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0}],
        **fields,
    }


class TestStreams:
    def test_joins_texts_but_not_signed_parts(self) -> None:
        chunks = [
            _chunk({"text": "Hm", "thought": True}, responseId="r"),
            _chunk({"text": "A"}),
            {
                "candidates": [
                    *_chunk({"text": "b"}, SIGNED)["candidates"],
                    {"index": 1, "content": {"parts": [{}]}},
                ]
            },
            _chunk({"text": "", "thoughtSignature": "s"}),
            {
                "candidates": [{"finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 3},
            },
        ]
        decoder = gemini.stream_decoder(model=MODEL)
        deltas = [
            delta for chunk in chunks for delta in decoder.feed(SseEvent(None, json.dumps(chunk)))
        ]
        assert [delta.kind for delta in deltas] == [
            "reasoning",
            "text",
            "text",
            "call",
            "stop",
            "usage",
        ]
        reply = decoder.reply()
        assert reply.message["_native"]["value"]["parts"] == [
            {"text": "Hm", "thought": True},
            {"text": "Ab"},
            SIGNED,
            {"text": "", "thoughtSignature": "s"},
        ]
        assert (reply.id, reply.stop, reply.usage) == (
            "r",
            "tool_calls",
            {"promptTokenCount": 3},
        )
        assert gemini.decode_reply(chunks).message == gemini.decode_reply(chunks).message
        assert text_of(gemini.decode_reply(chunks).message) == "Ab"

    def test_decodes_an_aborted_stream(self) -> None:
        decoder = gemini.stream_decoder()
        assert decoder.reply().stop is None
        decoder.feed({"candidates": [{"content": {"parts": [{"text": "Half"}]}}]})
        decoder.feed({"candidates": [{"content": {"parts": "none"}}, "no object"]})
        decoder.feed(SseEvent(None, "[DONE]"))
        assert (text_of(decoder.reply().message), decoder.reply().stop) == (
            "Half",
            None,
        )

    def test_reports_an_error_in_a_stream(self) -> None:
        error = {
            "code": 503,
            "message": "The model is overloaded.",
            "status": "UNAVAILABLE",
        }
        [delta] = gemini.stream_decoder().feed({"error": error})
        assert (delta.kind, delta.text, delta.raw) == (
            "error",
            "The model is overloaded.",
            error,
        )
