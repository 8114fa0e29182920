"""The provider's server: routes, models, one answer a request, and the faults that happen on the connection."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, cast

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from everthread.core.types import Api
from everthread.errors import InputError
from everthread.gateway.request.encoding import decode_body
from everthread.gateway.router import LOGIN_PATH
from everthread.gateway.server import LoopServer, listen
from everthread.lab.provider.answers import (
    ProviderAnswer,
    ProviderLogic,
    Record,
    refuse,
)
from everthread.lab.provider.checks import unknown_model
from everthread.lab.provider.faults import FaultPlan, refusal
from everthread.lab.provider.script import Answers, Script
from everthread.lab.provider.served_models import (
    ANTHROPIC,
    GEMINI,
    PROTOCOLS,
    RESPONSES,
    Models,
    Protocol,
    ServedModel,
    index_models,
)

Connections = dict[Any, asyncio.Transport]
"""Open connections by the client's address. An ASGI application cannot reset a connection itself."""

GEMINI_METHODS = ("generateContent", "streamGenerateContent")
_MAX_BYTES = 1 << 30
"""Largest compressed body, once decoded."""


def track_connections(connections: Connections) -> type[H11Protocol]:
    """Return a server protocol that registers every open connection."""

    class TrackedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened = cast("asyncio.Transport", transport)
            super().connection_made(opened)
            connections[opened.get_extra_info("peername")] = opened

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self.transport.get_extra_info("peername"), None)
            super().connection_lost(exc)

    return TrackedProtocol


