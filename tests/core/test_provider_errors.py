"""Classify the errors of providers. `error_cases.jsonl` has texts as providers print them, with changed figures."""

from __future__ import annotations

import copy
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.provider_errors.classification import ErrorVerdict, classify_error
from everthread.core.provider_errors.error_sentences import (
    normalize_error_text,
    split_sentences,
)
from everthread.core.provider_errors.stated_counts import Counts, read_counts
from tests.chat_messages import user_message
from tests.core.error_cases import CASES
from tests.shared_data import shared_path

KINDS = {
    "prompt_too_long",
    "max_tokens_too_large",
    "payload_too_large",
    "rate_limit",
    "other",
}
OPENAI_TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens. However, your messages are 9001 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
ANTHROPIC_TOO_LONG = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "prompt is too long: 210000 tokens > 200000 maximum",
    },
}


def classify_case(case: dict[str, Any]) -> ErrorVerdict:
    return classify_error(
        status=case.get("status"), body=case.get("body"), message=case.get("message")
    )


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['label']}: {str(case.get('message'))[:50]}"
)
def test_classifies_errors_that_providers_print(case: dict[str, Any]) -> None:
    verdict = classify_case(case)
    assert verdict.kind == case["label"], verdict.reason
    assert verdict.context_limit == case.get("context_limit")
    assert case.get("input_tokens") in (None, verdict.input_tokens)
    assert case.get("available") in (None, verdict.available_output)


