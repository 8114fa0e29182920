"""Failures of calls to a model, as one `ModelError`: a sentence, and the provider's message word for word.

The sentence names the model, the address and the remedy. It must not mention sizes itself, because
`core.provider_errors` reads it to decide whether the prompt was too long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from everthread.core.provider_errors.classification import classify_error
from everthread.core.secrets.redaction import redact
from everthread.core.text import clip, one_line
from everthread.core.types import ModelReply
from everthread.errors import ModelError, ModelTimeoutError, ModelUnreachableError
from everthread.wire.reply_fields import error_text

_MIN_REDACTED_KEY_CHARS = 8
"""Shorter keys are not redacted, because they could be part of any word."""
_MAX_QUOTED_CHARS = 500
_STATUS_BY_ERROR_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP status of an error inside a stream, by its type."""
_ADVICE_BY_STATUS = {
    402: "The account must be topped up at the provider.",
    403: "The key may not use this model.",
    404: "Check the model's name and the base_url.",
}
_EMPTY_ACCOUNT_PATTERN = re.compile(
    r"insufficient_quota|billing_not_active|insufficient.?balance", re.IGNORECASE
)
"""Codes for an empty account, which come with status 429 but are not temporary."""


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """The model, its address and the variable of its key, as error messages name them."""

    model: str
    base_url: str
    key_env: str | None = None
    key: str | None = field(default=None, repr=False)

    def clean_message(self, message: str) -> str:
        """Return a provider's message on one line, without secrets and without the key that was sent."""
        if self.key and len(self.key) >= _MIN_REDACTED_KEY_CHARS:
            message = message.replace(self.key, "[REDACTED]")
        return clip(redact(one_line(message)), _MAX_QUOTED_CHARS)

    def __str__(self) -> str:
        return f"{self.model} at {self.base_url}"


def make_refusal_error(
    address: ModelAddress, status: int, headers: Mapping[str, str], content: bytes
) -> ModelError:
    """Return the exception for an answer with an error status."""
    body = read_body(content)
    wait_seconds = find_retry_seconds(headers, body)
    text = _describe_failure(address, f"answered with status {status}", body, status, wait_seconds)
    return ModelError(text, status=status, body=body, retry_after=wait_seconds)


def make_answer_error(
    address: ModelAddress, error: Mapping[str, Any], body: Any, partial: ModelReply | None
) -> ModelError:
    """Return the exception for an error inside an answer with status 200."""
    status = _find_status(error)
    wait_seconds = find_retry_seconds({}, error)
    text = _describe_failure(address, "broke off", error, status, wait_seconds)
    return ModelError(text, status=status, body=body, retry_after=wait_seconds, partial=partial)


def _describe_failure(
    address: ModelAddress,
    failure_text: str,
    error: Any,
    status: int | None,
    wait_seconds: float | None,
) -> str:
    """Describe the failure, quote the provider, and give advice."""
    if isinstance(error, list) and error:
        error = error[0]  # Google wraps its errors once more
    error_message = error_text(error) or (
        error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    )
    message = address.clean_message(error_message)
    sentence = f"{address} {failure_text}{f': {message}' if message else ''}"
    advice = _ADVICE_BY_STATUS.get(status or 0, f"Wait {wait_seconds:g} s." if wait_seconds else "")
    if status == 401:
        advice = "Check the key; api_key_env names where it is."
        if address.key_env:
            advice = f"Check the key in {address.key_env}."
    return f"{sentence}{'' if sentence[-1] in '.!?…' else '.'} {advice}".strip()


def make_truncation_error(address: ModelAddress, partial: ModelReply | None) -> ModelError:
    """Return the exception for a stream that ended in the middle of the answer."""
    return ModelUnreachableError(
        f"{address} closed the connection in the middle of its answer. Ask again.",
        status=None,
        partial=partial,
    )


def make_empty_stream_error(address: ModelAddress) -> ModelError:
    """Return the exception for a stream without events, with which local servers refuse a prompt."""
    return ModelError(
        f"{address} answered with an empty stream, as servers do when the prompt is too long.",
        status=200,
        body="",
    )


def make_unreadable_error(
    address: ModelAddress, reason: object, body: Any, partial: ModelReply | None = None
) -> ModelError:
    """Return the exception for an answer in no known protocol, such as a proxy's login page."""
    detail = address.clean_message(str(reason))
    sentence = f"{address} sent something that cannot be read: {detail}. Check the base_url."
    return ModelError(sentence, body=body, partial=partial)


def make_timeout_error(
    address: ModelAddress, error: Exception, partial: ModelReply | None = None
) -> ModelTimeoutError:
    kind = type(error.__cause__ or error).__name__
    return ModelTimeoutError(
        f"{address} did not answer in time ({kind}). Ask again.", partial=partial
    )


def make_connection_error(
    address: ModelAddress, error: Exception, partial: ModelReply | None = None
) -> ModelUnreachableError:
    cause = error.__cause__ or error
    message = address.clean_message(str(cause))
    detail = f"{type(cause).__name__}{f': {message}' if message else ''}"
    if partial is not None:
        return ModelUnreachableError(
            f"The connection to {address} broke ({detail}). Ask again.", partial=partial
        )
    return ModelUnreachableError(
        f"There is no connection to {address} ({detail}). Check that it runs and that the base_url is right."
    )


def read_body(content: bytes) -> Any:
    """Return a body as parsed JSON, else as text."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", "replace")


def find_retry_seconds(
    headers: Mapping[str, str], body: Any = None, *, now: datetime | None = None
) -> float | None:
    """Return the seconds to wait, read from headers (milliseconds, seconds or a date) or Google's error details."""
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        return _find_google_retry_delay(body)
    seconds = _parse_number(value)
    if seconds is not None:
        return seconds
    try:
        retry_time = parsedate_to_datetime(value)
    except ValueError:
        return None
    retry_time = retry_time if retry_time.tzinfo else retry_time.replace(tzinfo=UTC)
    return max((retry_time - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _find_google_retry_delay(body: Any) -> float | None:
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error", body) if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else []:
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, str):
            return _parse_number(delay.removesuffix("s"))
    return None


def _parse_number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _find_status(error: Mapping[str, Any]) -> int | None:
    inner = error.get("error")
    for holder in (error, inner) if isinstance(inner, Mapping) else (error,):
        for key in ("status", "status_code", "code"):
            value = str(holder.get(key))
            if value.isdecimal() and 400 <= int(value) <= 599:
                return int(value)
        for key in ("type", "code"):
            status = _STATUS_BY_ERROR_TYPE.get(str(holder.get(key)))
            if status:
                return status
    return None


def is_transient(error: ModelError) -> bool:
    """Return whether the same request may succeed a little later.

    A prompt that is too long or an empty account is not transient, whatever its status.
    """
    verdict = classify_error(error)
    if verdict.kind == "rate_limit":
        return not _EMPTY_ACCOUNT_PATTERN.search(str(error.body))
    if verdict.kind != "other" or error.status in (402, 501):
        return False
    if isinstance(error, ModelTimeoutError | ModelUnreachableError):
        return True
    return error.status is not None and (error.status in (408, 409, 425) or error.status >= 500)


def is_out_of_service(error: ModelError) -> bool:
    """Return whether to ask another model: this one will not answer soon, and the request is not at fault."""
    if is_transient(error):
        return True
    kind = classify_error(error).kind
    return kind == "rate_limit" or (
        kind == "other" and error.status in (401, 402, 403, 404, 410, 501)
    )
