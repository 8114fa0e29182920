"""Exceptions of a model and their classification."""

from __future__ import annotations

import pytest

from everthread.compaction.summarizers.model_errors import (
    PromptTooLongError,
    as_summary_error,
)
from everthread.errors import WireError


class ReadTimeout(Exception):  # noqa: N818 - so it is called where it comes from
    pass


class AuthenticationError(Exception):
    pass


class StatusError(Exception):
    def __init__(self, status_code: int, message: str = "") -> None:
        super().__init__(message)
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "passing", "missing"),
    [
        (ConnectionRefusedError("refused"), True, False),
        (TimeoutError(), True, False),
        (ReadTimeout("read"), True, False),
        (WireError("the reply holds no choice"), True, False),
        (StatusError(503), True, False),
        (StatusError(408), True, False),
        (StatusError(403, "forbidden"), False, True),
        (StatusError(422, "unknown field"), False, False),
        (AuthenticationError(), False, True),
        (RuntimeError("no API key is set: export OPENAI_API_KEY"), False, True),
        (RuntimeError("no provider"), False, True),
        (KeyError("choices"), False, False),
    ],
)
def test_classifies_temporary_failures_and_missing_models(
    error: Exception, passing: bool, missing: bool
) -> None:
    ours = as_summary_error(error)
    assert ours.is_transient == passing
    assert ours.has_no_provider == missing
    assert type(error).__name__ in str(ours)


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, your messages have 9000 tokens.",
            8192,
        ),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        ("Request entity too large: payload exceeds the maximum request size", None),
    ],
)
def test_recognises_a_prompt_that_is_too_long(message: str, limit: int | None) -> None:
    ours = as_summary_error(StatusError(400, message))
    assert isinstance(ours, PromptTooLongError)
    assert ours.limit == limit


def test_describes_a_failure_in_one_short_line() -> None:
    text = str(as_summary_error(ValueError("first\n\nsecond " + "x" * 5000)))
    assert text.startswith("ValueError: first second")
    assert "\n" not in text
    assert len(text) < 400
    assert str(as_summary_error(ValueError())) == "ValueError"
