"""Databases of either kind, a PostgreSQL of a test's own, to be stopped, and managers and gateways on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.gateway.api.api_setup import ApiGateway, open_api
from tests.gateway.dashboard_setup import Browser, ServedDashboard, open_dashboard
from tests.gateway.gateway_setup import Gateways, open_gateways
from tests.gateway.manager_setup import Managers, open_managers
from tests.store.conftest import kind, new_url, own_server, postgres, run_folder, url

__all__ = ["kind", "new_url", "own_server", "postgres", "run_folder", "url"]


@pytest.fixture
async def managers(tmp_path: Path) -> AsyncIterator[Managers]:
    async with open_managers(tmp_path) as opened:
        yield opened


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    async with open_gateways(tmp_path) as opened:
        yield opened


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    """A client of no gateway in particular: for the requests that the official clients would not send."""
    async with httpx2.AsyncClient(timeout=120) as client:
        yield client


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[ServedDashboard]:
    async with open_dashboard(tmp_path) as opened:
        yield opened


@pytest.fixture
def new_browser(dashboard: ServedDashboard) -> Browser:
    """A browser that has not logged in."""
    return dashboard.browser()


@pytest.fixture
async def logged_in_browser(dashboard: ServedDashboard) -> Browser:
    """A browser that is logged in."""
    return await dashboard.browser().log_in()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiGateway]:
    """A gateway with the native API."""
    async with open_api(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened
