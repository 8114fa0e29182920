"""The container: every package that it installs comes from a lock and is checked against its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
LOCKS = ("dev.lock", "build.lock", "gateway.lock")


def pinned(lock: str) -> dict[str, str]:
    """The versions in a lock file by the packages' names. Each must have a hash."""
    text = (TOP / "requirements" / lock).read_text("utf-8")
    entries = re.findall(
        r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)(.*(?:\n    --hash=\S+.*)*)", text, re.M
    )
    assert entries
    assert all("--hash=sha256:" in rest for _, _, rest in entries)
    return {name: version for name, version, _ in entries}


def package_names(requirements: list[str]) -> set[str]:
    return {
        re.split(r"[\[<>=; ]", requirement)[0].lower().replace(".", "-")
        for requirement in requirements
    }


def test_image_installs_only_from_locks() -> None:
    text = (TOP / "deploy" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    commands = [
        part.strip() for line in text.splitlines() for part in line.split("&&") if "pip " in part
    ]
    assert len(commands) == 4
    for command in commands:
        is_locked = "--require-hashes" in command and re.search(
            r"-r requirements/\w+\.lock", command
        )
        is_offline = "--no-index" in command and "--no-deps" in command
        assert is_locked or is_offline, command


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_locks_have_the_same_versions(lock: str) -> None:
    tested = pinned("dev.lock")
    assert {name: tested[name] for name in pinned(lock)} == pinned(lock)


def test_locks_contain_every_requirement() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    needed = package_names(
        [*project["project"]["dependencies"], *extras["postgres"], *extras["mcp"]]
    )
    assert needed <= pinned("gateway.lock").keys()
    assert package_names(project["build-system"]["requires"]) <= pinned("build.lock").keys()
    assert not package_names(project["build-system"]["requires"]) & pinned("gateway.lock").keys()
