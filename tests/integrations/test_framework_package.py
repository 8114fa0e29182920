"""Integrations whose framework is missing, too old, or lacks the hook they use."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from everthread.integrations.framework_package import guard_framework_imports

MODULES = {
    "langchain": "langchain",
    "openai_agents": "openai-agents",
    "pydantic_ai": "pydantic-ai-slim",
    "litellm": "litellm",
    "google_adk": "google-adk",
}


@pytest.mark.parametrize(("module", "package"), MODULES.items())
def test_names_a_missing_package(module: str, package: str) -> None:
    name = f"everthread.integrations.{module}"
    with pytest.raises(
        ImportError, match=rf"needs the package {package}, .*pip install 'everthread\["
    ):
        importlib.import_module(name)
    assert name not in sys.modules


def test_a_version_without_the_hook_is_an_import_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "langchain-0.3.27.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: langchain\nVersion: 0.3.27\n", "utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ImportError, match=r"langchain 0\.3\.27 is installed; .* needs 1\.1 or newer"
    ):
        importlib.import_module("everthread.integrations.langchain")
    with guard_framework_imports("langchain", "0.3", "langchain", "nothing"):
        pass
    with (
        pytest.raises(ImportError, match=r"langchain 0\.3\.27 has no a hook \(no name\)"),
        guard_framework_imports("langchain", "0.3", "langchain", "a hook"),
    ):
        raise ImportError("no name")
