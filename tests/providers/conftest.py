"""The file of the real small model, fetched once for all runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everthread.errors import ModelError
from everthread.providers.local import SMOLLM2, download_model, is_intact


@pytest.fixture(scope="session")
def local_file() -> Path:
    """`EVERTHREAD_TEST_MODEL`, or the pinned file in `~/.cache/everthread-tests`; without either, skip."""
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    chosen = os.environ.get("EVERTHREAD_TEST_MODEL")
    if chosen:
        return Path(chosen)
    home = Path.home() / ".cache" / "everthread-tests"
    path = SMOLLM2.path(home)
    if is_intact(path):
        return path
    try:
        return download_model(home, report=lambda _words: None)
    except ModelError as error:
        pytest.skip(f"the local model's file cannot be fetched: {error}")
