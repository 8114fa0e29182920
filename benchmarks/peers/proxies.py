"""Start the proxies of LiteLLM and Headroom on this machine, in front of the same upstream."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import PeerAbsentError, create_environment

MAX_START_SECONDS = 300
"""Seconds."""


@dataclass(frozen=True)
class Server:
    """A server in its own process."""

    url: str
    pid: int = 0


@contextmanager
def start_litellm(upstream: str, model: str) -> Iterator[Server]:
    """Start LiteLLM's proxy. Raise `PeerAbsentError` if it cannot be installed or does not start."""
    command = create_environment("litellm_proxy").with_name("litellm")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        given = {"model": f"anthropic/{model}", "api_base": upstream, "api_key": "any"}
        config.write_text(
            json.dumps({"model_list": [{"model_name": model, "litellm_params": given}]}),
            "utf-8",
        )
        port = _free_port()
        own = {
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # no keys here and none there
        }
        line = [
            str(command),
            "--config",
            str(config),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        with _started(
            [*line, "--telemetry", "False"], port, "/health/liveliness", folder, own
        ) as server:
            yield server


@contextmanager
def start_headroom(upstream: str) -> Iterator[Server]:
    """Start Headroom's proxy with its defaults, but without its rate limit, its telemetry and its downloads."""
    command = create_environment("headroom_proxy").with_name("headroom")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        own = {
            "HOME": folder,
            "ANTHROPIC_TARGET_API_URL": upstream,
            "HEADROOM_TELEMETRY": "off",
            "HEADROOM_OFFLINE": "1",
        }
        line = [
            str(command),
            "proxy",
            "--port",
            str(port),
            "--no-rate-limit",
            "--no-subscription-tracking",
        ]
        with _started(line, port, "/health", folder, own) as server:
            yield server


@contextmanager
def _started(
    command: Sequence[str], port: int, path: str, folder: str, own: Mapping[str, str]
) -> Iterator[Server]:
    process = subprocess.Popen(  # noqa: S603 - our own environment
        command,
        cwd=folder,
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, f"{url}{path}")
        yield Server(url, process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    ends = time.monotonic() + MAX_START_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise PeerAbsentError(f"it ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(address, timeout=5):  # noqa: S310 - our own
                return
        except OSError:
            time.sleep(0.5)
    raise PeerAbsentError(f"it did not start within {MAX_START_SECONDS} seconds")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
