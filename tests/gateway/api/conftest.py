"""A home of its own for each test, and the databases of the store's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.conftest import kind, new_url, postgres, run_folder, url

__all__ = ["kind", "new_url", "postgres", "run_folder", "url"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """The SQLite store that the fixture `api` uses too."""
    return f"sqlite:///{tmp_path / 'store.db'}"
