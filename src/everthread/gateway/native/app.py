"""The native API as an application: finds who answers, and gives every error as JSON."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from everthread.core.redaction import redact
from everthread.errors import EverthreadError, InputError, StoreError, UnknownIdError
from everthread.gateway.access import Caller, Refused
from everthread.gateway.admission import Admission
from everthread.gateway.incoming import Call, ClientGone
from everthread.gateway.limits import Limits
from everthread.gateway.native.asking import Ask, Endpoint, read
from everthread.gateway.native.desk import TurnDesk
from everthread.gateway.native.endpoints import endpoints
from everthread.gateway.native.openapi import document
from everthread.gateway.native.options import HEARTBEAT_SECONDS
from everthread.gateway.native.replies import Answer, Sender, error_answer

_LOG = logging.getLogger("everthread.gateway")
_ID = r"[0-9A-Za-z_-]{1,64}"
OPENAPI = "/api/openapi.json"


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """Of the API itself."""

    tools: bool = False
    """Whoever needs no key has commands and files."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS


class NativeApp:
    """Answers `/api/…`. The caller is in the request's state, let in by the service."""

    def __init__(self, desk: TurnDesk, *, limits: Limits | None = None, options: NativeOptions | None = None) -> None:
        self.desk = desk
        self._limits = limits or Limits()
        self._options = options or NativeOptions()
        self._admission = Admission(self._limits.concurrent)
        self._endpoints = endpoints(desk, self._options.heartbeat_seconds)
        self._routes = [(_pattern(endpoint.path), endpoint) for endpoint in self._endpoints]
        self._document = Answer(document(self._endpoints))

    async def start(self) -> None:
        await self.desk.start()

    async def close(self, patience: float = 0.0) -> None:
        """Turns under way have this long to end."""
        await self.desk.close(patience)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope["state"]["caller"]
        call = Call.of(scope, caller)
        sender = Sender(send, self._limits.write_seconds)
        with contextlib.suppress(ClientGone):
            try:
                with self._admission.enter():
                    answer = await self._answered(call, receive, sender)
            except Refused as refused:
                answer = error_answer(refused)
            except ClientGone:
                raise
            except Exception:  # noqa: BLE001 - logged with its traceback; the client gets JSON all the same
                _LOG.exception("%s %s failed", call.method, redact(call.path))
                answer = error_answer(
                    Refused(500, "internal", "Something went wrong here; the gateway's log tells what.")
                )
            if answer is not None and not sender.started:
                await sender.answer(answer)

    async def _answered(self, call: Call, receive: Receive, sender: Sender) -> Answer | None:
        if call.path == OPENAPI and call.method == "GET":
            return self._document
        endpoint, names = self._route(call)
        if endpoint.method == "POST":
            call.caller.admit()
        query, body = await read(endpoint, call, receive, self._limits)
        ask = Ask(call.caller, self._may_use_tools(call.caller), names, query, body, call.headers, receive, sender)
        try:
            return await endpoint.handler(ask)
        except UnknownIdError:
            raise Refused(404, "not_found", "There is no such thread.") from None
        except InputError as error:
            raise Refused(400, "invalid_request", redact(str(error))) from error
        except StoreError as error:
            _LOG.warning("%s %s: %s", call.method, endpoint.path, redact(str(error)))
            raise Refused(503, "store_failed", "The store does not answer; try again.", retry_after=2) from error
        except EverthreadError as error:
            _LOG.warning("%s %s: %s", call.method, endpoint.path, redact(str(error)))
            raise Refused(503, "failed", redact(str(error))) from error

    def _route(self, call: Call) -> tuple[Endpoint, dict[str, str]]:
        found = [(endpoint, match) for pattern, endpoint in self._routes if (match := pattern.fullmatch(call.path))]
        for endpoint, match in found:
            if endpoint.method == call.method:
                return endpoint, match.groupdict()
        if found or call.path == OPENAPI:
            raise Refused(405, "method_not_allowed", f"{call.method[:20]} is not possible here.")
        raise Refused(404, "not_found", "There is no such thread.")

    def _may_use_tools(self, caller: Caller) -> bool:
        return "tools" in caller.scopes or (self._options.tools and caller.key_id is None)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", rf"(?P<\1>{_ID})", path))
