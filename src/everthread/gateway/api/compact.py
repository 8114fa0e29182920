"""`POST /v1/compact`: a conversation of any of the three protocols in, the compacted one and a receipt out.

Nothing is asked of a provider. What plug-ins of other agents call instead of their own compaction.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everthread.compaction.summary import CompactionLevel
from everthread.core.types import Api
from everthread.errors import EverthreadError, StoreError
from everthread.gateway.auth import Caller
from everthread.gateway.base import Incoming, Limits
from everthread.gateway.body import LIST_FIELD, OuterFields
from everthread.gateway.encoding import decode_body
from everthread.gateway.errors import Refused, error_body, error_headers
from everthread.gateway.management.manager import ProxyManager
from everthread.gateway.middleware import Admission
from everthread.gateway.requests import ClientGone, RequestHead, read_body

PATH = "/v1/compact"
_LEAST = 1_000


class CompactApp:
    """Answers that path."""

    def __init__(self, manager: ProxyManager, limits: Limits, upstream: str) -> None:
        self._manager = manager
        self._limits = limits
        self._upstream = upstream
        """Whose window counts where the request names a model only."""
        self._places = Admission(limits.concurrent)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope["state"]["caller"]
        call = RequestHead.of(scope, caller)
        try:
            await _check(call)
            with self._places.enter(caller.share):
                body = await self._compact(call, await read_body(receive, call, self._limits))
            text = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            answer = Response(text, media_type="application/json")
        except ClientGone:
            return
        except Refused as refused:
            error = error_body(call.speaks, refused)
            answer = Response(error, refused.status)
            answer.raw_headers = error_headers(refused, error)
        await answer(scope, receive, send)

    async def _compact(self, call: RequestHead, raw: bytes) -> dict[str, Any]:
        body = decode_body(raw, call.headers.get("content-encoding", ""), self._limits.body_bytes) or b""
        if OuterFields(body).is_excessive:
            raise Refused(413, "request_too_large", "The request has too many values to be looked into.")
        try:
            fields: Any = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict) or not isinstance(fields.get("model"), str):
            raise Refused(400, "invalid_request", "The body is no object with `model` and `messages` or `input`.")
        window = fields.get("window")
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < _LEAST):
            raise Refused(400, "invalid_request", f"`window` is a number of tokens from {_LEAST:,} on.")
        api = _api(fields, call)
        caller = call.caller
        incoming = Incoming(api, call.path, call.headers, body, body, caller.tenant, self._upstream, "managed",
                            caller.account)  # fmt: skip
        try:
            compacted = await self._manager.compact_once(incoming, CompactionLevel.NORMAL, window)
        except StoreError as error:
            raise Refused(503, "store_unavailable", str(error), retry_after=1) from error
        except EverthreadError as error:
            raise Refused(400, "not_compacted", str(error)) from error
        messages = compacted.pop("messages")
        return {LIST_FIELD[api]: messages, **compacted}


async def _check(call: RequestHead) -> None:
    """Nothing is stored for a credential that anybody can make up."""
    if call.method != "POST":
        raise Refused(405, "method_not_allowed", "Only POST is answered here.")
    credential = call.caller.credential
    if credential is not None and not await credential.is_accepted():
        raise Refused(403, "unknown_credential", "No upstream has accepted this credential yet.")


def _api(fields: dict[str, Any], call: RequestHead) -> Api:
    if "input" in fields:
        return "openai_responses"
    return "anthropic" if "system" in fields or "anthropic-version" in call.headers else "openai_chat"
