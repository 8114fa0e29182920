"""A small model on this machine: llama.cpp inside this process, reached over loopback as any other server.

For trying things out without a key, and for tests that need a real model: a real tokenizer, a real window and real
errors when it is exceeded. The server starts with the first call, on a free port, and takes only our own key.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from everthread.core.types import Api, Reply, Request, StreamDelta
from everthread.errors import ModelError
from everthread.providers.clients import CLIENTS
from everthread.providers.http import HttpModel
from everthread.providers.local_file import SMOLLM2
from everthread.providers.streams import closing

DEFAULT_WINDOW = SMOLLM2.trained_window


class LocalModel:
    """A GGUF file, served in this process. `window` is how much it is given to hold; memory grows with it."""

    def __init__(  # noqa: PLR0913 - a file and how it is served
        self,
        path: Path,
        *,
        name: str | None = None,
        window: int = DEFAULT_WINDOW,
        api: Api = "openai_chat",
        max_tokens: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = path
        self.name = name or path.stem
        self.window = window
        self.api: Api = api
        self.max_tokens = max_tokens
        # Threads wait for each other: more of them than there are idle cores make it slower, not faster.
        self._threads = threads or max((os.cpu_count() or 1) // 2, 1)
        self._server: Any = None
        self._key = ""
        self._client: HttpModel | None = None
        self._starting = asyncio.Lock()

    @property
    def base_url(self) -> str:
        """A stable address: the port is another one each time."""
        return f"local:{self.path.name}"

    async def complete(self, request: Request) -> Reply:
        client = await self.start()
        return await client.complete(request)

    async def stream(self, request: Request) -> AsyncGenerator[StreamDelta | Reply, None]:
        client = await self.start()
        async with closing(client.stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def start(self) -> HttpModel:
        """Load the model and serve it, once; the model behind its address."""
        async with self._starting:
            if self._client is None:
                self._client = self._connect(*await self._served())
            return self._client

    async def serve(self) -> tuple[str, str]:
        """Load the model and serve it, once; where it is, and the key it takes."""
        async with self._starting:
            return await self._served()

    async def _served(self) -> tuple[str, str]:
        if self._server is None:
            self._key = secrets.token_urlsafe(16)
            self._server = await asyncio.to_thread(self._load, self._key)
        return str(self._server.listening_address), self._key

    async def aclose(self) -> None:
        """Stop serving and give the memory back; the next call loads it again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        await asyncio.to_thread(self._stop)

    def _load(self, key: str) -> Any:
        try:
            import xllamacpp  # type: ignore[import-untyped] # noqa: PLC0415 - it has no types; an optional extra
        except ImportError as error:
            raise ModelError(
                f"{self.name} runs in this process, which needs the extra `local`: pip install 'everthread[local]'"
            ) from error
        if not self.path.is_file():
            raise ModelError(f"{self.path}: there is no such model file. Fetch one with: everthread models pull")
        try:
            return xllamacpp.Server(self._params(xllamacpp, key))
        except RuntimeError as error:
            raise ModelError(f"{self.path}: cannot be loaded as a model ({error}). Is it a whole GGUF file?") from error

    def _params(self, library: Any, key: str) -> Any:
        params = library.CommonParams()
        params.model.path = str(self.path)
        params.model_alias = {self.name}
        params.n_ctx = self.window
        params.n_parallel = 1  # one conversation at a time has the whole window
        params.cpuparams.n_threads = self._threads
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [key]
        params.cache_ram_mib = 0
        params.fit_params = False  # the window asked for, or an error; not what seems to fit
        params.warmup = False
        params.ui = False
        params.verbosity = -1
        return params

    def _connect(self, address: str, key: str) -> HttpModel:
        base_url = address if self.api == "anthropic" else f"{address}/v1"
        # This server drops an idle connection now and then just as the next request comes in.
        headers = {"connection": "close"}
        return CLIENTS[self.api](
            self.name, window=self.window, base_url=base_url, api_key=key, headers=headers, max_tokens=self.max_tokens
        )

    def _stop(self) -> None:
        """The server ends with the last reference to it, waiting for its threads."""
        self._server = None
