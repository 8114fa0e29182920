"""Charge calls to the accounts of keys, by the usage that the provider reported or else by an estimate."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.costs.prices import compute_call_cost
from everthread.core.messages import calls_of, text_of
from everthread.gateway.access.quotas import BYTES_PER_TOKEN
from everthread.gateway.answer_reader import AnswerReader, usage_of
from everthread.gateway.contracts import Account, ManagedCall, Outgoing
from everthread.gateway.error_answers import Refused
from everthread.gateway.exchange import Answer, Exchange
from everthread.gateway.features import Feature, Filter
from everthread.gateway.request.body_limits import Upload
from everthread.gateway.request.encoding import DECODING_ERRORS, make_decoder
from everthread.thread.caller.sent_history import Outcome
from everthread.wire.sse import SseParser

MAX_WHOLE_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 64 * 1024
"""Bytes read from the end of an answer longer than `MAX_WHOLE_BYTES`, to find its usage."""
MAX_DECODED_BYTES = 1 << 40
_USAGE = re.compile(rb'"usage"\s*:\s*(?={)')
_BASE64_RUN = re.compile(rb"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{2000,}+")
"""A long run of base64: an image or a document, which is not charged by its length."""
SCAN_PIECE_BYTES = 256 * 1024
TOKENS_PER_FILE = 1_500
_MINIMAL_USAGE = CanonicalUsage(1, 1)


class Charging(Feature):
    """Charge every call to the account of its key, if it has one."""

    def begin(self, exchange: Exchange) -> Filter | None:
        account = exchange.head.caller.account
        if account is None:
            return None
        call = exchange.managed_call
        if call is not None:
            return _ManagedCharge(exchange, call, account)
        return _PassthroughCharge(exchange, account)


class _ManagedCharge(Filter):
    """Charge a managed request by its outcome."""

    def __init__(self, exchange: Exchange, call: ManagedCall, account: Account) -> None:
        self._exchange = exchange
        self._call = call
        self._account = account

    def done(self, outcome: Outcome) -> Outcome:
        outgoing = self._call.sent
        answered_model = outcome.reply.model if outcome.reply is not None else ""
        requested_model = self._exchange.model or ""

        def charge(last_usage: CanonicalUsage | None) -> None:
            if last_usage is None:
                return
            model = choose_charged_model(requested_model, answered_model)
            for call_usage in (*outcome.hidden_usage, last_usage):
                self._account.spend(call_usage, model)

        unread_bytes = (
            len(outgoing.body)
            if outcome.usage is None and outgoing.tokens is None
            else 0
        )
        self._exchange.services.pending.charge_when_measured(
            unread_bytes, lambda: find_charged_usage(outcome, outgoing), charge
        )
        return outcome


class _PassthroughCharge(Filter):
    """Charge an unmanaged request by the usage in its answer."""

    def __init__(self, exchange: Exchange, account: Account) -> None:
        self._exchange = exchange
        self._account = account
        self._meter: PassthroughMeter | None = None

    async def answer(self, answer: Answer) -> Answer:
        if 200 <= answer.status < 300 and not answer.is_own:
            self._meter = PassthroughMeter(self._exchange, answer)
        return answer

    def seen(self, piece: bytes) -> None:
        if self._meter is not None:
            self._meter.feed(piece)

    def done(self, outcome: Outcome) -> Outcome:
        if self._meter is not None:
            self._exchange.services.pending.charge_when_measured(
                self._meter.unread_bytes, self._meter.measure, self._charge
            )
        return outcome

    def _charge(self, measurement: tuple[CanonicalUsage, str] | None) -> None:
        if measurement is not None:
            usage, model = measurement
            self._account.spend(usage, model)


def find_charged_usage(outcome: Outcome, outgoing: Outgoing) -> CanonicalUsage | None:
    """Return the usage of a call; None if there was no answer. Count a truncated answer by its text."""
    if not 200 <= outcome.status < 300:
        return outcome.usage
    reply = outcome.reply
    output_tokens = 0
    if reply is not None:
        reply_texts = [
            text_of(reply.message),
            *(f"{call.name} {call.arguments}" for call in calls_of(reply.message)),
        ]
        output_tokens = (
            len("\n".join(reply_texts).encode("utf-8", "replace")) // BYTES_PER_TOKEN
        )
    if outcome.usage is None:
        return CanonicalUsage(
            estimate_body_tokens(outgoing.body)
            if outgoing.tokens is None
            else outgoing.tokens,
            output_tokens,
        )
    if (
        reply is not None
        and reply.stop is None
        and outcome.usage.output_tokens < output_tokens
    ):
        return replace(outcome.usage, output_tokens=output_tokens)
    return outcome.usage


def choose_charged_model(requested_model: str, answered_model: str) -> str:
    """Return the model named in the answer, or the requested one if that model has no known price."""
    return (
        answered_model
        if answered_model
        and compute_call_cost(_MINIMAL_USAGE, answered_model, time=datetime.now(UTC))
        is not None
        else requested_model
    )


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


class ReportedUsage:
    """Read the usage in an answer that is not part of a conversation: a JSON object or a stream of events."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._decoder = make_decoder(
            headers.get("content-encoding", ""), MAX_DECODED_BYTES
        )
        self._events = (
            SseParser()
            if headers.get("content-type", "").startswith("text/event-stream")
            else None
        )
        self._text = b""
        self._is_whole = True
        self._usage: dict[str, Any] = {}
        self.event_count = 0
        """Number of events of a stream."""
        self.model = ""
        """Model named in the response; used for billing."""

    def feed(self, piece: bytes) -> None:
        if self._decoder is None:
            return
        try:
            data = self._decoder.feed(piece)
        except (Refused, *DECODING_ERRORS):
            self._decoder = None
            return
        if self._events is not None:
            for event in self._events.feed(data):
                self._read_event(event.data)
            return
        self._text += data
        if len(self._text) > (MAX_WHOLE_BYTES if self._is_whole else 2 * TAIL_BYTES):
            self._text = self._text[-TAIL_BYTES:]
            self._is_whole = False

    def find_usage(self) -> CanonicalUsage | None:
        if self._events is None and self._is_whole:
            self._read(self._text)
        for match in _USAGE.finditer(self._text) if not self._is_whole else ():
            # The match may be inside of a text.
            with contextlib.suppress(ValueError, RecursionError):
                end = self._text[match.end() :].decode("utf-8", "replace")
                self._usage = json.JSONDecoder().raw_decode(end)[0]
        return normalize_usage(self._usage) if self._usage else None

    def _read_event(self, data: str) -> None:
        self.event_count += 1
        if '"usage"' in data or not self.model:
            self._read(data.encode("utf-8", "replace"))

    def _read(self, text: bytes) -> None:
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            return  # no JSON
        if not isinstance(value, dict):
            return
        # Providers report usage and model at one of these levels.
        for part in (
            value,
            value.get("response"),
            value.get("message"),
        ):
            if isinstance(part, dict):
                self.model = (
                    part["model"] if isinstance(part.get("model"), str) else self.model
                )
                self._usage |= (
                    part["usage"] if isinstance(part.get("usage"), dict) else {}
                )


