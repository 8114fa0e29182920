"""A message as it is stored: what can be computed of it before a transaction begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everthread.core.fingerprints import byte_fingerprint, message_fingerprint
from everthread.core.messages import Call, calls_of, results_of
from everthread.errors import InputError
from everthread.store.base import NewMessage
from everthread.store.operations.sessions import json_text, plain

MOST_TOKENS = 10**12
"""No message has so many; sums of what is below are exact in every database."""


@dataclass(frozen=True, slots=True)
class Prepared:
    new: NewMessage
    text: str
    role: str
    tool: str
    canonical: str
    byte_order: str
    calls: tuple[Call, ...] = ()
    answers: tuple[str, ...] = ()
    """The calls whose results it holds without saying of which tool."""


def prepare(new: NewMessage) -> Prepared:
    body = new.body
    if not isinstance(body, dict):
        raise InputError(f"a message is an object with a role, not {type(body).__name__}")
    tokens: Any = new.tokens  # whatever an import may hold
    if tokens is not None and (type(tokens) is not int or not 0 <= tokens < MOST_TOKENS):
        raise InputError(f"a message cannot have {tokens!r} tokens")
    text = json_text(body)  # first: it refuses what has no bottom
    calls, results = calls_of(body), results_of(body)
    named = next((result.name for result in results if result.name), "")
    return Prepared(
        new,
        text,
        plain(str(body.get("role", ""))),
        plain(named or ",".join(dict.fromkeys(call.name for call in calls))),
        message_fingerprint(body),
        byte_fingerprint(body),
        tuple(calls),
        () if named else tuple(result.call_id for result in results if result.call_id),
    )
