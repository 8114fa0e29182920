"""Databases of either kind, a PostgreSQL of a test's own, to be stopped, and managers on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.manager_setup import ManagerSetup, open_setup_without_provider
from tests.store.conftest import kind, new_url, own_server, postgres, run_folder, url

__all__ = ["kind", "new_url", "own_server", "postgres", "run_folder", "url"]


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[ManagerSetup]:
    async with open_setup_without_provider(tmp_path) as opened:
        yield opened