def test_classifies_recorded_errors_and_their_limits() -> None:
    lines = shared_path("provider_errors.jsonl").read_text("utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    verdicts = [classify_case(case) for case in cases]
    right = sum(v.kind == case["label"] for v, case in zip(verdicts, cases, strict=True))
    limits = [(v, case) for v, case in zip(verdicts, cases, strict=True) if "context_limit" in case]
    stated = sum(v.context_limit == case["context_limit"] for v, case in limits)
    alarms = [
        case["message"]
        for v, case in zip(verdicts, cases, strict=True)
        if case["label"] in ("rate_limit", "other") and v.kind not in ("rate_limit", "other")
    ]
    assert right / len(cases) >= 0.97
    assert stated / len(limits) >= 0.95
    assert alarms == []


WRAPPERS = (
    "400 {}",
    "BadRequestError: 400 {}",
    "2025-03-07 14:10:24.601 | ERROR | app.llm:ask_tool:250 - API error: {}",
    "Error code: 400 - {{'error': {{'message': \"{}\", 'type': 'invalid_request_error', 'code': None}}}}",
    "error, status code: 400, status: 400 Bad Request, message: {}",
    "{}. Received Model Group=main\nAvailable Model Group Fallbacks=None LiteLLM Retried: 1 times",
    "{} (request id: 20250908153012345678)",
    "{}\n    at APIError.generate (C:\\app\\main.js:73180:14)\n    at OpenAI.makeStatusError (main.js:73965:21)",
)


def test_wrapping_does_not_change_the_verdict() -> None:
    """A status, a log prefix, a printed object or a stack trace changes neither the verdict nor the limit."""
    changed = []
    for case in CASES:
        text = str(case.get("message") or "")
        if not text or text.startswith(("{", "<", "400 ")) or "(no body)" in text:
            continue
        if case.get("status") == 200:
            continue
        verdict = classify_error(status=case.get("status"), message=text)
        for wrapped in WRAPPERS:
            again = classify_error(status=case.get("status"), message=wrapped.format(text))
            if (again.kind, again.context_limit) != (
                verdict.kind,
                verdict.context_limit,
            ):
                changed.append((wrapped, text))
    assert changed == []


def openai_error(status: int, body: Any) -> openai.APIStatusError:
    response = httpx2.Response(
        status, request=httpx2.Request("POST", "https://api.test/v1"), json=body
    )
    return openai.OpenAI(api_key="none")._make_status_error(
        f"Error code: {status} - {body}", body=body, response=response
    )


def test_an_openai_exception() -> None:
    verdict = classify_error(openai_error(400, OPENAI_TOO_LONG))
    assert (verdict.kind, verdict.context_limit, verdict.input_tokens) == (
        "prompt_too_long",
        8192,
        9001,
    )


def test_an_openai_rate_limit_exception_by_its_class() -> None:
    assert (
        classify_error(openai_error(429, {"error": {"message": "Too many tokens"}})).kind
        == "rate_limit"
    )


def test_an_anthropic_exception() -> None:
    response = httpx2.Response(
        400,
        request=httpx2.Request("POST", "https://api.test/v1"),
        json=ANTHROPIC_TOO_LONG,
    )
    error = anthropic.BadRequestError("Error code: 400", response=response, body=ANTHROPIC_TOO_LONG)
    verdict = classify_error(error)
    assert (verdict.kind, verdict.context_limit, verdict.input_tokens) == (
        "prompt_too_long",
        200000,
        210000,
    )


def test_the_cause_of_a_wrapped_exception() -> None:
    outer = RuntimeError("the turn failed")
    outer.__cause__ = RuntimeError("again")
    outer.__cause__.__cause__ = openai_error(400, OPENAI_TOO_LONG)
    assert classify_error(outer).kind == "prompt_too_long"


def test_an_exception_that_is_its_own_cause() -> None:
    error = RuntimeError("prompt is too long")
    error.__cause__ = error
    assert classify_error(error).kind == "prompt_too_long"


def test_a_group_of_exceptions() -> None:
    assert classify_error(
        ExceptionGroup("tasks", [ValueError("x"), RuntimeError("prompt is too long")])
    ).kind == ("prompt_too_long")


def test_a_boto_exception_whose_response_is_a_mapping() -> None:
    class ClientError(Exception):
        response = {  # noqa: RUF012 - as botocore sets it
            "Error": {
                "Code": "ThrottlingException",
                "Message": "Too many tokens, please wait before trying again.",
            },
            "ResponseMetadata": {"HTTPStatusCode": 429},
        }

    assert classify_error(ClientError("An error occurred")).kind == "rate_limit"


def test_an_object_with_the_attributes_of_an_error() -> None:
    event = SimpleNamespace(
        type="error", code="context_length_exceeded", message="Too much", param=None
    )
    assert classify_error(event).kind == "prompt_too_long"
    assert classify_error(object()).kind == "other"


@pytest.mark.parametrize(
    "body",
    [
        OPENAI_TOO_LONG,
        json.dumps(OPENAI_TOO_LONG),
        json.dumps(OPENAI_TOO_LONG).encode(),
    ],
)
def test_a_body_as_object_text_or_bytes(body: Any) -> None:
    assert classify_error(status=400, body=body).context_limit == 8192


def test_a_list_of_errors() -> None:
    assert classify_error([OPENAI_TOO_LONG]).kind == "prompt_too_long"


@pytest.mark.parametrize(
    "event",
    [
        {
            "error": {
                "message": "Your input exceeds the context window of this model",
                "code": "context_length_exceeded",
            }
        },
        {
            "type": "error",
            "code": "context_length_exceeded",
            "message": "too much",
            "param": "input",
        },
        {
            "type": "response.failed",
            "response": {"error": {"code": "context_length_exceeded", "message": "no"}},
        },
        ANTHROPIC_TOO_LONG,
    ],
)
def test_error_event_in_a_successful_stream(event: dict[str, Any]) -> None:
    assert classify_error(event, status=200).kind == "prompt_too_long"


def test_echoed_requests_are_not_evidence() -> None:
    echo = "prompt is too long: 210000 tokens > 200000 maximum"
    body = {
        "error": {"message": "Bad request", "code": "invalid_request_error"},
        "messages": [user_message(echo)],
        "response": {
            "instructions": echo,
            "output": [{"content": echo}],
        },
        "detail": [
            {
                "loc": ["body", "temperature"],
                "msg": "Input should be a number",
                "input": echo,
            }
        ],
    }
    assert classify_error(status=422, body=body).kind == "other"


def test_reads_status_from_text_body_or_message() -> None:
    assert classify_error(status="429").kind == "rate_limit"
    assert classify_error(body={"error": {"code": "429", "message": "no"}}).kind == "rate_limit"
    assert classify_error("Error code: 429 - no").kind == "rate_limit"
    assert classify_error("413 status code (no body)").kind == "payload_too_large"
    assert classify_error(status=True, message="x").kind == "other"
    assert classify_error(status=12345, message="x").kind == "other"


def test_stream_without_events_means_too_long() -> None:
    assert classify_error(status=200, body="", message="").kind == "prompt_too_long"
    assert classify_error(status=200, message="").kind == "other"
    assert classify_error(status=500, body="").kind == "other"


def test_escaped_text_in_a_log_line() -> None:
    assert classify_error(r"'message': '\u4e0a\u4e0b\u6587\u8fc7\u957f'").kind == "prompt_too_long"


def test_counts_of_a_server_that_names_its_fields() -> None:
    text = "failed: 'n_prompt_tokens': 9000, 'n_ctx': 8192"
    assert classify_error(text) == classify_error(
        body={"error": {"message": "failed", "n_prompt_tokens": 9000, "n_ctx": 8192}}
    )
    assert classify_error(text).context_limit == 8192


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
_KEYS = (
    st.sampled_from(
        [
            "error",
            "message",
            "code",
            "type",
            "param",
            "loc",
            "msg",
            "n_ctx",
            "status",
            "detail",
        ]
    )
    | st.text()
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(error=_VALUES, status=_LEAVES, body=_VALUES, message=_VALUES)
def test_any_value_gets_a_verdict(error: Any, status: Any, body: Any, message: Any) -> None:
    before = copy.deepcopy(body)
    verdict = classify_error(error, status=status, body=body, message=message)
    assert verdict.kind in KINDS
    assert verdict.reason.endswith(".")
    assert repr(body) == repr(before)


class _HostileError(Exception):
    @property
    def body(self) -> Any:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_exception_that_cannot_be_read() -> None:
    assert classify_error(_HostileError(), message="prompt is too long").kind == "prompt_too_long"
    assert classify_error(_HostileError()).kind == "other"


def test_endlessly_nested_value_gets_a_verdict() -> None:
    deep: Any = "prompt is too long"
    for _ in range(2000):
        deep = {"error": deep}
    assert classify_error(deep).kind == "other"
    assert classify_error("{" * 100_000 + "}" * 100_000).kind == "other"


@pytest.mark.parametrize(
    "filler", ["x" * 3_000_000, "1" * 3_000_000, ". " * 500_000, "é" * 3_000_000]
)
def test_a_huge_text_is_read_at_both_ends(filler: str) -> None:
    assert (
        classify_error(f"prompt is too long: 210000 tokens > 200000 maximum {filler}").context_limit
        == 200000
    )
    assert (
        classify_error(f"{filler} prompt is too long: 210000 tokens > 200000 maximum").context_limit
        == 200000
    )
    assert classify_error(f"prompt is too long {filler}".encode()).kind == "prompt_too_long"


def test_a_verdict_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        classify_error("x").kind = "rate_limit"  # type: ignore[misc]  # the point of the test


_SIZES = st.integers(1_000, 2_000_000)
_SUBJECTS = st.sampled_from(
    [
        "The prompt",
        "Your input",
        "The conversation",
        "The number of input tokens",
        "Prompt length",
    ]
)
_RELATIONS = st.sampled_from(["exceeds", "is longer than", "is greater than", "is over", ">"])
_LIMITS = st.sampled_from(
    [
        "the maximum context length of",
        "the limit of",
        "the model's context window of",
        "the maximum",
    ]
)
_FORMATS = st.sampled_from(["{}", "{:,}", "({})", "({} tokens)", "{} tokens"])


@given(
    _SIZES,
    st.integers(1, 500_000),
    st.tuples(_SUBJECTS, _FORMATS, _RELATIONS, _LIMITS, _FORMATS),
)
def test_input_over_the_limit_in_any_wording(
    limit: int, excess: int, wording: tuple[str, ...]
) -> None:
    subject, first, relation, bound, second = wording
    text = f"{subject} {first.format(limit + excess)} {relation} {bound} {second.format(limit)} tokens."
    verdict = classify_error(status=400, message=text)
    assert (verdict.kind, verdict.context_limit, verdict.input_tokens) == (
        "prompt_too_long",
        limit,
        limit + excess,
    ), text


_SPLITS = st.sampled_from(
    [
        "{limit} tokens is the maximum context; requested {total} ({input} in the prompt, {output} in the output)",
        "context limit is {limit}: prompt contains {input} tokens and max_tokens is {output}",
        "input length and `max_tokens` exceed context limit: {input} + {output} > {limit}",
        "prompt tokens ({input}) + max_tokens ({output}) > context window ({limit})",
        "maximum context length is {limit} tokens, you requested {output} output tokens and sent {input} input tokens",
    ]
)


@given(_SIZES, _SIZES, st.integers(1, 900), _SPLITS)
def test_an_input_that_fits_leaves_room_for_less_output(
    stated: int, room: int, excess: int, template: str
) -> None:
    output = room + excess
    text = template.format(limit=stated + room, input=stated, output=output, total=stated + output)
    verdict = classify_error(status=400, message=text)
    assert verdict.kind == "max_tokens_too_large", text
    assert (verdict.context_limit, verdict.input_tokens, verdict.available_output) == (
        stated + room,
        stated,
        room,
    ), text


@given(
    _SIZES,
    st.sampled_from(["max_tokens", "max_completion_tokens", "maxOutputTokens", "max_new_tokens"]),
)
def test_output_cap_alone_is_too_large(limit: int, name: str) -> None:
    for text in (
        f"{name} must be less than or equal to {limit}",
        f"`{name}` is too large: {2 * limit}. This model supports at most {limit} completion tokens",
        f"Range of {name} should be [1, {limit}]",
        f"{name}: {2 * limit} > {limit}, which is the maximum allowed number of output tokens",
    ):
        verdict = classify_error(status=400, message=text)
        assert (verdict.kind, verdict.available_output, verdict.context_limit) == (
            "max_tokens_too_large",
            limit,
            None,
        ), text


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (
            "maximum context length is 128K tokens, got 1.5M tokens",
            Counts(limit=128_000, total=1_500_000),
        ),
        (
            "the prompt has 200 000 tokens, the limit is 128 000 tokens",
            Counts(limit=128_000, input=200_000),
        ),
        ("输入 token 数 20万 超过上限 12.8万", Counts(limit=128_000, input=200_000)),
        ("prompt too long; exceeded context length by about 300 tokens", Counts()),
        ("context window exceeds limit (2013)", Counts()),
        ("context window exceeds limit (8192)", Counts(limit=8192)),
        ("5021: the prompt is over the context window of 4096", Counts(limit=4096)),
        (
            "request id 20240914133700123456: prompt over 8192 tokens",
            Counts(limit=8192),
        ),
        ("context length 20 tokens", Counts()),
        ("the prompt took 30 s and 12 images", Counts()),
        ("error: 9000 tokens > 8192 context", Counts(limit=8192, total=9000)),
        (
            "400 prompt token count of 9000 exceeds max token count of 8192",
            Counts(limit=8192, input=9000),
        ),
        ("context window exceeds limit (2013) | status=400", Counts()),
        ("[server.py:198] 21:27:27 the prompt is over 8192 tokens", Counts(limit=8192)),
        (
            "you passed 74655 input characters, context length is 32000 tokens",
            Counts(limit=32000),
        ),
        ("max context size 32768 exceeded (try less)", Counts(limit=32768)),
        (
            "su entrada tiene 9000 tokens, el máximo es 8192 tokens",
            Counts(limit=8192, input=9000),
        ),
    ],
)
def test_assigns_each_number_its_role(text: str, counts: Counts) -> None:
    assert read_counts(split_sentences(normalize_error_text(text))) == counts


