"""Packages that stand in for frameworks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def install_fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a package importable, and return the integration that uses it."""

    def make(package: str, version: str, files: dict[str, str], module: str) -> ModuleType:
        facts = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", "utf-8"
        )
        for name, code in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        return importlib.import_module(f"everthread.integrations.{module}")

    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("litellm", "agents") or name.startswith(
            "everthread.integrations."
        ):
            del sys.modules[name]
