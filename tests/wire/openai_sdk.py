"""The official SDK against the recording server, and the payloads it sent when they were captured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.wire.recording import RecordingServer, Scripted, recording_server

GOLDEN = Path(__file__).parent / "golden"


@contextmanager
def sdk(*replies: Scripted) -> Iterator[tuple[OpenAI, RecordingServer]]:
    with (
        recording_server(replies) as server,
        OpenAI(api_key="sk-test", base_url=f"{server.url}/v1", max_retries=0) as client,
    ):
        yield client, server


def golden(name: str, captured: Any) -> Any:
    """The captured payload, which must be the one on file; `EVERTHREAD_GOLDEN=write` puts it there."""
    path = GOLDEN / f"{name}.json"
    if os.environ.get("EVERTHREAD_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps(captured, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )
    assert captured == json.loads(path.read_text(encoding="utf-8"))
    return captured