@pytest.mark.parametrize(
    "said",
    [{}, {"body": ""}, {"body": b"{}"}, {"message": "400 status code (no body)"}],
)
def test_silent_400_means_too_long_only_near_the_limit(
    said: dict[str, Any],
) -> None:
    assert classify_error(status=400, **said, near_limit=False).kind == "other"
    assert classify_error(status=400, **said, near_limit=True).kind == "prompt_too_long"
    assert classify_error(status=500, **said, near_limit=True).kind == "other"
    assert (
        classify_error(status=400, message="tools.0.name is required", near_limit=True).kind
        == "other"
    )


def test_empty_400_of_unknown_size_means_too_long() -> None:
    assert classify_error("400 status code (no body)").kind == "prompt_too_long"
    assert classify_error(status=400, body="").kind == "other"


@pytest.mark.parametrize(
    ("words", "kind", "limit"),
    [
        ("The session came to 91000 tokens, 65536 it is", "prompt_too_long", 65536),
        ("We emit 8192 tokens a reply, 9000 were wanted", "max_tokens_too_large", None),
        (
            "No place to answer: 127500 tokens in, 4096 out, 128000 in all",
            "max_tokens_too_large",
            128000,
        ),
        ("thinking needs at least 1024 tokens, it had 500", "other", None),
        ("the price of 900 entries rose to 1000", "other", None),
        ("800 tokens, 900 tokens, 1000 tokens", "other", None),
        ("70 tokens came of 90000", "other", None),
    ],
)
def test_compares_figures_in_unknown_wording(words: str, kind: str, limit: int | None) -> None:
    verdict = classify_error(status=400, message=words)
    assert (verdict.kind, verdict.context_limit) == (kind, limit)
    assert classify_error(status=200, message=words).kind == "other"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Invalid role: maximum context length is 300 tokens"),
        (404, "The model `maximum context length is 300 tokens` does not exist"),
        (
            400,
            "temperature: 'maximum context length is 300 tokens' is not a valid number",
        ),
        (404, "maximum context length is 300 tokens"),
    ],
)
def test_echoed_values_state_no_limit(status: int, words: str) -> None:
    verdict = classify_error(status=status, message=words)
    assert (verdict.kind, verdict.context_limit) == ("other", None)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "payload_too_large",
            "messages.2.content.0.text: String should have at most 9000000 characters",
        ),
        ("other", "metadata.note: String should have at most 9000000 characters"),
        ("other", "'user' must be at most 64 characters"),
        (
            "prompt_too_long",
            "The request is bigger than what this model can hold in its context",
        ),
    ],
)
def test_limits_on_one_text_and_plain_sentences(kind: str, words: str) -> None:
    assert classify_error(status=400, message=words).kind == kind
