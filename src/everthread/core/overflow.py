"""What a provider's error means for the context: compact, lower the output cap, send fewer bytes, or none of it.

Structured fields come before wording, and stated numbers before phrases: a stated input over the stated limit is a
prompt too long; an input that fits, with an output cap that does not, is a cap too large. Wording is read as
concepts, sentence by sentence, so that a provider never seen before is understood too. What only looks like
overflow is sorted out first: rate limits that count tokens, money, images, fields, files.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Literal

from everthread.core import overflow_words as words
from everthread.core.overflow_evidence import Evidence
from everthread.core.overflow_numbers import Counts, plain, read_counts, sentences

ErrorKind = Literal["prompt_too_long", "max_tokens_too_large", "payload_too_large", "rate_limit", "other"]

_TOO_LONG_CODES = frozenset({"1261", "1039", "10907", "336007"})
"""Numbers that Zhipu, MiniMax, Spark and Qianfan document for a prompt over the limit."""


@dataclass(frozen=True, slots=True)
class ErrorVerdict:
    """The verdict and why, with what the error states in tokens: the window, the input, the output that would fit."""

    kind: ErrorKind
    reason: str
    context_limit: int | None = None
    input_tokens: int | None = None
    available_output: int | None = None


def classify_error(error: Any = None, *, status: Any = None, body: Any = None, message: Any = None) -> ErrorVerdict:
    """What this error means: an exception of any SDK, a body, an event of a stream, or bare text. Never raises."""
    evidence = Evidence(status=_http_status(status))
    for value in (error, body, message):
        with contextlib.suppress(Exception):  # a foreign object that cannot be read says nothing
            evidence.add(value)
    if _is_silent(evidence, body):
        return ErrorVerdict(
            "prompt_too_long",
            "The stream ended without an event, as a local server's does when the prompt is too long.",
        )
    codes = [plain(code) for code in evidence.codes]
    texts = [plain(text) for text in evidence.texts]
    everything = " ; ".join([*codes, *texts])
    if evidence.status == 402 or (words.MONEY.search(everything) and not words.RATE.search(everything)):
        return ErrorVerdict("other", "It is about money, not about size.")
    if evidence.status == 429 or words.RATE.search(everything):
        return ErrorVerdict("rate_limit", "The account or the server is out of allowance for now.")
    if words.ONE_FIELD.search(everything):
        return ErrorVerdict("other", "It is a limit of one field or filter, not of the context.")
    return _overflow(evidence, codes, texts) or _without_tokens(evidence, everything)


def _overflow(evidence: Evidence, codes: list[str], texts: list[str]) -> ErrorVerdict | None:
    """The verdict where tokens are at fault: by the numbers, else by the words, else by a code."""
    kept = [[part for part in sentences(text) if words.is_relevant(part)] for text in texts]
    counts = max(map(read_counts, kept), key=lambda found: found.known, default=Counts())
    counts = replace(counts, **evidence.counts)
    spoken = [part for text in kept for part in text]
    if evidence.counts or any(map(words.is_about_length, spoken)):
        kind = _by_counts(counts)
        if kind is not None:
            return _verdict(kind, counts, "The numbers it states say so.")
    coded = [kind for kind in map(words.overflow_said, codes) if kind]
    if _TOO_LONG_CODES & set(evidence.codes):
        coded.append("prompt_too_long")
    said = [kind for kind in map(words.overflow_said, spoken) if kind]
    if said and (coded or evidence.structured or not _is_success(evidence.status)):
        return _verdict(said[0], counts, "Its wording says so.")
    if coded:
        return _verdict(coded[0], counts, "Its code says so.")
    return None


def _by_counts(counts: Counts) -> words.Overflow | None:
    """The input alone over the limit: the prompt. The input within it, or only a cap stated: the cap.

    An input of exactly the limit fits; it is at fault only where no output was asked for besides it.
    """
    if counts.limit is None:
        return None if counts.cap is None else "max_tokens_too_large"
    if counts.input is not None:
        if counts.input > counts.limit or (counts.input == counts.limit and not counts.output):
            return "prompt_too_long"
        return "max_tokens_too_large" if counts.output or counts.total else None
    if counts.output is not None:
        return "max_tokens_too_large"
    return "prompt_too_long" if (counts.total or 0) > counts.limit else None


def _verdict(kind: words.Overflow, counts: Counts, reason: str) -> ErrorVerdict:
    if kind == "prompt_too_long":
        stated = counts.total if counts.input is None else counts.input
        return ErrorVerdict(kind, f"The prompt is too long. {reason}", counts.limit, stated)
    left = None if counts.limit is None or counts.input is None else counts.limit - counts.input
    rooms = [room for room in (counts.available, counts.cap, left) if room is not None and room > 0]
    reason = f"The output cap is too large, the input fits. {reason}"
    return ErrorVerdict(kind, reason, counts.limit, counts.input, min(rooms, default=None))


def _without_tokens(evidence: Evidence, everything: str) -> ErrorVerdict:
    if any(map(words.payload_said, sentences(everything))):
        return ErrorVerdict("payload_too_large", "The request is too large in bytes.")
    if evidence.status == 413:
        return ErrorVerdict("payload_too_large", "Status 413, without a word about tokens.")
    if words.RATE_IF_NOTHING_ELSE.search(everything):
        return ErrorVerdict("rate_limit", "The account or the server is out of allowance for now.")
    return ErrorVerdict("other", "Nothing in it speaks of the context's size.")


def _is_silent(evidence: Evidence, body: Any) -> bool:
    empty = isinstance(body, str | bytes) and not body
    return empty and _is_success(evidence.status) and not (evidence.texts or evidence.codes)


def _is_success(status: int | None) -> bool:
    return status is not None and 200 <= status < 300


def _http_status(value: Any) -> int | None:
    text = str(int(value)) if isinstance(value, int) and not isinstance(value, bool) else value
    return int(text) if isinstance(text, str) and len(text) == 3 and text.isdecimal() else None
