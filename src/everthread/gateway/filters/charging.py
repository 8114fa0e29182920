"""Charge calls to the accounts of keys, by the usage that the provider reported or else by an estimate."""

from __future__ import annotations

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.access.quotas import BYTES_PER_TOKEN
from everthread.gateway.answer_reader import AnswerReader, read_usage
from everthread.gateway.answers import Answer
from everthread.gateway.charged_usage import (
    choose_charged_model,
    estimate_body_tokens,
    find_charged_usage,
)
from everthread.gateway.contracts import Account, Outgoing
from everthread.gateway.exchange import Exchange
from everthread.gateway.features import Feature, Filter
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.reported_usage import ReportedUsageReader
from everthread.gateway.request.body_limits import Upload
from everthread.thread.caller.caller_request import Outcome


class ChargingFeature(Feature):
    """Charge every call to the account of its key, if it has one."""

    def make_filter(self, exchange: Exchange) -> Filter | None:
        account = exchange.request.head.caller.account
        if account is None:
            return None
        if isinstance(exchange, ManagedExchange):
            return _ManagedCharge(exchange, account)
        return _UnmanagedCharge(exchange, account)


class _ManagedCharge(Filter):
    """Charge a managed request by its outcome."""

    def __init__(self, exchange: ManagedExchange, account: Account) -> None:
        self._exchange = exchange
        self._account = account

    def finish(self, outcome: Outcome) -> Outcome:
        outgoing = self._exchange.outgoing
        answered_model = outcome.reply.model if outcome.reply is not None else ""
        requested_model = self._exchange.request.model or ""

        def charge(last_usage: CanonicalUsage | None) -> None:
            if last_usage is None:
                return
            model = choose_charged_model(requested_model, answered_model)
            for call_usage in (*outcome.hidden_usage, last_usage):
                self._account.spend(call_usage, model)

        unread_bytes = (
            len(outgoing.body) if outcome.usage is None and outgoing.tokens is None else 0
        )
        self._exchange.services.pending.charge_when_measured(
            unread_bytes, lambda: find_charged_usage(outcome, outgoing), charge
        )
        return outcome


class _UnmanagedCharge(Filter):
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
            self._exchange.services.pending.charge_when_measured(
                len(self._request_body), self._measure, self._charge
            )
        return outcome

    @property
    def _request_body(self) -> bytes:
        """The client's body; empty if it was not kept."""
        body = self._exchange.request.body
        return body if isinstance(body, bytes) else b""

    def _measure(self) -> tuple[CanonicalUsage | None, str]:
        """Return the usage to charge, if any, and the model named in the answer."""
        if self._reply_reader is not None:
            return self._measure_reply(self._reply_reader)
        if self._usage_reader is not None:
            return self._measure_reported(self._usage_reader)
        return None, ""

    def _measure_reply(self, reader: AnswerReader) -> tuple[CanonicalUsage | None, str]:
        """Measure an answer to a conversation."""
        reply = reader.end()
        outcome = Outcome(self._status, reply, read_usage(reader.api, reply))
        usage = find_charged_usage(outcome, Outgoing(self._request_body))
        return usage, "" if reply is None else reply.model

    def _measure_reported(self, reader: ReportedUsageReader) -> tuple[CanonicalUsage | None, str]:
        """Measure another answer; estimate the usage of a stream that reports none."""
        usage = reader.find_usage()
        if usage is None and reader.event_count:
            body = self._exchange.request.body
            prompt_tokens = (
                body.size // BYTES_PER_TOKEN
                if isinstance(body, Upload)
                else estimate_body_tokens(self._request_body)
            )
            usage = CanonicalUsage(prompt_tokens, reader.event_count)
        return usage, reader.model

    def _charge(self, measurement: tuple[CanonicalUsage | None, str]) -> None:
        usage, answered_model = measurement
        if usage is not None:
            requested_model = self._exchange.request.model or ""
            model = choose_charged_model(requested_model, answered_model)
            self._account.spend(usage, model)
