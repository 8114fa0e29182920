"""What went wrong, as one error: understood as the provider meant it, and passing or not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api
from everthread.errors import ModelError, ModelTimeoutError, ModelUnreachableError
from everthread.providers.model_errors import (
    ModelAddress,
    find_retry_seconds,
    is_out_of_service,
    is_transient,
    make_answer_error,
    make_refusal_error,
)
from tests.apis import APIS
from tests.core.error_cases import CASES
from tests.providers.http_models import connect_model, failure_of
from tests.wire.recording import json_reply, recording_server

ROUTE = ModelAddress("m", "http://here/v1", "A_KEY")


@pytest.mark.parametrize("api", APIS)
async def test_classifies_errors_of_the_sdk_like_their_bodies(api: Api) -> None:
    """Every third of the table, so that the three protocols together send all of it."""
    cases = [
        case
        for case in CASES[APIS.index(api) :: len(APIS)]
        if 400 <= (case.get("status") or 0) < 600 and "(no body)" not in str(case.get("message"))
    ]
    replies = [json_reply(_body(case), status=case["status"]) for case in cases]

    with recording_server(replies) as server:
        async with connect_model(api, server.url) as model:
            errors = [
                await failure_of(model, stream=bool(number % 2)) for number in range(len(cases))
            ]
    assert len(cases) > 20
    for case, error in zip(cases, errors, strict=True):
        plain = classify_error(status=case["status"], body=_body(case))
        verdict = classify_error(error)
        stated_facts = (
            verdict.kind,
            verdict.context_limit,
            verdict.input_tokens,
            verdict.available_output,
        )
        assert stated_facts == (
            plain.kind,
            plain.context_limit,
            plain.input_tokens,
            plain.available_output,
        ), str(error)


def _body(case: dict[str, Any]) -> Any:
    return case.get("body") or {"error": {"message": case.get("message")}}


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after": "7"}, None, 7.0),
        ({"retry-after": "1.5"}, None, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, None, 0.25),
        ({"retry-after": "Mon, 01 Jan 2024 00:01:00 GMT"}, None, 60.0),
        ({"retry-after": "Sun, 31 Dec 2023 00:00:00 GMT"}, None, 0.0),
        ({"retry-after": "soon"}, None, None),
        ({"retry-after": "-3"}, None, None),
        ({"retry-after": "nan"}, None, None),
        (
            {},
            {"error": {"details": [{"@type": "…RetryInfo", "retryDelay": "27s"}]}},
            27.0,
        ),
        ({}, None, None),
    ],
)
def test_reads_the_seconds_to_wait(
    headers: dict[str, str], body: Any, seconds: float | None
) -> None:
    assert find_retry_seconds(headers, body, now=datetime(2024, 1, 1, tzinfo=UTC)) == seconds


def status(number: int, message: str = "no", **error: Any) -> ModelError:
    return make_refusal_error(
        ROUTE, number, {}, json.dumps({"error": {"message": message, **error}}).encode()
    )


TOO_LONG = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."


@pytest.mark.parametrize(
    ("error", "passing", "out_of_service"),
    [
        *[(status(code), True, True) for code in (408, 409, 425, 429, 500, 502, 503, 504, 529)],
        *[(status(code), False, True) for code in (401, 402, 403, 404, 501)],
        *[(status(code), False, False) for code in (400, 422)],
        (status(500, TOO_LONG), False, False),
        (status(413, "Request Entity Too Large"), False, False),
        (
            status(429, "You exceeded your current quota", code="insufficient_quota"),
            False,
            True,
        ),
        (ModelTimeoutError("late"), True, True),
        (ModelUnreachableError("gone"), True, True),
        (ModelError("odd"), False, False),
        (
            make_answer_error(
                ROUTE, {"type": "overloaded_error", "message": "Overloaded"}, {}, None
            ),
            True,
            True,
        ),
        (
            make_answer_error(ROUTE, {"code": 503, "message": "busy"}, {}, None),
            True,
            True,
        ),
        (make_answer_error(ROUTE, {"message": TOO_LONG}, {}, None), False, False),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, ModelError) else str(value),
)
def test_classifies_transient_and_out_of_service_errors(
    error: ModelError, passing: bool, out_of_service: bool
) -> None:
    assert is_transient(error) is passing
    assert is_out_of_service(error) is out_of_service


def test_a_sentence_says_who_where_what_and_what_to_do() -> None:
    assert (
        str(status(401))
        == "m at http://here/v1 answered with status 401: no. Check the key in A_KEY."
    )
    assert str(status(404)).endswith("Check the model's name and the base_url.")
    empty = make_refusal_error(ROUTE, 502, {}, b"")
    assert str(empty) == "m at http://here/v1 answered with status 502."
    assert empty.body == ""


def test_a_key_of_one_letter_takes_no_letters_out_of_words() -> None:
    assert (
        ModelAddress("gpt-5", "https://api.example", key="a").clean_message("a bad request")
        == "a bad request"
    )
    assert "sesame-open-1" not in ModelAddress(
        "gpt-5", "https://api.example", key="sesame-open-1"
    ).clean_message("key sesame-open-1?")
