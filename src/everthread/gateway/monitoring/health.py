"""Answer the paths for monitoring the gateway: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everthread.gateway.monitoring.metrics import Metrics

FindProblem = Callable[[], Awaitable[str | None]]
"""Return why the gateway cannot serve now; None if it can."""


class Health:
    """Report whether the gateway is alive and ready, and its metrics."""

    def __init__(self, metrics: Metrics, find_problem: FindProblem | None) -> None:
        self._metrics = metrics
        self._find_own_problem = find_problem
        self.is_ending = False
        """Whether the gateway is shutting down, so that it is no longer ready."""

    async def answer_alive(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _make_answer(None)(scope, receive, send)

    async def answer_ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _make_answer(await self._find_problem())(scope, receive, send)

    async def show_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Response(
            self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )
        await answer(scope, receive, send)

    async def _find_problem(self) -> str | None:
        if self.is_ending:
            return "the gateway is shutting down"
        return await self._find_own_problem() if self._find_own_problem else None


def _make_answer(problem: str | None) -> Response:
    if problem is None:
        return Response(json.dumps({"status": "ok"}), media_type="application/json")
    return Response(
        json.dumps({"status": "unavailable", "reason": problem}),
        503,
        media_type="application/json",
    )
