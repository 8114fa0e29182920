"""The official SDKs against the recording server, and the payloads that they sent when they were captured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

from tests.wire.recording import RecordingServer, Scripted, recording_server

GOLDEN = Path(__file__).parent / "golden"


@contextmanager
def openai_client(*replies: Scripted) -> Iterator[tuple[OpenAI, RecordingServer]]:
    with (
        recording_server(replies) as server,
        OpenAI(api_key="sk-test", base_url=f"{server.url}/v1", max_retries=0) as client,
    ):
        yield client, server


@contextmanager
def anthropic_client(*replies: Scripted) -> Iterator[tuple[Anthropic, RecordingServer]]:
    with (
        recording_server(replies) as server,
        Anthropic(api_key="sk-ant-test", base_url=server.url, max_retries=0) as client,
    ):
        yield client, server


def load_golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def assert_golden(name: str, captured: Any) -> Any:
    """Compare a captured payload with the one on file, and return it. `EVERTHREAD_GOLDEN=write` replaces the file."""
    if os.environ.get("EVERTHREAD_GOLDEN") == "write":
        (GOLDEN / f"{name}.json").write_text(
            json.dumps(captured, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )
    assert captured == load_golden(name)
    return captured
