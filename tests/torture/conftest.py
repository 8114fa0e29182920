"""Long runs: `make torture`, `make torture PART=store`. A plain `pytest` skips them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.conftest import local_file
from tests.store.conftest import (
    clock,
    database,
    kind,
    new_url,
    other_store,
    own_server,
    postgres,
    run_folder,
    store,
    url,
)

__all__ = [
    "clock",
    "database",
    "kind",
    "local_file",
    "new_url",
    "other_store",
    "own_server",
    "postgres",
    "run_folder",
    "store",
    "url",
]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore this folder unless it is named on the command line."""
    named = any("torture" in str(argument) for argument in config.args)
    return None if named else True
