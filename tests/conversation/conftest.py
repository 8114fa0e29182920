"""Conversations on a store, and the real small model if its file is available."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conversation.conversation_setup import ConversationSetup, open_setup
from tests.providers.conftest import local_file

__all__ = ["local_file"]


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[ConversationSetup]:
    async with open_setup(tmp_path) as opened:
        yield opened
