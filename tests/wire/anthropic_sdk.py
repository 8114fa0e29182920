"""The official SDK against the recording server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anthropic import Anthropic

from tests.wire.recording import RecordingServer, Scripted, recording_server


@contextmanager
def sdk(*replies: Scripted) -> Iterator[tuple[Anthropic, RecordingServer]]:
    with (
        recording_server(replies) as server,
        Anthropic(api_key="sk-ant-test", base_url=server.url, max_retries=0) as client,
    ):
        yield client, server
