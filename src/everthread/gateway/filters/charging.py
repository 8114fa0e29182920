"""Charge calls to the accounts of keys, by the usage that the provider reported or else by an estimate."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.prices import compute_call_cost
from everthread.core.messages import calls_of, text_of
from everthread.core.types import ModelReply
from everthread.gateway.access.quotas import BYTES_PER_TOKEN
from everthread.gateway.answer_reader import AnswerReader, read_usage
from everthread.gateway.answers import Answer
from everthread.gateway.contracts import Account, Outgoing
from everthread.gateway.exchange import Exchange
from everthread.gateway.features import Feature, Filter
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.reported_usage import ReportedUsageReader
from everthread.gateway.request.body_limits import Upload
from everthread.thread.caller.caller_request import Outcome

SCAN_PIECE_BYTES = 256 * 1024
TOKENS_PER_FILE = 1_500
_BASE64_RUN_PATTERN = re.compile(rb"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{2000,}+")
"""A long run of base64: an image or a document, which is not charged by its length."""
_MINIMAL_USAGE = CanonicalUsage(1, 1)


class ChargingFeature(Feature):
    """Charge every call to the account of its key, if it has one."""

    def make_filter(self, exchange: Exchange) -> Filter | None:
        account = exchange.request.head.caller.account
        return None if account is None else _UnmanagedChargeFilter(exchange, account)

    def make_managed_filter(self, managed_exchange: ManagedExchange) -> Filter | None:
        account = managed_exchange.incoming.head.caller.account
        return None if account is None else _ManagedChargeFilter(managed_exchange, account)


class _ManagedChargeFilter(Filter):
    """Charge a managed request by its outcome."""

    def __init__(self, managed_exchange: ManagedExchange, account: Account) -> None:
        self._managed_exchange = managed_exchange
        self._account = account

    def finish(self, outcome: Outcome) -> Outcome:
        exchange = self._managed_exchange.exchange
        outgoing = self._managed_exchange.outgoing
        answered_model = outcome.reply.model if outcome.reply is not None else ""
        requested_model = exchange.request.model or ""

        def charge(last_usage: CanonicalUsage | None) -> None:
            if last_usage is None:
                return
            model = choose_charged_model(requested_model, answered_model)
            for call_usage in (*outcome.recall_usage, last_usage):
                self._account.spend(call_usage, model)

        is_unread = outcome.usage is None and outgoing.tokens is None
        unread_bytes = len(outgoing.body) if is_unread else 0
        exchange.services.pending_work.charge_when_measured(
            unread_bytes, lambda: find_charged_usage(outcome, outgoing), charge
        )
        return outcome


class _UnmanagedChargeFilter(Filter):
    """Charge an unmanaged request by the usage in its answer."""

    def __init__(self, exchange: Exchange, account: Account) -> None:
        self._exchange = exchange
        self._account = account
        self._status = 0
        self._reply_reader: AnswerReader | None = None
        """Reads the answer if the request is a conversation's."""
        self._usage_reader: ReportedUsageReader | None = None
        """Reads any other answer."""

    async def change_answer(self, answer: Answer) -> Answer:
        if not 200 <= answer.status < 300 or answer.is_own:
            return answer
        self._status = answer.status
        exchange = self._exchange
        api = exchange.request.head.conversation_api
        if api is not None:
            self._reply_reader = AnswerReader(
                api, answer.status, answer.headers, model=exchange.request.model
            )
        else:
            self._usage_reader = ReportedUsageReader(answer.headers)
        return answer

    def read_piece(self, piece: bytes) -> None:
        if self._reply_reader is not None:
            self._reply_reader.feed(piece)
        if self._usage_reader is not None:
            self._usage_reader.feed(piece)

    def finish(self, outcome: Outcome) -> Outcome:
        if self._status:
            # The request may have to be read, to estimate its tokens.
            self._exchange.services.pending_work.charge_when_measured(
                len(self._request_body), self._measure, self._charge
            )
        return outcome

    @property
    def _request_body(self) -> bytes:
        """The client's body, or no bytes if it was not kept."""
        body = self._exchange.request.body
        return body if isinstance(body, bytes) else b""

    def _measure(self) -> tuple[CanonicalUsage | None, str]:
        """Return the usage to charge, if any, and the model named in the answer."""
        if self._reply_reader is not None:
            return self._measure_conversation(self._reply_reader)
        if self._usage_reader is not None:
            return self._measure_other(self._usage_reader)
        return None, ""

    def _measure_conversation(self, reader: AnswerReader) -> tuple[CanonicalUsage | None, str]:
        """Return the usage and the model of an answer to a conversation."""
        reply = reader.end()
        outcome = Outcome(self._status, reply, read_usage(reader.api, reply))
        usage = find_charged_usage(outcome, Outgoing(self._request_body))
        return usage, "" if reply is None else reply.model

    def _measure_other(self, reader: ReportedUsageReader) -> tuple[CanonicalUsage | None, str]:
        """Return the usage and the model of any other answer; estimate the usage of a stream that reports none."""
        usage = reader.find_usage()
        if usage is None and reader.event_count:
            body = self._exchange.request.body
            if isinstance(body, Upload):
                prompt_tokens = body.size // BYTES_PER_TOKEN
            else:
                prompt_tokens = estimate_body_tokens(self._request_body)
            usage = CanonicalUsage(prompt_tokens, reader.event_count)
        return usage, reader.model

    def _charge(self, measurement: tuple[CanonicalUsage | None, str]) -> None:
        usage, answered_model = measurement
        if usage is not None:
            requested_model = self._exchange.request.model or ""
            model = choose_charged_model(requested_model, answered_model)
            self._account.spend(usage, model)


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


def _estimate_output_tokens(reply: ModelReply) -> int:
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
        for match in _BASE64_RUN_PATTERN.finditer(piece):
            end = match.end()
            file_bytes += end - match.start()
            file_count += not (is_inside and match.start() == 0)
        is_inside = end == len(piece)
    return (len(body) - file_bytes) // BYTES_PER_TOKEN + file_count * TOKENS_PER_FILE
