"""Classify a provider's error: is the prompt too long, the output cap too large, the body too large, or none of them?

Errors that only look like an overflow are sorted out first: rate limits that count tokens, money, images, fields and
files. Structured fields then come before wording, and stated numbers before phrases. If the input exceeds the stated
limit, the prompt is too long. If the input fits but not together with the output cap, the cap is too large. The
patterns match concepts, not the sentences of one provider, so that unknown providers are understood too. If no pattern
matches, the figures are compared by size.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from everthread.core.provider_errors.error_sentences import (
    normalize_error_text,
    split_sentences,
)
from everthread.core.provider_errors.evidence import Evidence
from everthread.core.provider_errors.phrases import (
    LENGTH_PATTERN,
    TOKENS_PATTERN,
    OverflowKind,
    find_overflow,
    is_payload_overflow,
    is_relevant,
)
from everthread.core.provider_errors.stated_counts import (
    Counts,
    compare_sizes,
    read_counts,
)

_RATE_LIMIT_PATTERN = re.compile(
    r"rate limit|ratelimit|too many (?:\w+ )?requests|throttl|\bquotas?\b|please wait|slow down|request rate|concurren"
    r"|cool(?:ing )?down|enqueued|\b(?:per|each|every) \d* ?(?:sec|min|hour|day)"
    r"|\b[tr]p[mdh]\b|/ ?min\b|usage limits?|retry after \d"
    r"|tokens? (?:\w+ ){0,2}(?:today|this (?:minute|hour|day|week|month))\b"
    r"|capacity exceeded|(?:daily|weekly|monthly|hourly) (?:\w+ ){0,3}limit"
    r"|限流|限速|速率|频率|频繁|并发|配额|额度|访问量过大|请求过多|请求数过多"
)
_POSSIBLE_RATE_LIMIT_PATTERN = re.compile(r"resource (?:has been )?exhausted|request limit reached")
_MONEY_PATTERN = re.compile(
    r"insufficient (?:\w+ )?(?:credits?|balance|funds)|credit balance|more credits|only afford|billing"
    r"|payment required|paid account|plan limits|spend\w{0,5} limit|余额|欠费|充值"
)
_SINGLE_FIELD_LIMIT_PATTERN = re.compile(
    r"(?:string|array) (?:above|below) (?:max|min)|expected m(?:ax|in) (?:length|items)|text units?|guardrail"
)
_CHARACTER_LIMIT_PATTERN = re.compile(
    r"(?:at most|up to|than|max\w{0,7}|limit)\b.{0,30}?\d[\d,]{0,12} ?(?:characters?|chars)\b"
    r"|string (?:too long|above max|value length)|must have length less than"
)
_CONTENT_NOUN_PATTERN = re.compile(
    r"(?<![a-z])(?:messages?|contents?|inputs?|prompts?|body)(?![a-z])"
)
_LONG_STRING_CHARS = 100_000
"""Longer than any limit on a name, id or label; such a limit on one string is a limit on the content."""
_OTHER_FAULT_PATTERN = re.compile(
    r"(?:does not|doesn ?t) exist|not (?:one of|found)|must be one of|not a valid"
    r"|(?:invalid|unknown|unsupported|unrecogni[sz]ed) (?:role|model|temperature|type|enum|api key)"
)
"""Errors about a value of the request. They quote the value, so its words are not evidence of an overflow."""
_EMPTY_REFUSAL_PATTERN = re.compile(
    r"\W*+(?:(?:error code: |http )?400\b)?[\s:-]*+(?:bad request|status code \(no body\))?\W*+",
    re.IGNORECASE,
)
_EMPTY_ANSWER_PATTERN = re.compile(r"\W*+(?:http )?400\b.*\(no body\)\W*+", re.IGNORECASE)
_NO_OVERFLOW_STATUSES = frozenset({404, 405, 409})

ErrorKind = Literal[
    "prompt_too_long",
    "max_tokens_too_large",
    "payload_too_large",
    "rate_limit",
    "other",
]

_TOO_LONG_CODES = frozenset({"1261", "1039", "10907", "336007"})
"""Numbers that Zhipu, MiniMax, Spark and Qianfan document for a prompt over the limit."""


@dataclass(frozen=True, slots=True)
class ErrorVerdict:
    """The kind of an error, the reason for this verdict, and the token counts that the error states."""

    kind: ErrorKind
    reason: str
    context_limit: int | None = None
    input_tokens: int | None = None
    available_output: int | None = None
    """The largest output cap that fits beside the input."""
    output_limit: int | None = None
    """The largest output cap that the model accepts with any prompt."""


_RATE_LIMIT_VERDICT = ErrorVerdict(
    "rate_limit", "The account or the server is out of allowance for now."
)


def classify_error(
    error: Any = None,
    *,
    status: Any = None,
    body: Any = None,
    message: Any = None,
    near_limit: bool | None = None,
) -> ErrorVerdict:
    """Classify an error: an exception of any SDK, a body, a stream event or text.

    Never raise. `near_limit`: whether the refused request nearly filled the window, or None if that is unknown. A
    request that did was too long if it was refused with a 400 without a message. If it is unknown, the text that an SDK
    prints for an empty answer means the same.
    """
    evidence = Evidence(status=_read_http_status(status))
    for value in (error, body, message):
        # A foreign object that cannot be read adds no evidence.
        with contextlib.suppress(Exception):
            evidence.add(value)
    if isinstance(body, str | bytes) and not body and _ended_without_event(evidence):
        reason = "The stream ended without an event, as a local server's does when the prompt is too long."
        return ErrorVerdict("prompt_too_long", reason)
    if _is_refusal_without_message(evidence, near_limit=near_limit):
        reason = "A request that may have filled the window was refused without a message."
        return ErrorVerdict("prompt_too_long", reason)
    codes = [normalize_error_text(code) for code in evidence.codes]
    texts = [normalize_error_text(text) for text in evidence.texts]
    all_text = " ; ".join([*codes, *texts])
    relevant_sentences = [
        [sentence for sentence in split_sentences(text) if is_relevant(sentence)] for text in texts
    ]
    return (
        _classify_unrelated(evidence, all_text)
        or _classify_overflow(evidence, codes, relevant_sentences)
        or _classify_payload(all_text)
        or _classify_by_size(evidence, relevant_sentences)
        or _classify_without_tokens(evidence, all_text)
    )


def _ended_without_event(evidence: Evidence) -> bool:
    return not (evidence.texts or evidence.codes) and _is_success(evidence.status)


def _is_refusal_without_message(evidence: Evidence, *, near_limit: bool | None) -> bool:
    """Return whether a 400 without a message can mean that the prompt was too long."""
    is_empty = any(map(_EMPTY_ANSWER_PATTERN.fullmatch, evidence.texts))
    return (
        (near_limit or (near_limit is None and is_empty))
        and evidence.status == 400
        and all(map(_EMPTY_REFUSAL_PATTERN.fullmatch, evidence.texts))
    )


def _classify_unrelated(evidence: Evidence, all_text: str) -> ErrorVerdict | None:
    """Return the verdict if the error is not about the size of the context."""
    is_rate = _RATE_LIMIT_PATTERN.search(_MONEY_PATTERN.sub(" ", all_text)) is not None
    if evidence.status == 402 or (_MONEY_PATTERN.search(all_text) and not is_rate):
        return ErrorVerdict("other", "It is about money, not about size.")
    if evidence.status == 429 or is_rate:
        return _RATE_LIMIT_VERDICT
    if evidence.status in _NO_OVERFLOW_STATUSES or _OTHER_FAULT_PATTERN.search(all_text):
        return ErrorVerdict("other", "It is about a value of the request, not about its size.")
    if _is_long_string(all_text):
        return ErrorVerdict(
            "payload_too_large",
            "One text of the request is longer than the provider takes.",
        )
    if _SINGLE_FIELD_LIMIT_PATTERN.search(all_text):
        return ErrorVerdict("other", "It is a limit of one field or filter, not of the context.")
    return None


def _is_long_string(all_text: str) -> bool:
    """Return whether a character limit on the content is at fault, not one on a name or label."""
    if not _CHARACTER_LIMIT_PATTERN.search(all_text) or TOKENS_PATTERN.search(all_text):
        return False
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]{3,12}", all_text)]
    return (
        max(numbers, default=0) >= _LONG_STRING_CHARS
        and _CONTENT_NOUN_PATTERN.search(all_text) is not None
    )


def _classify_overflow(
    evidence: Evidence, codes: list[str], relevant_sentences: list[list[str]]
) -> ErrorVerdict | None:
    """Return the verdict if tokens are at fault: by the numbers, the words or a code."""
    counts = max(
        map(read_counts, relevant_sentences),
        key=lambda candidate: candidate.stated_count,
        default=Counts(),
    )
    counts = replace(counts, **evidence.counts)
    all_sentences = [
        sentence for text_sentences in relevant_sentences for sentence in text_sentences
    ]
    if evidence.counts or any(
        TOKENS_PATTERN.search(sentence) or LENGTH_PATTERN.search(sentence)
        for sentence in all_sentences
    ):
        kind = _classify_counts(counts)
        if kind is not None:
            return _make_verdict(kind, counts, "The numbers it states say so.")
    kinds_by_code = [kind for kind in map(find_overflow, codes) if kind]
    if _TOO_LONG_CODES & set(evidence.codes):
        kinds_by_code.append("prompt_too_long")
    kinds_by_wording = [kind for kind in map(find_overflow, all_sentences) if kind]
    if kinds_by_wording and (
        kinds_by_code or evidence.is_structured or not _is_success(evidence.status)
    ):
        return _make_verdict(kinds_by_wording[0], counts, "Its wording says so.")
    if kinds_by_code:
        return _make_verdict(kinds_by_code[0], counts, "Its code says so.")
    return None


def _classify_counts(counts: Counts) -> OverflowKind | None:
    """Blame the prompt if the input alone exceeds the limit, and the cap if the input fits or only a cap is stated.

    An input of exactly the limit fits; it is at fault only if no output was requested.
    """
    if counts.limit is None:
        exceeds_available = counts.available is not None and (counts.output or 0) > counts.available
        return "max_tokens_too_large" if counts.cap is not None or exceeds_available else None
    if counts.input is not None:
        if counts.input > counts.limit or (counts.input == counts.limit and not counts.output):
            return "prompt_too_long"
        return "max_tokens_too_large" if counts.output or counts.total else None
    if counts.output is not None:
        return "max_tokens_too_large"
    return "prompt_too_long" if (counts.total or 0) > counts.limit else None


def _make_verdict(kind: OverflowKind, counts: Counts, reason: str) -> ErrorVerdict:
    if kind == "prompt_too_long":
        input_tokens = counts.total if counts.input is None else counts.input
        return ErrorVerdict(kind, f"The prompt is too long. {reason}", counts.limit, input_tokens)
    remaining = (
        None if counts.limit is None or counts.input is None else counts.limit - counts.input
    )
    output_limits = [
        limit
        for limit in (counts.available, counts.cap, remaining)
        if limit is not None and limit > 0
    ]
    reason = f"The output cap is too large, the input fits. {reason}"
    return ErrorVerdict(
        kind,
        reason,
        context_limit=counts.limit,
        input_tokens=counts.input,
        available_output=min(output_limits, default=None),
        output_limit=counts.cap,
    )


def _classify_payload(all_text: str) -> ErrorVerdict | None:
    if not any(map(is_payload_overflow, split_sentences(all_text))):
        return None
    return ErrorVerdict("payload_too_large", "The request has too many bytes, images or documents.")


def _classify_by_size(
    evidence: Evidence, relevant_sentences: list[list[str]]
) -> ErrorVerdict | None:
    """Compare the figures by size, because the wording was not understood."""
    if _is_success(evidence.status):
        return None
    for text_sentences in relevant_sentences:
        counts = compare_sizes(text_sentences)
        kind = _classify_counts(counts)
        if kind is not None:
            return _make_verdict(kind, counts, "One figure exceeds the other.")
    return None


def _classify_without_tokens(evidence: Evidence, all_text: str) -> ErrorVerdict:
    if evidence.status == 413:
        return ErrorVerdict("payload_too_large", "Status 413, without a word about tokens.")
    if _POSSIBLE_RATE_LIMIT_PATTERN.search(all_text):
        return _RATE_LIMIT_VERDICT
    return ErrorVerdict("other", "Nothing in it speaks of the context's size.")


def _is_success(status: int | None) -> bool:
    return status is not None and 200 <= status < 300


def _read_http_status(value: Any) -> int | None:
    text = str(int(value)) if isinstance(value, int) and not isinstance(value, bool) else value
    return int(text) if isinstance(text, str) and len(text) == 3 and text.isdecimal() else None