class PassthroughMeter:
    """Measure the usage of an answer that is passed on unmanaged."""

    def __init__(self, exchange: Exchange, answer: Answer) -> None:
        self._api = exchange.head.conversation_api
        self._model = exchange.model or ""
        self._sent_body = exchange.body
        self._status = answer.status
        self._reader: AnswerReader | None = None
        if self._api is not None:
            self._reader = AnswerReader(
                self._api, answer.status, answer.headers, model=exchange.model
            )
        self._reported = ReportedUsage(answer.headers)

    def feed(self, piece: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(piece)
        else:
            self._reported.feed(piece)

    @property
    def unread_bytes(self) -> int:
        """The size of the request, which may have to be read to estimate its tokens."""
        return len(self._sent_body) if isinstance(self._sent_body, bytes) else 0

    def measure(self) -> tuple[CanonicalUsage, str] | None:
        """Return the usage and the model to charge; None if there is nothing to charge."""
        usage, answered_model = (
            self._measure_reported()
            if self._reader is None
            else self._measure_reply(self._reader)
        )
        return (
            None
            if usage is None
            else (usage, choose_charged_model(self._model, answered_model))
        )

    def _measure_reply(self, reader: AnswerReader) -> tuple[CanonicalUsage | None, str]:
        """Return usage and model of an answer to a conversation."""
        reply = reader.end()
        usage = usage_of(self._api, reply) if self._api is not None else None
        outgoing = Outgoing(
            self._sent_body if isinstance(self._sent_body, bytes) else b""
        )
        charged_usage = find_charged_usage(
            Outcome(self._status, reply, usage), outgoing
        )
        return charged_usage, reply.model if reply is not None else ""

    def _measure_reported(self) -> tuple[CanonicalUsage | None, str]:
        """Return usage and model of another answer, such as embeddings; estimate the usage of a stream without one."""
        reported = self._reported
        usage = reported.find_usage()
        if usage is None and reported.event_count:
            request_body = self._sent_body
            size = (
                request_body.size // BYTES_PER_TOKEN
                if isinstance(request_body, Upload)
                else estimate_body_tokens(request_body or b"")
            )
            usage = CanonicalUsage(size, reported.event_count)
        return usage, reported.model
