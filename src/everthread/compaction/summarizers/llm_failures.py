"""What a model's failure means for whoever wants a summary: shorter, later, or not this way."""

from __future__ import annotations

import re

from everthread.core.provider_errors import Evidence, classify_error
from everthread.core.redaction import redact
from everthread.core.text import clip, one_line
from everthread.errors import SummaryError, WireError

_TOO_LONG = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
_MISSING = frozenset({401, 402, 403, 404})
_PASSING = frozenset({408, 409, 425, 429})
_NETWORK = re.compile(r"timeout|connect|unreach|network|transport|protocol|jsondecode")
_NO_ACCESS = re.compile(r"authenticat|unauthori[sz]ed|credential|api[ _-]?key|no provider|not configured")
_SHOWN = 300


class PromptTooLongError(SummaryError):
    """More than the model takes. `limit` is what it says it takes, where it says so."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


def failure(error: Exception) -> SummaryError:
    """What a model raised, as our failure: told in one line, without secrets."""
    told = clip(redact(one_line(str(error))), _SHOWN)
    told = f"{type(error).__name__}: {told}" if told else type(error).__name__
    verdict = classify_error(error)
    if verdict.kind in _TOO_LONG:
        return PromptTooLongError(told, limit=verdict.context_limit)
    if verdict.kind == "rate_limit":
        return SummaryError(told, passing=True)
    evidence = Evidence()
    evidence.add(error)
    if evidence.status is not None:
        passing = evidence.status in _PASSING or evidence.status >= 500
        return SummaryError(told, passing=passing, missing=evidence.status in _MISSING)
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    if isinstance(error, OSError | WireError) or _NETWORK.search(kinds):
        return SummaryError(told, passing=True)
    return SummaryError(told, missing=_NO_ACCESS.search(f"{kinds} {told.lower()}") is not None)
