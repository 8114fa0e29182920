"""A store, and conversations on one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everthread import open_store
from everthread.store.store import Store
from tests.conversation.conftest import conversations

__all__ = ["conversations"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_store(tmp_path / "store.db")
    yield opened
    await opened.close()
