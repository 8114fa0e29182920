"""Any service that can post JSON: signed messages in, signed answers to a URL that was allowed.

POST /hooks/NAME                                   {"event": "1", "chat": "room-7", "sender": "ann", "text": "Hello"}
→ 202 {"thread": "…", "turn": "…"}, and later to the callback
{"event": "1", "chat": "room-7", "thread": "…", "turn": "…", "state": "answered", "text": "…"}
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everthread.gateway.adapters.base import Inbound, NotDeliveredError, Outbound
from everthread.gateway.adapters.bridge import Bridge
from everthread.gateway.adapters.signing import check, signed_headers
from everthread.gateway.errors import Refused

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Of one service."""

    name: str
    secret: str
    senders: Sequence[str] = ()
    """Who may write; nobody else. `*` lets in whoever the service lets in."""
    callbacks: Sequence[str] = ()
    """URLs answers may go to, or how they begin; the first where a message names none."""
    tenant: str | None = None


class Posted(BaseModel):
    """A message as a service posts it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    event: str = Field(min_length=1, max_length=200)
    chat: str = Field(min_length=1, max_length=200)
    sender: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1, max_length=200_000)
    callback: str | None = Field(None, max_length=2_000)


class WebhookCarrier:
    """Posts answers. A redirect is not followed: only what was allowed is called."""

    platform = "webhook"

    def __init__(self, options: WebhookOptions, clock: Callable[[], float] = time.time) -> None:
        self.name = options.name
        self._options = options
        self._clock = clock
        self._http = httpx2.AsyncClient(timeout=SECONDS, follow_redirects=False, trust_env=False)

    async def deliver(self, answer: Outbound) -> None:
        if not allowed(answer.reply, self._options.callbacks):
            raise NotDeliveredError("its callback is not allowed", final=True)
        told = {name: getattr(answer, name) for name in ("event", "chat", "thread", "turn", "state", "text")}
        body = json.dumps(told).encode()
        headers = {"content-type": "application/json", **signed_headers(self._options.secret, self._clock(), body)}
        try:
            got = await self._http.post(answer.reply, content=body, headers=headers)
        except httpx2.HTTPError as error:
            raise NotDeliveredError(f"the callback cannot be reached ({type(error).__name__})") from error
        if got.status_code >= 300:
            passing = got.status_code in (408, 425, 429) or got.status_code >= 500
            after = got.headers.get("retry-after", "")
            raise NotDeliveredError(
                f"the callback answered {got.status_code}",
                final=not passing,
                after=float(after) if after.isdecimal() else None,
            )

    async def close(self) -> None:
        await self._http.aclose()


class Webhook:
    """Lets signed messages in."""

    def __init__(self, options: WebhookOptions, bridge: Bridge, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._bridge = bridge
        self._clock = clock

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        check(self._options.secret, headers, body, self._clock())
        try:
            posted = Posted.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise Refused(400, "invalid_body", f"{where}: {first['msg']}.") from None
        if "*" not in self._options.senders and posted.sender not in self._options.senders:
            raise Refused(403, "unknown_sender", "This sender may not write here.")
        reply = posted.callback or next(iter(self._options.callbacks), "")
        if not allowed(reply, self._options.callbacks):
            raise Refused(403, "callback_not_allowed", "Answers may not go to this callback.")
        inbound = Inbound(posted.chat, posted.event, posted.text, reply, posted.sender)
        thread, turn = await self._bridge.take(inbound)
        return {"thread": thread, "turn": turn}


def allowed(url: str, callbacks: Sequence[str]) -> bool:
    """Whether a URL is one of these, or goes on below one that ends with `/`; same scheme, host and port."""
    return any(_below(url, callback) for callback in callbacks)


def _below(url: str, callback: str) -> bool:
    try:
        asked, known = urlsplit(url), urlsplit(callback)
        same = (asked.scheme, asked.hostname, asked.port) == (known.scheme, known.hostname, known.port)
    except ValueError:
        return False
    if (
        not same
        or asked.username
        or asked.password
        or "\\" in url
        or "/.." in asked.path
        or "%2e" in asked.path.lower()
    ):
        return False
    return asked.path == known.path or (known.path.endswith("/") and asked.path.startswith(known.path))
