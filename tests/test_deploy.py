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
    pattern = r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)(.*(?:\n    --hash=\S+.*)*)"
    versions: dict[str, str] = {}
    for name, version, hashes in re.findall(pattern, text, re.M):
        assert "--hash=sha256:" in hashes, name
        versions[name] = version
    assert versions
    return versions


def package_names(requirements: list[str]) -> set[str]:
    names: set[str] = set()
    for requirement in requirements:
        name = re.split(r"[\[<>=; ]", requirement)[0]
        names.add(name.lower().replace(".", "-"))
    return names


def test_image_installs_only_from_locks() -> None:
    text = (TOP / "deploy" / "Dockerfile").read_text("utf-8")
    one_command_a_line = text.replace("\\\n", " ").replace("&&", "\n")
    commands = [line for line in one_command_a_line.splitlines() if "pip " in line]
    assert len(commands) == 4
    for command in commands:
        reads_lock = re.search(r"-r requirements/\w+\.lock", command)
        is_locked = "--require-hashes" in command and reads_lock
        is_offline = "--no-index" in command and "--no-deps" in command
        assert is_locked or is_offline, command


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_locks_have_the_same_versions(lock: str) -> None:
    tested_versions = pinned("dev.lock")
    for name, version in pinned(lock).items():
        assert tested_versions[name] == version, name


def test_locks_contain_every_requirement() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    dependencies = project["project"]["dependencies"]
    needed_to_run = package_names([*dependencies, *extras["postgres"], *extras["mcp"]])
    needed_to_build = package_names(project["build-system"]["requires"])
    gateway_packages = pinned("gateway.lock").keys()
    assert needed_to_run <= gateway_packages
    assert needed_to_build <= pinned("build.lock").keys()
    assert not needed_to_build & gateway_packages, "the image contains nothing to build with"
