"""Every example in the documentation runs, every link leads somewhere."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from everthread.compose import open_store

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    return re.findall(r"^    (everthread [^#\n]*?)\s*(?:#.*)?$", page.read_text("utf-8"), re.MULTILINE)


EXAMPLES = [(page, code) for page in PAGES for code in blocks(page)]
COMMANDS = sorted({(page, command) for page in PAGES for command in commands(page)})


def test_there_are_examples() -> None:
    assert EXAMPLES
    assert COMMANDS


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=lambda value: value.name if isinstance(value, Path) else "")
def test_examples_run(page: Path, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page.name}:\n{code}\n{done.stderr}"


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: str(value) if isinstance(value, str) else "")
def test_commands_run(page: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path))
    asyncio.run(open_store(tmp_path / "everthread.db").close())  # a reader of the pages has a store by then
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page.name}: {command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} -> {target}"
