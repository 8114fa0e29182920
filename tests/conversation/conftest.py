"""Conversations on a store or over HTTP, and the real small model if its file is available."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conversation.conversation_setup import Conversations, open_conversations
from tests.conversation.http_setup import KEY, HttpConversations, OpenHttp, open_http_conversations
from tests.providers.conftest import local_file

__all__ = ["local_file"]


@pytest.fixture
async def conversations(tmp_path: Path) -> AsyncIterator[Conversations]:
    async with open_conversations(tmp_path) as opened:
        yield opened


@pytest.fixture
async def open_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenHttp]:
    """Open an `HttpConversations` with these models and this script, and close it after the test."""
    monkeypatch.setenv(KEY, "sk-lab")
    async with AsyncExitStack() as stack:

        async def open_one(models: Any, script: Any = None) -> HttpConversations:
            return await stack.enter_async_context(
                open_http_conversations(tmp_path, models, script)
            )

        yield open_one
