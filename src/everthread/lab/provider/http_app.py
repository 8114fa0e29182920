"""The provider's HTTP server: its routes, the list of models, and faults that happen on the connection."""

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
from everthread.gateway.loop_server import LoopServer, listen
from everthread.gateway.request.encoding import decode_body
from everthread.gateway.router import CHATGPT_LOGIN_PATH
from everthread.lab.provider.answers import (
    ProviderAnswer,
    ProviderLogic,
    RequestRecord,
    refuse,
)
from everthread.lab.provider.checks import refuse_unknown_model
from everthread.lab.provider.faults import FaultPlan, make_refusal
from everthread.lab.provider.script import Script, ScriptedAnswers
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
_MAX_BODY_BYTES = 1 << 30
"""Maximum decoded size of a compressed body."""


def track_connections(connections: Connections) -> type[H11Protocol]:
    """Return a server protocol that registers every open connection."""

    class TrackedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connection = cast("asyncio.Transport", transport)
            super().connection_made(connection)
            connections[connection.get_extra_info("peername")] = connection

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self.transport.get_extra_info("peername"), None)
            super().connection_lost(exc)

    return TrackedProtocol


class AnswerApp:
    """ASGI app that sends one answer, with its fault if it has one."""

    def __init__(self, provider: Provider, answer: ProviderAnswer, record: RequestRecord) -> None:
        self._provider = provider
        self._answer = answer
        self._record = record
        self._client_gone: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(scope, receive, send)
        finally:
            if self._client_gone:
                self._client_gone.cancel()
            self._provider.report(self._record)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        fault = self._answer.fault
        fault_kind = fault.kind if fault else ""
        is_stream = answer.events is not None
        if (
            fault
            and fault_kind in ("hang", "delay")
            and not await self._wait(receive, fault.seconds)
        ):
            return
        if fault_kind == "hang" or (fault_kind == "reset" and not is_stream):
            self._reset_connection(scope)
            return
        self._record.status = answer.status
        chunks = answer.events or [answer.body]
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
        }
        if fault and fault_kind in ("reset", "truncated"):
            chunks = chunks[: fault.after] if is_stream else [answer.body[: len(answer.body) // 2]]
        if not is_stream:
            headers = {
                "content-type": "application/json",
                "content-length": str(len(chunks[0])),
            }
        await send(_make_start_message(answer, headers))
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            # Let each event leave before the next one, as when a model writes.
            await asyncio.sleep(0)
            if (
                fault
                and fault_kind == "slow"
                and is_stream
                and not await self._wait(receive, fault.seconds)
            ):
                return
        if fault_kind == "reset":
            # A reset discards data that the client has not read yet.
            await asyncio.sleep(0.02)
            self._reset_connection(scope)
            return
        if fault_kind == "truncated":
            self._record.events.append("cut")
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self, receive: Receive, seconds: float) -> bool:
        """Return whether the client is still connected after this many seconds."""
        if self._client_gone is None:
            self._client_gone = asyncio.create_task(_wait_until_client_gone(receive))
        closing = asyncio.create_task(self._provider.closing.wait())
        await asyncio.wait(
            {self._client_gone, closing},
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        closing.cancel()
        if self._client_gone.done():
            self._record.events.append("gone")
        return not self._client_gone.done()

    def _reset_connection(self, scope: Scope) -> None:
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


def _make_start_message(answer: ProviderAnswer, headers: Mapping[str, str]) -> dict[str, Any]:
    fields = {
        **headers,
        **answer.headers,
        "request-id": "req_lab",
        "x-request-id": "req_lab",
    }
    return {
        "type": "http.response.start",
        "status": answer.status,
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }


async def _wait_until_client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Provider:
    """A simulated provider on a local port. `listen` is called with each record after its answer was sent."""

    def __init__(  # noqa: PLR0913  each is an option of a test
        self,
        models: Models | None = None,
        script: Script | None = None,
        *,
        faults: FaultPlan | None = None,
        clock: Callable[[], float] = time.monotonic,
        port: int = 0,
        listen: Callable[[RequestRecord], None] | None = None,
        upgrade_status: int = 405,
    ) -> None:
        self.log: list[RequestRecord] = []
        self.models = index_models(models)
        self._logic = ProviderLogic(self.models, ScriptedAnswers(script), faults, clock)
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
        """Return the address of the provider, without a path."""
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
            self._make_application(), listener, track_connections(self.connections)
        )
        await self._server.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.closing.set()
        if self._server:
            await self._server.stop()
        self._server = None
        failures = self._failures
        self._failures = []
        if failures and kind is None:
            raise failures[0]

    def _make_application(self) -> Starlette:
        logic = self._logic
        login_path = CHATGPT_LOGIN_PATH + RESPONSES.path.removeprefix("/v1")
        post_routes = [
            *(
                (protocol, protocol.path, logic.answer)
                for protocol in PROTOCOLS
                if protocol is not GEMINI
            ),
            (RESPONSES, login_path, logic.answer),
            (ANTHROPIC, f"{ANTHROPIC.path}/count_tokens", logic.count_tokens),
            (RESPONSES, f"{RESPONSES.path}/compact", logic.compact),
        ]
        for version in ("v1", "v1beta"):
            model_path = f"/{version}/models/{{name}}"
            post_routes += [
                (GEMINI, f"{model_path}:{method}", logic.answer) for method in GEMINI_METHODS
            ]
            post_routes.append((GEMINI, f"{model_path}:countTokens", logic.count_tokens))
        routes = [
            Route(path, self._make_endpoint(protocol, decide), methods=["POST"])
            for protocol, path, decide in post_routes
        ]
        routes += [
            Route(protocol.path, self._refuse_get, methods=["GET"]) for protocol in PROTOCOLS
        ]
        routes += [
            Route(path, self._list_models, methods=["GET"])
            for path in ("/v1/models", f"{CHATGPT_LOGIN_PATH}/models")
        ]
        routes.append(Route("/v1beta/models", self._list_gemini_models, methods=["GET"]))
        routes.append(Route("/v1beta/models/{name:path}", self._show_gemini_model, methods=["GET"]))
        routes.append(Route("/v1/models/{name:path}", self._show_model, methods=["GET"]))
        return Starlette(routes=routes)

    def _make_endpoint(
        self,
        protocol: Protocol,
        decide: Callable[[Protocol, RequestRecord], Awaitable[ProviderAnswer]],
    ) -> Callable[[HttpRequest], Any]:
        """Return the endpoint of a route. If the script fails, answer with a 500 and raise when the provider closes."""

        async def answer(http: HttpRequest) -> ASGIApp:
            try:
                raw = await http.body()
            except ClientDisconnect:  # before the body was complete
                return Response(status_code=400)
            record = self._log_request(protocol, http)
            try:
                record.body = json.loads(
                    decode_body(raw, http.headers.get("content-encoding", ""), _MAX_BODY_BYTES)
                    or b""
                )
            except ValueError:
                record.body = None
            if protocol is GEMINI and isinstance(record.body, dict):
                record.body = _add_path_fields(record.body, http)
            try:
                provider_answer = await decide(protocol, record)
            except Exception as error:  # noqa: BLE001  a script may raise anything; it is raised again, in `__aexit__`
                self._failures.append(error)
                words = f"The script failed: {type(error).__name__}: {error}"
                provider_answer = refuse(record, make_refusal(protocol.api, 500, words))
            return AnswerApp(self, provider_answer, record)

        return answer

    async def _refuse_get(self, http: HttpRequest) -> JSONResponse:
        """Refuse a GET request: a WebSocket upgrade with its own status, any other with 405."""
        record = self._log_request(RESPONSES, http)
        record.status = self._upgrade_status if "upgrade" in http.headers else 405
        self.report(record)
        words = "Method Not Allowed" if record.status == 405 else "WebSockets are not served here"
        return JSONResponse(make_refusal(RESPONSES.api, record.status, words).body, record.status)

    def _log_request(self, protocol: Protocol, http: HttpRequest) -> RequestRecord:
        record = RequestRecord(
            len(self.log) + 1,
            protocol.api,
            http.url.path,
            dict(http.headers),
            self._clock(),
        )
        self.log.append(record)
        return record

    def report(self, record: RequestRecord) -> None:
        """Notify the listener that the answer was sent."""
        if self._listen:
            self._listen(record)

    async def _list_models(self, _http: HttpRequest) -> JSONResponse:
        return JSONResponse(
            {
                "object": "list",
                "data": [_describe_model(model) for model in self.models.values()],
            }
        )

    async def _list_gemini_models(self, _http: HttpRequest) -> JSONResponse:
        return JSONResponse(
            {"models": [_describe_gemini_model(model) for model in self.models.values()]}
        )

    async def _show_gemini_model(self, http: HttpRequest) -> JSONResponse:
        name = http.path_params["name"]
        if name in self.models:
            return JSONResponse(_describe_gemini_model(self.models[name]))
        error = refuse_unknown_model("gemini", name)
        return JSONResponse(error.body, error.status)

    async def _show_model(self, http: HttpRequest) -> JSONResponse:
        name = http.path_params["name"]
        if name in self.models:
            return JSONResponse(_describe_model(self.models[name]))
        error = refuse_unknown_model(
            "anthropic" if "anthropic-version" in http.headers else "openai_chat", name
        )
        return JSONResponse(error.body, error.status)


def _add_path_fields(body: dict[str, Any], http: HttpRequest) -> dict[str, Any]:
    """Return Gemini's body with the fields that are in its path: the model, and whether to stream."""
    wrapped_request = body.get("generateContentRequest")
    is_stream = ":streamGenerateContent" in http.url.path
    fields: dict[str, Any] = {"stream": True} if is_stream else {}
    return {
        **(wrapped_request if isinstance(wrapped_request, dict) else body),
        "model": http.path_params["name"],
        **fields,
    }


def _describe_gemini_model(model: ServedModel) -> dict[str, Any]:
    limits = {"inputTokenLimit": model.window} if model.shows == "inputTokenLimit" else {}
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
