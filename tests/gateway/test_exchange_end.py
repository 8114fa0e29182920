"""The end of an exchange: features do their last work, such as charging, whatever happens to the connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from everthread.gateway.answers import Answer
from everthread.gateway.exchange import Exchange, ExchangeRequest, UpstreamRequest
from everthread.gateway.features import Feature, Filter
from everthread.gateway.router import Upstream
from everthread.thread.caller.caller_request import Outcome


class EndRecorder(Filter):
    def __init__(self, statuses: list[int]) -> None:
        self._statuses = statuses

    def finish(self, outcome: Outcome) -> Outcome:
        self._statuses.append(outcome.status)
        return outcome


class EndRecording(Feature):
    def __init__(self) -> None:
        self.statuses: list[int] = []

    def make_filter(self, exchange: Any) -> Filter:  # noqa: ARG002
        return EndRecorder(self.statuses)


class BrokenExchange(Exchange):
    """An exchange whose upstream's connection breaks while it is closed."""

    async def send(self, request: UpstreamRequest) -> Any:  # noqa: ARG002  # noqa: ARG002
        self.status = 200
        return SimpleNamespace(status_code=200, headers={}, pieces=iter_nothing)

    async def relay(self, answer: Answer, make_own_headers: Any = None) -> None:
        pass

    async def close(self) -> None:
        raise ConnectionResetError("the connection broke")


async def iter_nothing() -> Any:
    return
    yield b""


async def test_features_end_although_the_connection_cannot_be_closed() -> None:
    feature = EndRecording()
    services: Any = SimpleNamespace(features=[feature], limits=None, metrics=None)
    head: Any = SimpleNamespace(
        client_api="openai_chat",
        raw_headers=[],
        caller=SimpleNamespace(is_passthrough=True),
    )
    writer: Any = None
    upstream = Upstream("only", "http://127.0.0.1")
    request = ExchangeRequest(head, upstream, None)
    exchange = BrokenExchange(services, request, writer)
    with pytest.raises(ConnectionResetError):
        await exchange.run()
    assert feature.statuses == [200]
