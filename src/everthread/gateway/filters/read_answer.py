"""Read the reply and the usage in the answers of managed requests, for the thread's record and the metrics."""

from __future__ import annotations

from dataclasses import replace

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.answer_reader import AnswerReader, read_usage
from everthread.gateway.answers import Answer
from everthread.gateway.features import Feature, Filter
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.thread.caller.caller_request import Outcome

TOKEN_KINDS = ("input", "output", "cache_read", "cache_write")


class AnswerReadingFeature(Feature):
    """Fill in the reply and the usage of an outcome."""

    def make_managed_filter(self, managed_exchange: ManagedExchange) -> Filter:
        return _AnswerReadingFilter(managed_exchange)


class _AnswerReadingFilter(Filter):
    def __init__(self, managed_exchange: ManagedExchange) -> None:
        self._exchange = managed_exchange.exchange
        self._api = managed_exchange.incoming.api
        self._reader: AnswerReader | None = None

    async def change_answer(self, answer: Answer) -> Answer:
        if not answer.is_own:
            self._reader = AnswerReader(
                self._api, answer.status, answer.headers, model=self._exchange.request.model
            )
        return answer

    def read_piece(self, piece: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(piece)

    def finish(self, outcome: Outcome) -> Outcome:
        """Add reply and usage, unless another filter has already set the usage (of the last round)."""
        reply = None if self._reader is None else self._reader.end()
        usage = outcome.usage or read_usage(self._api, reply)
        if usage is not None:
            self._count(usage)
            self._exchange.writer.note(
                tokens=usage.prompt_tokens,
                cached=usage.cache_read_tokens,
                output=usage.output_tokens,
            )
        for recall_usage in outcome.recall_usage:
            self._count(recall_usage)
        return replace(
            outcome,
            reply=reply,
            usage=usage,
            estimated=reply is not None and usage is None,
        )

    def _count(self, usage: CanonicalUsage) -> None:
        for bucket in TOKEN_KINDS:
            tokens = getattr(usage, f"{bucket}_tokens")
            if tokens:
                self._exchange.services.metrics.count("tokens", tokens, bucket=bucket, task="main")
