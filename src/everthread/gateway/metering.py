"""What a call used, for who has a limit: as the provider reported it, else estimated; also where nobody looks in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from everthread.core.cost import cost_of
from everthread.core.messages import calls_of, text_of
from everthread.core.usage import CanonicalUsage, normalize_usage
from everthread.gateway.access import Refused
from everthread.gateway.base import Outcome, Outgoing
from everthread.gateway.encodings import decoded
from everthread.gateway.incoming import Call
from everthread.gateway.usage_tap import Tap, usage_of

_MOST = 8 * 1024 * 1024
"""An answer longer than this is not read for its usage."""
_FILE = re.compile(rb"[A-Za-z0-9+/=_-]{2000,}")
"""Base64: a picture or a document, which is not paid by the letter."""
_FILE_TOKENS = 1_500
_BYTES_PER_TOKEN = 4
_ONE = CanonicalUsage(1, 1)


def used_in(outcome: Outcome, sent: Outgoing) -> CanonicalUsage | None:
    """None where nothing was answered. What broke off before its figures came counts by what was said."""
    if not 200 <= outcome.status < 300:
        return outcome.usage
    reply = outcome.reply
    said = 0
    if reply is not None:
        words = [text_of(reply.message), *(f"{call.name} {call.arguments}" for call in calls_of(reply.message))]
        said = len("\n".join(words).encode("utf-8", "replace")) // _BYTES_PER_TOKEN
    if outcome.usage is None:
        return CanonicalUsage(rough_tokens(sent.body) if sent.tokens is None else sent.tokens, said)
    if reply is not None and reply.stop is None and outcome.usage.output_tokens < said:
        return replace(outcome.usage, output_tokens=said)
    return outcome.usage


def charged_model(asked: str, answered: str) -> str:
    """The model the answer names is the one that is paid; the one that was asked for where the other has no price."""
    return answered if answered and cost_of(_ONE, answered, at=datetime.now(UTC)) is not None else asked


def rough_tokens(body: bytes) -> int:
    """About so many tokens has a request whose provider said nothing."""
    text, files = _FILE.subn(b"", body)
    return len(text) // _BYTES_PER_TOKEN + files * _FILE_TOKENS


class Tally:
    """Reads the usage in an answer that is passed on unseen, for the account that pays. Without one it does nothing."""

    def __init__(self, call: Call, model: str | None, body: object, status: int, headers: Mapping[str, str]) -> None:
        self._account = call.caller.account if 200 <= status < 300 else None
        self._api = call.conversation
        self._model = model or ""
        self._sent = body if isinstance(body, bytes) else b""
        self._status = status
        self._encoding = headers.get("content-encoding", "")
        self._tap = Tap(self._api, status, headers, model=model) if self._account and self._api else None
        self._pieces: list[bytes] = []
        self._size = 0
        self._answered = ""
        """The model that the answer names, which is the one that is paid."""

    def feed(self, piece: bytes) -> None:
        if self._tap is not None:
            self._tap.feed(piece)
        elif self._account is not None and self._size <= _MOST:
            self._size += len(piece)
            self._pieces.append(piece)

    def settle(self) -> None:
        """Count what was heard."""
        if self._account is None:
            return
        usage = self._stated() if self._tap is None else self._heard(self._tap)
        if usage is not None:
            self._account.spend(usage, charged_model(self._model, self._answered))

    def _heard(self, tap: Tap) -> CanonicalUsage | None:
        reply = tap.end()
        self._answered = reply.model if reply is not None else ""
        usage = usage_of(self._api, reply) if self._api else None
        return used_in(Outcome(self._status, reply, usage), Outgoing(self._sent))

    def _stated(self) -> CanonicalUsage | None:
        """Of an answer that is no conversation, such as embeddings, the `usage` it has."""
        try:
            text = decoded(b"".join(self._pieces), self._encoding, _MOST) if self._size <= _MOST else None
            answer: Any = json.loads(text) if text else None
        except (Refused, ValueError, RecursionError):
            return None  # not JSON, or too long to be read for a figure
        if isinstance(answer, dict) and isinstance(answer.get("model"), str):
            self._answered = answer["model"]
        stated = answer.get("usage") if isinstance(answer, dict) else None
        return normalize_usage(stated) if isinstance(stated, dict) else None
