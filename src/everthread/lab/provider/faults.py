"""Produce faults from a script or a seeded plan, with the error texts of a chosen provider."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, get_args

from everthread.core.types import Api, ModelReply
from everthread.errors import InputError

FaultKind = Literal[
    "rate_limit",
    "server_error",
    "overloaded",
    "overflow",
    "payload_too_large",
    "hang",
    "delay",
    "slow",
    "reset",
    "truncated",
    "empty",
    "no_usage",
    "wrong_usage",
    "huge_reasoning",
    "stream_overflow",
    "stream_error",
]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
ANSWERED_FAULTS: frozenset[FaultKind] = frozenset(
    {"delay", "slow", "no_usage", "wrong_usage", "huge_reasoning"}
)
"""Faults after which the client still gets the whole reply."""

UNFINISHED_ANSWER = (
    "This is the beginning of an answer whose end nobody will read, because it is going to be cut off. "
    * 4
)
"""The text that a client receives in part if a fault interrupts the answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of the provider, instead of an answer or while one is sent.

    rate_limit, server_error, overloaded, payload_too_large: an error instead of an answer (429, 500, 529, 413).
    overflow: the error of a prompt that does not fit, whatever the prompt is.
    hang: nothing for `seconds`, or until the client goes away. delay: the answer, after `seconds`.
    slow: a stream whose events come `seconds` apart.
    reset: the connection is reset after `after` events, or before the body if nothing is streamed.
    truncated: the body breaks off in the middle of its JSON; a stream ends after `after` events.
    empty: a reply without a choice, item or block. no_usage: an answer without usage.
    wrong_usage, huge_reasoning: an answer that reports `tokens` tokens too many.
    stream_overflow, stream_error: after `after` events of a stream with status 200, an error event; without
    a stream, the error itself.
    """

    kind: FaultKind
    reply: ModelReply | str | None = None
    """The answer that the fault affects. By default an echo, or `UNFINISHED_ANSWER` if the client gets only a part."""
    seconds: float = 60.0
    after: int = 3
    tokens: int = 1_000_000
    retry_after: float | None = None
    """Seconds in the error's `retry-after` header."""
    message: str = ""
    """Another text for the error."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise InputError(
                f"fault {self.kind!r} is unknown; use one of: {', '.join(FAULT_KINDS)}"
            )


@dataclass(slots=True)
class FaultPlan:
    """Random faults that the seed makes reproducible, each kind with its rate from 0 to 1 per request."""

    rates: Mapping[FaultKind, float]
    seed: int = 0
    seconds: float = 0.05
    """How long a fault of the plan hangs or delays an answer, in seconds."""
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if not 0 <= rate <= 1:
                raise InputError(f"the rate of fault {kind} is {rate}; it must be from 0 to 1")
            Fault(kind)
        self._random = random.Random(self.seed)  # noqa: S311  a plan that can be repeated, no secret  # nosec B311

    def next(self) -> Fault | None:
        """Return the fault for the next request."""
        remaining = self._random.random()
        for kind, rate in self.rates.items():
            remaining -= rate
            if remaining < 0:
                return Fault(kind, seconds=self.seconds, after=self._random.randint(1, 6))
        return None


def parse_fault(text: str) -> tuple[FaultKind, float]:
    """Parse `KIND[=RATE]` of the command line into the kind and its rate. Without a rate, every request fails."""
    name, _, rate = text.partition("=")
    kind = next((kind for kind in FAULT_KINDS if kind == name), None)
    if kind is None:
        raise InputError(
            f"--fault {text!r}: {name!r} is unknown; use one of: {', '.join(FAULT_KINDS)}"
        )
    try:
        return kind, float(rate) if rate else 1.0
    except ValueError:
        raise InputError(f"--fault {text!r}: {rate!r} is not a rate from 0 to 1") from None


OverflowKind = Literal["prompt_too_long", "output_too_large", "cap_too_large"]
"""The part that is too large for the model: the prompt, the prompt with the requested output, or that output alone."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as the client receives it."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        error = self.body.get("error", self.body)
        return str(error.get("message")) if isinstance(error, Mapping) else str(error)


_DIALECT_TEXTS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    resources.files("everthread.lab.provider").joinpath("dialects.json").read_text("utf-8")
)
DIALECTS: tuple[str, ...] = tuple(_DIALECT_TEXTS)
OWN_DIALECTS: dict[Api, str] = {
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
"""The dialect of the provider that made each protocol."""


def make_overflow_refusal(
    dialect: str, kind: OverflowKind, figures: Mapping[str, Any]
) -> Refusal | None:
    """Return the dialect's error of this kind with these figures, or None if the dialect lacks such an error."""
    text = _DIALECT_TEXTS[dialect].get(kind)
    return None if text is None else Refusal(text["status"], _fill_template(text["body"], figures))


def make_refusal(
    api: Api, status: int, message: str, *, kind: str = "", code: str | None = None
) -> Refusal:
    """Return an error in the protocol's own format. `kind` is its type if the status alone does not determine it."""
    if api == "anthropic":
        error = {
            "type": kind or _ANTHROPIC_KINDS.get(status, "api_error"),
            "message": message,
        }
        return Refusal(status, {"type": "error", "error": error, "request_id": "req_lab"})
    if api == "gemini":
        name = _GEMINI_STATUS_BY_CODE.get(
            status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT"
        )
        return Refusal(status, {"error": {"code": status, "message": message, "status": name}})
    code = code or ("rate_limit_exceeded" if status == 429 else None)
    kind = kind or _OPENAI_KINDS.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    return Refusal(
        status,
        {"error": {"message": message, "type": kind, "param": None, "code": code}},
    )


def _fill_template(value: Any, figures: Mapping[str, Any]) -> Any:
    """Fill the template with the figures. A text that is only a placeholder becomes the number itself."""
    if isinstance(value, dict):
        return {key: _fill_template(item, figures) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    name = value[1:-1]
    return (
        figures[name] if value == f"{{{name}}}" and name in figures else value.format_map(figures)
    )


_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_GEMINI_STATUS_BY_CODE = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_OPENAI_KINDS = {429: "requests", 503: "server_error", 529: "overloaded_error"}
