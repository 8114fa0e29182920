"""`everthread plugins` with engines in real folders and in an installed package."""

from __future__ import annotations

import json
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import environment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "engine_plugin"
Answer = subprocess.CompletedProcess[str]
Everthread = Callable[..., Answer]

CONVERSE = """
import asyncio, json, sys
from pathlib import Path
from everthread.config import home_directory, load_config
from everthread.core.tokens.budget import Budget
from everthread.core.tokens import TokenCounter
from everthread.compaction.engine import Services
from everthread.compaction.registry import create_engine

class Nobody:
    name = "nobody"

config = load_config()
name = config.context.engine
services = Services(Nobody(), TokenCounter(), Budget.for_window(8000), lambda: 0.0)
engine = create_engine(name, services, config.engines.get(name), home=home_directory())
engine.on_session_start("s1")
messages = json.loads(Path(sys.argv[1]).read_text("utf-8"))["messages"]
assert engine.should_compress(services.counter.request(messages))
made = asyncio.run(engine.compress(messages))
engine.on_compacted(made)
engine.on_session_start("s2", reason="compression", previous="s1")
print(json.dumps([engine.name, len(messages), len(made.messages), len(made.covered), engine.dump_state()]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def run(home: Path, project: Path) -> Everthread:
    def run(*command: str, path: Path | None = None) -> Answer:
        search_path = {} if path is None else {"PYTHONPATH": str(path)}
        return subprocess.run(
            [sys.executable, *command],
            cwd=project,
            env=environment(home) | search_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.fixture
def everthread(run: Everthread) -> Everthread:
    def everthread(command_line: str, path: Path | None = None) -> Answer:
        return run("-m", "everthread", *shlex.split(command_line), path=path)

    return everthread


def write_plugin(folder: Path, name: str = "recent_turns", code: str | None = None) -> Path:
    """The example as a directory plugin, or another one with this code."""
    plugin = folder / "plugins" / "context_engine" / name
    if code is None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(EXAMPLE / "recent_turns", plugin, ignore=ignored)
    else:
        plugin.mkdir(parents=True)
        (plugin / "__init__.py").write_text(code, "utf-8")
    return plugin


def assert_configured_engine(run: Everthread, path: Path | None = None) -> None:
    """Compact the shipped session with the configured engine, in a new process."""
    result = run("-c", CONVERSE, str(ROOT / "examples" / "long_session.json"), path=path)
    assert result.returncode == 0, result.stderr
    name, before, after, covered, state = json.loads(result.stdout)
    assert name == "recent_turns"
    assert after == before - covered + 1
    assert state["left_out"] == covered > 0


class TestTheExample:
    def test_loads_an_engine_from_a_directory_in_the_home(
        self, everthread: Everthread, run: Everthread, home: Path
    ) -> None:
        plugin = write_plugin(home)
        report = json.loads(everthread("plugins --json").stdout)
        assert report["active"] == "compressor"
        assert [info["name"] for info in report["engines"] if info["active"]] == ["compressor"]
        result = everthread("plugins use recent_turns")
        assert result.returncode == 0, result.stderr
        assert str(plugin) in result.stdout
        assert (home / "config.yaml").read_text("utf-8") == "context:\n  engine: recent_turns\n"
        report = json.loads(everthread("plugins --json").stdout)
        (active,) = [info for info in report["engines"] if info["active"]]
        assert (active["name"], active["source"], active["problem"]) == (
            "recent_turns",
            "home",
            "",
        )
        assert active["description"].startswith("Keeps the first request")
        assert report["problem"] == ""
        assert_configured_engine(run)

    def test_loads_an_engine_of_an_installed_package(
        self, everthread: Everthread, run: Everthread, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        site = tmp_path / "site"
        shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
        offline = (
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--disable-pip-version-check",
            "--quiet",
        )
        result = run("-m", "pip", "install", *offline, "--target", str(site), str(source))
        assert result.returncode == 0, result.stderr
        report = json.loads(everthread("plugins --json", path=site).stdout)["engines"]
        (found,) = [info for info in report if info["name"] == "recent_turns"]
        assert (found["source"], found["active"]) == ("package", False)
        assert found["location"] == "recent_turns:create of everthread-recent-turns 0.1.0"
        assert everthread("plugins use recent_turns").returncode == 2, "it is not on this path"
        result = everthread("plugins use recent_turns", path=site)
        assert result.returncode == 0, result.stderr
        assert_configured_engine(run, path=site)


class TestUse:
    def test_nothing_changes_for_an_engine_that_cannot_be_loaded(
        self, everthread: Everthread, home: Path
    ) -> None:
        write_plugin(home, "broken", "import not_there_at_all")
        write_plugin(home, "wrong", "def create(services, options): return 3")
        config = home / "config.yaml"
        config.write_text("compression: {threshold: 0.6}\n", "utf-8")
        for name, words, code in [
            ("broken", "No module named 'not_there_at_all'", 1),
            ("wrong", "gave a int, not a ContextEngine", 1),
            ("absent", "there is no context engine 'absent'; looked in", 2),
            ("../home", "is not the name of a context engine", 2),
        ]:
            result = everthread(f"plugins use {name}")
            assert result.returncode == code
            assert words in result.stderr
            assert "Traceback" not in result.stderr
            assert config.read_text("utf-8") == "compression: {threshold: 0.6}\n"

    def test_the_options_are_tried_too(self, everthread: Everthread, home: Path) -> None:
        write_plugin(home)
        text = "engines: {recent_turns: {keep_turns: many}}\n"
        (home / "config.yaml").write_text(text, "utf-8")
        result = everthread("plugins use recent_turns")
        assert result.returncode == 2
        assert "keep_turns" in result.stderr
        assert (home / "config.yaml").read_text("utf-8") == text

    def test_switching_engines_there_and_back(self, everthread: Everthread, home: Path) -> None:
        write_plugin(home)
        config = home / "config.yaml"
        text = "# mine\ncontext:\n  engine: compressor   # the default\n"
        config.write_text(text, "utf-8")
        config.chmod(0o640)
        assert "is used from now on" in everthread("plugins use recent_turns").stdout
        assert config.read_text("utf-8") == text.replace("compressor  ", "recent_turns")
        assert stat.S_IMODE(config.stat().st_mode) == 0o640
        assert "in use already" in everthread("plugins use recent_turns").stdout
        assert everthread("plugins use compressor").returncode == 0
        assert config.read_text("utf-8") == text
        assert sorted(path.name for path in home.iterdir()) == [
            "config.yaml",
            "plugins",
        ]

    def test_a_bad_configuration_is_not_changed(self, everthread: Everthread, home: Path) -> None:
        write_plugin(home)
        (home / "config.yaml").write_text("compresion: {}\n", "utf-8")
        for arguments in ("plugins", "plugins use recent_turns"):
            result = everthread(arguments)
            assert result.returncode == 2
            assert "did you mean compression?" in result.stderr
        assert (home / "config.yaml").read_text("utf-8") == "compresion: {}\n"


class TestListing:
    def test_engines_are_listed_with_the_active_one(
        self, everthread: Everthread, home: Path
    ) -> None:
        write_plugin(home)
        write_plugin(home, "compressor", "raise SystemExit('never run')")
        output = everthread("plugins").stdout
        assert "never used: the name is reserved" in output
        assert "* compressor" in output
        assert "Keeps the first request" in output
        assert output.endswith("Active: compressor\n")

    def test_names_from_outside_do_not_reach_the_terminal(
        self, everthread: Everthread, home: Path
    ) -> None:
        write_plugin(home, "\x1b[31mred\n* forged", "")
        output = everthread("plugins").stdout
        assert "\x1b" not in output
        assert not any(line.startswith("* forged") for line in output.splitlines())
