"""LiteLLM's proxy, started on this machine in front of the same upstream."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers import PeerAbsentError, environment

STARTING = 120
"""Seconds."""


@contextmanager
def litellm_proxy(upstream: str, model: str) -> Iterator[str]:
    """Its address. `PeerAbsentError` where it cannot be installed or does not start."""
    command = environment("litellm_proxy").with_name("litellm")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        given = {"model": f"anthropic/{model}", "api_base": upstream, "api_key": "any"}
        config.write_text(json.dumps({"model_list": [{"model_name": model, "litellm_params": given}]}), "utf-8")
        port = _free_port()
        own = {
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # no keys here and none there
        }
        process = subprocess.Popen(  # noqa: S603 - our own environment
            [str(command), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"],
            cwd=folder,
            env={**os.environ, **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _started(process, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


def _started(process: subprocess.Popen[bytes], url: str) -> str:
    ends = time.monotonic() + STARTING
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise PeerAbsentError(f"LiteLLM's proxy ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health/liveliness", timeout=5):  # noqa: S310 - our own
                return url
        except OSError:
            time.sleep(0.5)
    raise PeerAbsentError(f"LiteLLM's proxy did not start within {STARTING} seconds")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
