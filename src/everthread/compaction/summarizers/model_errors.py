"""Turn a model's exception into a `SummaryError` that says whether to retry, and whether the prompt was too long."""

from __future__ import annotations

import re

from everthread.core.provider_errors.classification import classify_error
from everthread.core.provider_errors.evidence import Evidence
from everthread.core.secrets.redaction import redact
from everthread.core.text import clip, one_line
from everthread.errors import SummaryError, WireError

_TOO_LONG_KINDS = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
_NO_ACCESS_STATUSES = frozenset({401, 402, 403, 404})
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_NETWORK_ERROR_PATTERN = re.compile(
    r"timeout|connect|unreach|network|transport|protocol|jsondecode"
)
_NO_ACCESS_MESSAGE_PATTERN = re.compile(
    r"authenticat|unauthori[sz]ed|credential|api[ _-]?key|no provider|not configured"
)
_MAX_ERROR_CHARS = 300


class PromptTooLongError(SummaryError):
    """The prompt is longer than the model accepts. `limit`: the window, if the error states it."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


def as_summary_error(error: Exception) -> SummaryError:
    """Return a model's exception as a `SummaryError` with one line of text, without secrets."""
    message = clip(redact(one_line(str(error))), _MAX_ERROR_CHARS)
    message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    verdict = classify_error(error)
    if verdict.kind in _TOO_LONG_KINDS:
        return PromptTooLongError(message, limit=verdict.context_limit)
    if verdict.kind == "rate_limit":
        return SummaryError(message, is_transient=True)
    evidence = Evidence()
    evidence.add(error)
    if evidence.status is not None:
        is_transient = evidence.status in _TRANSIENT_STATUSES or evidence.status >= 500
        return SummaryError(
            message,
            is_transient=is_transient,
            has_no_provider=evidence.status in _NO_ACCESS_STATUSES,
        )
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    if isinstance(error, OSError | WireError) or _NETWORK_ERROR_PATTERN.search(kinds):
        return SummaryError(message, is_transient=True)
    return SummaryError(
        message,
        has_no_provider=_NO_ACCESS_MESSAGE_PATTERN.search(f"{kinds} {message.lower()}") is not None,
    )
