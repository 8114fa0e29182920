"""Decide which usage of which model is charged for a call; estimate what the provider did not report."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.prices import compute_call_cost
from everthread.core.messages import calls_of, text_of
from everthread.core.types import Reply
from everthread.gateway.access.quotas import BYTES_PER_TOKEN
from everthread.gateway.contracts import Outgoing
from everthread.thread.caller.caller_request import Outcome

SCAN_PIECE_BYTES = 256 * 1024
TOKENS_PER_FILE = 1_500
_BASE64_RUN = re.compile(rb"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{2000,}+")
"""A long run of base64: an image or a document, which is not charged by its length."""
_MINIMAL_USAGE = CanonicalUsage(1, 1)


def find_charged_usage(outcome: Outcome, outgoing: Outgoing) -> CanonicalUsage | None:
    """Return the usage of a call; None if there was no answer. Count a truncated answer by its text."""
    usage = outcome.usage
    if not 200 <= outcome.status < 300:
        return usage
    reply = outcome.reply
    output_tokens = 0 if reply is None else _estimate_output_tokens(reply)
    if usage is None:
        prompt_tokens = outgoing.tokens
        if prompt_tokens is None:
            prompt_tokens = estimate_body_tokens(outgoing.body)
        return CanonicalUsage(prompt_tokens, output_tokens)
    is_truncated = reply is not None and reply.stop is None
    if is_truncated and usage.output_tokens < output_tokens:
        return replace(usage, output_tokens=output_tokens)
    return usage


def _estimate_output_tokens(reply: Reply) -> int:
    call_texts = [f"{call.name} {call.arguments}" for call in calls_of(reply.message)]
    text = "\n".join([text_of(reply.message), *call_texts])
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN


def choose_charged_model(requested_model: str, answered_model: str) -> str:
    """Return the model named in the answer, or the requested one if that model has no known price."""
    if not answered_model:
        return requested_model
    cost = compute_call_cost(_MINIMAL_USAGE, answered_model, time=datetime.now(UTC))
    return requested_model if cost is None else answered_model


def estimate_body_tokens(body: bytes) -> int:
    """Estimate a request's tokens if the provider reported none, in pieces, so that other threads can run."""
    file_count = 0
    file_bytes = 0
    is_inside = False
    for start in range(0, len(body), SCAN_PIECE_BYTES):
        piece = body[start : start + SCAN_PIECE_BYTES]
        end = 0
        for match in _BASE64_RUN.finditer(piece):
            end = match.end()
            file_bytes += end - match.start()
            file_count += not (is_inside and match.start() == 0)
        is_inside = end == len(piece)
    return (len(body) - file_bytes) // BYTES_PER_TOKEN + file_count * TOKENS_PER_FILE
