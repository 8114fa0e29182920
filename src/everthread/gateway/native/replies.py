"""Answers of the native API: JSON, or a stream of events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.types import Send

from everthread.gateway.access import Refused
from everthread.gateway.incoming import ClientGone


@dataclass(frozen=True, slots=True)
class Answer:
    """One JSON answer."""

    body: BaseModel | Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        if isinstance(self.body, BaseModel):
            return self.body.model_dump_json().encode("utf-8", "replace")
        return json.dumps(self.body).encode()


def error_answer(refused: Refused) -> Answer:
    headers = {"x-everthread-error": refused.code}
    if refused.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refused.retry_after)))
    return Answer({"error": {"code": refused.code, "message": refused.message}}, refused.status, headers)


class Sender:
    """To one client. `ClientGone` when it takes too long to read a piece."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self.started = False
        """An answer has begun; nothing else can be said in its place."""

    async def answer(self, answer: Answer) -> None:
        data = answer.data()
        headers = {"content-type": "application/json", "content-length": str(len(data)), **answer.headers}
        await self.start(answer.status, headers)
        await self.body(data, more=False)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def body(self, data: bytes, *, more: bool) -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": more})

    async def _put(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None
