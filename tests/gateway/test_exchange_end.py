"""The end of an exchange: features do their last work, such as charging, whatever happens to the connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from everthread.gateway.exchange import Answer, Exchange
from everthread.gateway.features import Feature, Filter
from everthread.thread.caller.sent_history import Outcome


class EndRecorder(Filter):
    def __init__(self, statuses: list[int]) -> None:
        self._statuses = statuses

    def done(self, outcome: Outcome) -> Outcome:
        self._statuses.append(outcome.status)
        return outcome


class EndRecording(Feature):
    def __init__(self) -> None:
        self.statuses: list[int] = []

    def begin(self, exchange: Any) -> Filter:  # noqa: ARG002
        return EndRecorder(self.statuses)


class BrokenExchange(Exchange):
    """An exchange whose upstream's connection breaks while it is closed."""

    async def send(self, *, is_plain: bool = False) -> Any:  # noqa: ARG002
        self.status = 200
        return SimpleNamespace(status_code=200, headers={}, aiter_raw=iter_nothing)

    async def relay(self, answer: Answer) -> None:
        pass

    async def close(self) -> None:
        raise ConnectionResetError("the connection broke")


async def iter_nothing() -> Any:
    return
    yield b""


async def test_features_end_although_the_connection_cannot_be_closed() -> None:
    feature = EndRecording()
    services: Any = SimpleNamespace(features=[feature])
    exchange = BrokenExchange(
        services, head=_any(), upstream=_any(), writer=_any(), model=None
    )
    with pytest.raises(ConnectionResetError):
        await exchange.run()
    assert feature.statuses == [200]


def _any() -> Any:
    return SimpleNamespace()