class AnswerApp:
    """ASGI app that sends one answer, with its fault if it has one."""

    def __init__(
        self, provider: Provider, outgoing: ProviderAnswer, record: Record
    ) -> None:
        self._provider = provider
        self._outgoing = outgoing
        self._record = record
        self._gone: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(scope, receive, send)
        finally:
            if self._gone:
                self._gone.cancel()
            self._provider.report(self._record)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = self._outgoing
        fault = self._outgoing.fault
        kind = fault.kind if fault else ""
        streamed = out.events is not None
        if (
            fault
            and kind in ("hang", "delay")
            and not await self._wait(receive, fault.seconds)
        ):
            return
        if kind == "hang" or (kind == "reset" and not streamed):
            self._reset(scope)
            return
        self._record.status = out.status
        pieces = out.events or [out.body]
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
        }
        if fault and kind in ("reset", "truncated"):
            pieces = (
                pieces[: fault.after] if streamed else [out.body[: len(out.body) // 2]]
            )
        if not streamed:
            headers = {
                "content-type": "application/json",
                "content-length": str(len(pieces[0])),
            }
        await send(_start(out, headers))
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            # Each event is on its way before the next one, as a model writes.
            await asyncio.sleep(0)
            if (
                fault
                and kind == "slow"
                and streamed
                and not await self._wait(receive, fault.seconds)
            ):
                return
        if kind == "reset":
            # A reset overtakes what the client has not read yet.
            await asyncio.sleep(0.02)
            self._reset(scope)
            return
        if kind == "truncated":
            self._record.events.append("cut")
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self, receive: Receive, seconds: float) -> bool:
        """Return whether the client is still connected after this many seconds."""
        if self._gone is None:
            self._gone = asyncio.create_task(_until_client_gone(receive))
        closing = asyncio.create_task(self._provider.closing.wait())
        await asyncio.wait(
            {self._gone, closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        closing.cancel()
        if self._gone.done():
            self._record.events.append("gone")
        return not self._gone.done()

    def _reset(self, scope: Scope) -> None:
        self._record.events.append("reset")
        client = scope.get("client")
        transport = self._provider.connections.get(tuple(client)) if client else None
        if transport is None:
            return
        # Without lingering, closing the socket sends a reset.
        lingering = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, lingering
        )
        transport.abort()


def _start(out: ProviderAnswer, headers: Mapping[str, str]) -> dict[str, Any]:
    fields = {
        **headers,
        **out.headers,
        "request-id": "req_lab",
        "x-request-id": "req_lab",
    }
    return {
        "type": "http.response.start",
        "status": out.status,
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }


async def _until_client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Provider:
    """A provider for tests, on a local port. `listen` is called with each record after its answer was sent."""

    def __init__(  # noqa: PLR0913  each is a thing a test may want to set
        self,
        models: Models | None = None,
        script: Script | None = None,
        *,
        faults: FaultPlan | None = None,
        clock: Callable[[], float] = time.monotonic,
        port: int = 0,
        listen: Callable[[Record], None] | None = None,
        upgrade_status: int = 405,
    ) -> None:
        self.log: list[Record] = []
        self.models = index_models(models)
        self._answering = ProviderLogic(self.models, Answers(script), faults, clock)
        self._clock = clock
        self._port = port
        self._listen = listen
        self._upgrade_status = upgrade_status
        """Status that refuses a WebSocket."""
        self.connections: Connections = {}
        self.closing = asyncio.Event()
        """Set when the provider closes, to end answers that hang."""
        self._failures: list[Exception] = []
        self._server: LoopServer | None = None

    @property
    def url(self) -> str:
        """The root of its addresses."""
        if self._server is None:
            raise InputError("the provider is not running; open it with `async with`")
        return f"http://127.0.0.1:{self._port}"

    def base_url(self, api: Api) -> str:
        """Return the base URL that the official client of this protocol expects."""
        return self.url if api in ("anthropic", "gemini") else f"{self.url}/v1"

    async def __aenter__(self) -> Self:
        listener = listen(self._port)
        self._port = listener.getsockname()[1]
        self.closing = asyncio.Event()
        self._server = LoopServer(
            self._application(), listener, track_connections(self.connections)
        )
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, *_error: object
    ) -> None:
        self.closing.set()
        if self._server:
            await self._server.stop()
        self._server = None
        failures = self._failures
        self._failures = []
        if failures and kind is None:
            raise failures[0]

    def _application(self) -> Starlette:
        logic = self._answering
        login_path = LOGIN_PATH + RESPONSES.path.removeprefix("/v1")
        posted = [
            *(
                (protocol, protocol.path, logic.answer)
                for protocol in PROTOCOLS
                if protocol is not GEMINI
            ),
            (RESPONSES, login_path, logic.answer),
            (ANTHROPIC, f"{ANTHROPIC.path}/count_tokens", logic.count),
            (RESPONSES, f"{RESPONSES.path}/compact", logic.compact),
        ]
        for version in ("v1", "v1beta"):
            model = f"/{version}/models/{{name}}"
            posted += [
                (GEMINI, f"{model}:{method}", logic.answer) for method in GEMINI_METHODS
            ]
            posted.append((GEMINI, f"{model}:countTokens", logic.count))
        routes = [
            Route(path, self._endpoint(protocol, decide), methods=["POST"])
            for protocol, path, decide in posted
        ]
        routes += [
            Route(protocol.path, self._upgrade, methods=["GET"])
            for protocol in PROTOCOLS
        ]
        routes += [
            Route(path, self._models, methods=["GET"])
            for path in ("/v1/models", f"{LOGIN_PATH}/models")
        ]
        routes.append(Route("/v1beta/models", self._gemini_models, methods=["GET"]))
        routes.append(
            Route("/v1beta/models/{name:path}", self._gemini_model, methods=["GET"])
        )
        routes.append(Route("/v1/models/{name:path}", self._model, methods=["GET"]))
        return Starlette(routes=routes)

    def _endpoint(
        self,
        protocol: Protocol,
        decide: Callable[[Protocol, Record], Awaitable[ProviderAnswer]],
    ) -> Callable[[HttpRequest], Any]:
        """Return the endpoint of a route. If the script fails, answer with a 500 and raise when the provider closes."""

        async def answer(http: HttpRequest) -> ASGIApp:
            try:
                raw = await http.body()
            except ClientDisconnect:  # before it had said what it wants
                return Response(status_code=400)
            record = self._log_request(protocol, http)
            try:
                record.body = json.loads(
                    decode_body(
                        raw, http.headers.get("content-encoding", ""), _MAX_BYTES
                    )
                    or b""
                )
            except ValueError:
                record.body = None
            if protocol is GEMINI and isinstance(record.body, dict):
                record.body = _with_path(record.body, http)
            try:
                outgoing = await decide(protocol, record)
            except Exception as error:  # noqa: BLE001  a script may raise anything; it is raised again, in `__aexit__`
                self._failures.append(error)
                words = f"The script failed: {type(error).__name__}: {error}"
                outgoing = refuse(record, refusal(protocol.api, 500, words))
            return AnswerApp(self, outgoing, record)

        return answer

    async def _upgrade(self, http: HttpRequest) -> JSONResponse:
        """Refuse a WebSocket."""
        record = self._log_request(RESPONSES, http)
        record.status = self._upgrade_status if "upgrade" in http.headers else 405
        self.report(record)
        words = (
            "Method Not Allowed"
            if record.status == 405
            else "WebSockets are not served here"
        )
        return JSONResponse(
            refusal(RESPONSES.api, record.status, words).body, record.status
        )

    def _log_request(self, protocol: Protocol, http: HttpRequest) -> Record:
        record = Record(
            len(self.log) + 1,
            protocol.api,
            http.url.path,
            dict(http.headers),
            self._clock(),
        )
        self.log.append(record)
        return record

    def report(self, record: Record) -> None:
        """Call the listener: the answer was sent."""
        if self._listen:
            self._listen(record)

    async def _models(self, _http: HttpRequest) -> JSONResponse:
        return JSONResponse(
            {
                "object": "list",
                "data": [_describe_model(model) for model in self.models.values()],
            }
        )

    async def _gemini_models(self, _http: HttpRequest) -> JSONResponse:
        return JSONResponse(
            {
                "models": [
                    _describe_gemini_model(model) for model in self.models.values()
                ]
            }
        )

    async def _gemini_model(self, http: HttpRequest) -> JSONResponse:
        name = http.path_params["name"]
        if name in self.models:
            return JSONResponse(_describe_gemini_model(self.models[name]))
        error = unknown_model("gemini", name)
        return JSONResponse(error.body, error.status)

    async def _model(self, http: HttpRequest) -> JSONResponse:
        name = http.path_params["name"]
        if name in self.models:
            return JSONResponse(_describe_model(self.models[name]))
        error = unknown_model(
            "anthropic" if "anthropic-version" in http.headers else "openai_chat", name
        )
        return JSONResponse(error.body, error.status)


def _with_path(body: dict[str, Any], http: HttpRequest) -> dict[str, Any]:
    """Return Gemini's body with the fields of its path: the model, and whether to stream."""
    whole = body.get("generateContentRequest")
    streams = ":streamGenerateContent" in http.url.path
    fields: dict[str, Any] = {"stream": True} if streams else {}
    return {
        **(whole if isinstance(whole, dict) else body),
        "model": http.path_params["name"],
        **fields,
    }


def _describe_gemini_model(model: ServedModel) -> dict[str, Any]:
    limits = (
        {"inputTokenLimit": model.window} if model.shows == "inputTokenLimit" else {}
    )
    methods = ["generateContent", "countTokens"]
    return {
        "name": f"models/{model.name}",
        "displayName": model.name,
        "supportedGenerationMethods": methods,
        **limits,
    }


def _describe_model(model: ServedModel) -> dict[str, Any]:
    """Return a model with the fields of both OpenAI and Anthropic."""
    window_field: dict[str, Any] = {}
    if model.shows == "n_ctx_train":
        window_field = {"meta": {"n_ctx_train": model.window}}
    elif model.shows:
        window_field = {model.shows: model.window}
    base = {"id": model.name, "object": "model", "created": 0, "owned_by": "lab"}
    return {
        **base,
        "type": "model",
        "display_name": model.name,
        "created_at": "2026-01-01T00:00:00Z",
        **window_field,
    }
