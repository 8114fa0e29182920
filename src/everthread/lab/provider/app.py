"""The provider's server: routes, models, one answer a request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from everthread.core.types import Api
from everthread.errors import InputError
from everthread.gateway.server import LoopServer, listen
from everthread.lab.provider.answers import ProviderAnswer, ProviderLogic, refused
from everthread.lab.provider.checks import unknown_model
from everthread.lab.provider.faults import FaultPlan, refusal
from everthread.lab.provider.log import Record
from everthread.lab.provider.models import ANTHROPIC, PROTOCOLS, RESPONSES, Models, Protocol, ServedModel, served
from everthread.lab.provider.script import Answers, Script
from everthread.lab.provider.transport import AnswerApp, Connections, remembering


class Provider:
    """See the module's text. `listen` is called with every record once its answer was sent."""

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
        self.models = served(models)
        self._answering = ProviderLogic(self.models, Answers(script), faults, clock)
        self._clock = clock
        self._port = port
        self._listen = listen
        self._upgrade_status = upgrade_status
        """With which a WebSocket is refused."""
        self._connections: Connections = {}
        self._closing = asyncio.Event()
        self._failures: list[Exception] = []
        self._server: LoopServer | None = None

    @property
    def url(self) -> str:
        """The root of its addresses."""
        if self._server is None:
            raise InputError("the provider is not running; open it with `async with`")
        return f"http://127.0.0.1:{self._port}"

    def base_url(self, api: Api) -> str:
        """The address as the official client of this protocol wants it."""
        return self.url if api == "anthropic" else f"{self.url}/v1"

    async def __aenter__(self) -> Self:
        listener = listen(self._port)
        self._port = listener.getsockname()[1]
        self._closing = asyncio.Event()
        self._server = LoopServer(self._application(), listener, remembering(self._connections))
        await self._server.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._closing.set()
        if self._server:
            await self._server.stop()
        self._server = None
        failures, self._failures = self._failures, []
        if failures and kind is None:
            raise failures[0]

    def _application(self) -> Starlette:
        routes = [Route(protocol.path, self._endpoint(protocol), methods=["POST"]) for protocol in PROTOCOLS]
        routes.append(Route(f"{ANTHROPIC.path}/count_tokens", self._count, methods=["POST"]))
        routes.append(Route(f"{RESPONSES.path}/compact", self._compact, methods=["POST"]))
        routes += [Route(protocol.path, self._upgrade, methods=["GET"]) for protocol in PROTOCOLS]
        routes.append(Route("/v1/models", self._models, methods=["GET"]))
        routes.append(Route("/v1/models/{name:path}", self._model, methods=["GET"]))
        return Starlette(routes=routes)

    def _endpoint(self, protocol: Protocol) -> Callable[[HttpRequest], Any]:
        async def answer(http: HttpRequest) -> ASGIApp:
            try:
                record = await self._record(protocol, http)
            except ClientDisconnect:  # before it had said what it wants
                return Response(status_code=400)
            outgoing = await self._answer(protocol, record)
            return AnswerApp(outgoing, record, self._connections, self._closing, self._sent)

        return answer

    async def _answer(self, protocol: Protocol, record: Record, *, counting: bool = False) -> ProviderAnswer:
        """The answer. A script that fails is the client's 500 now, and raises when the provider is closed."""
        try:
            if counting:
                return self._answering.count(protocol, record)
            return await self._answering.answer(protocol, record)
        except Exception as error:  # noqa: BLE001  a script may raise anything; it is raised again, in `__aexit__`
            self._failures.append(error)
            words = f"The script failed: {type(error).__name__}: {error}"
            return refused(record, refusal(protocol.api, 500, words))

    async def _count(self, http: HttpRequest) -> ASGIApp:
        record = await self._record(ANTHROPIC, http)
        outgoing = await self._answer(ANTHROPIC, record, counting=True)
        return AnswerApp(outgoing, record, self._connections, self._closing, self._sent)

    async def _compact(self, http: HttpRequest) -> ASGIApp:
        record = await self._record(RESPONSES, http)
        outgoing = self._answering.compact(RESPONSES, record)
        return AnswerApp(outgoing, record, self._connections, self._closing, self._sent)

    async def _upgrade(self, http: HttpRequest) -> JSONResponse:
        """A WebSocket, which nobody serves here."""
        record = Record(len(self.log) + 1, RESPONSES.api, http.url.path, dict(http.headers), self._clock())
        record.status = self._upgrade_status if "upgrade" in http.headers else 405
        self.log.append(record)
        self._sent(record)
        words = "Method Not Allowed" if record.status == 405 else "WebSockets are not served here"
        error = {"message": words, "type": "invalid_request_error", "param": None, "code": None}
        return JSONResponse({"error": error}, record.status)

    async def _record(self, protocol: Protocol, http: HttpRequest) -> Record:
        raw = await http.body()
        record = Record(len(self.log) + 1, protocol.api, http.url.path, dict(http.headers), self._clock())
        try:
            record.body = json.loads(raw)
        except ValueError:
            record.body = None
        self.log.append(record)
        return record

    def _sent(self, record: Record) -> None:
        if self._listen:
            self._listen(record)

    async def _models(self, _http: HttpRequest) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [_listed(model) for model in self.models.values()]})

    async def _model(self, http: HttpRequest) -> JSONResponse:
        name = http.path_params["name"]
        if name in self.models:
            return JSONResponse(_listed(self.models[name]))
        error = unknown_model("anthropic" if "anthropic-version" in http.headers else "openai_chat", name)
        return JSONResponse(error.body, error.status)


def _listed(model: ServedModel) -> dict[str, Any]:
    """A model as both kinds of client read it: OpenAI's fields and Anthropic's."""
    shown: dict[str, Any] = {}
    if model.shows == "n_ctx_train":
        shown = {"meta": {"n_ctx_train": model.window}}
    elif model.shows:
        shown = {model.shows: model.window}
    base = {"id": model.name, "object": "model", "created": 0, "owned_by": "lab"}
    return {**base, "type": "model", "display_name": model.name, "created_at": "2026-01-01T00:00:00Z", **shown}
