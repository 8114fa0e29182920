"""A service that posts signed messages gets answers from threads of `everthread serve`: `python examples/webhook.py`.

WEBHOOK_SECRET       both sides sign with it
EVERTHREAD_URL       the gateway, http://127.0.0.1:8484 by default
EVERTHREAD_KEY       a key with the scope `threads`, where the gateway needs one

The service posts `{"event": "e-1", "chat": "room-7", "text": "Hello"}` to http://127.0.0.1:8485/ with the headers of
`signed_headers`, and gets `{"thread": …, "state": …, "text": …}`, signed the same way. An event that comes again is the
same turn. Which thread a chat has is kept in webhook.json in the current directory.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TIMESTAMP = "x-everthread-timestamp"
SIGNATURE = "x-everthread-signature"
WINDOW = 300.0
"""Seconds for which a signature is valid, before and after its time."""


def signed_headers(secret: str, now: float, body: bytes) -> dict[str, str]:
    """Sign `timestamp.body` with HMAC-SHA256, so that neither can be changed or replayed later."""
    stamp = str(int(now))
    digest = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
    return {TIMESTAMP: stamp, SIGNATURE: f"sha256={digest.hexdigest()}"}


def is_signed(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    stamp = headers.get(TIMESTAMP, "")
    if not stamp.isdecimal() or len(stamp) > 12 or abs(now - int(stamp)) > WINDOW:
        return False
    expected = signed_headers(secret, int(stamp), body)[SIGNATURE]
    return hmac.compare_digest(headers.get(SIGNATURE, "").encode(), expected.encode())


class Webhook:
    """The endpoint: each chat is a thread, each event a turn."""

    def __init__(
        self,
        api: httpx2.AsyncClient,
        secret: str,
        state: Path,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._secret = secret
        self._file = state
        self._clock = clock
        self._threads: dict[str, str] = (
            json.loads(state.read_text("utf-8")) if state.exists() else {}
        )
        self.app = Starlette(routes=[Route("/", self.receive, methods=["POST"])])

    async def receive(self, request: Request) -> Response:
        body = await request.body()
        if not is_signed(self._secret, request.headers, body, self._clock()):
            return Response("The signature or its time is not valid.\n", 401)
        try:
            message = json.loads(body)
            event, chat, text = (str(message[name]) for name in ("event", "chat", "text"))
        except (ValueError, KeyError, TypeError):
            return Response("The body is not JSON with `event`, `chat` and `text`.\n", 400)
        thread = await self._find_thread(chat)
        answer = await self._api.post(
            f"/api/threads/{thread}/messages?wait=600",
            json={"content": text},
            headers={"idempotency-key": hashlib.sha256(f"{chat}\0{event}".encode()).hexdigest()},
        )
        result = answer.json()
        if answer.status_code >= 400:
            return Response(json.dumps(result), answer.status_code, media_type="application/json")
        reply = {
            "thread": thread,
            "state": result.get("state"),
            "text": (result.get("answer") or {}).get("text", ""),
        }
        content = json.dumps(reply).encode()
        headers = signed_headers(self._secret, self._clock(), content)
        return Response(content, headers=headers, media_type="application/json")

    async def _find_thread(self, chat: str) -> str:
        if chat not in self._threads:
            created = await self._api.post("/api/threads", json={"title": f"Webhook {chat[:80]}"})
            self._threads[chat] = created.raise_for_status().json()["id"]
            self._file.write_text(json.dumps(self._threads), "utf-8")
        return self._threads[chat]


def main() -> None:
    key = os.environ.get("EVERTHREAD_KEY")
    api = httpx2.AsyncClient(
        base_url=os.environ.get("EVERTHREAD_URL", "http://127.0.0.1:8484"),
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=630,
    )
    uvicorn.run(Webhook(api, os.environ["WEBHOOK_SECRET"], Path("webhook.json")).app, port=8485)


if __name__ == "__main__":
    main()
