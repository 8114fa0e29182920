"""Mount the MCP server in the gateway, and load its SDK when it is first used."""

from __future__ import annotations

import asyncio
import importlib

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from everthread.store.store import Store


class McpMount:
    """The app at `/mcp`. The first call loads the SDK in a thread, which takes most of a second.

    Without the SDK, the answer says which package to install. One task opens and closes the application, as the SDK's
    task group requires.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._app: asyncio.Future[ASGIApp] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._app))
        app = await asyncio.shield(self._app)
        await app(scope, receive, send)

    async def _run(self, ready: asyncio.Future[ASGIApp]) -> None:
        try:
            mcp = await asyncio.to_thread(importlib.import_module, "everthread.gateway.mcp_server")
        except ImportError as error:
            message = f"/mcp needs a package that is not installed ({error}): pip install 'everthread[mcp]'"
            ready.set_result(
                JSONResponse(
                    {"error": {"code": "not_installed", "message": message}},
                    status_code=501,
                )
            )
            return
        try:
            server = mcp.make_server(mcp.LookupTools(self._store), fixed_reach=None)
            async with mcp.application(server, hosts=None) as app:
                ready.set_result(app)
                await asyncio.Event().wait()  # until it is closed
        except Exception as error:
            self._app = None  # the next call tries again
            if ready.done():
                raise
            ready.set_exception(error)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
