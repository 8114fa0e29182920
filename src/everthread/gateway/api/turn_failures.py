"""Describe to a client why a turn ended without an answer."""

from __future__ import annotations

from typing import Any

from everthread.core.secrets.redaction import redact
from everthread.errors import (
    ConfigError,
    ContextOverflowError,
    EverthreadError,
    InputError,
    ModelError,
    StoreError,
)
from everthread.gateway.error_answers import RequestRefused

_CODES: tuple[tuple[type[EverthreadError], str], ...] = (
    (ModelError, "model_failed"),
    (ContextOverflowError, "context_overflow"),
    (ConfigError, "misconfigured"),
    (InputError, "invalid_message"),
    (StoreError, "store_failed"),
)
STATUS_BY_CODE = {
    "model_failed": 502,
    "context_overflow": 413,
    "misconfigured": 503,
    "invalid_message": 400,
    "store_failed": 503,
    "cancelled": 409,
    "interrupted": 503,
    "failed": 502,
    "internal": 500,
    "command_failed": 409,
}
"""HTTP status by the code of a turn that ended without an answer."""
INTERNAL_ERROR_TEXT = "Something went wrong here. The gateway's log has the details."


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return the code and message of a failure, without the text of an unexpected error, which may hold secrets."""
    if isinstance(error, RequestRefused):
        return {"code": error.code, "message": error.message}
    if isinstance(error, EverthreadError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "failed")
        return {"code": code, "message": redact(str(error))}
    return {"code": "internal", "message": INTERNAL_ERROR_TEXT}
