"""The registry: one engine for each name, from a known place; unusable engines say why."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from everthread.compaction import registry
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.registry import (
    create_engine,
    find_engine,
    list_engines,
    register_context_engine,
)
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.errors import ConfigError, EngineError
from examples.engine_plugin.recent_turns import NOTE, RecentTurns, create
from examples.long_session import conversation

ENGINE = """
from everthread.compaction.engine import ContextEngine

class Engine(ContextEngine):
    name = "x"
    said = "{said}"
    def __init__(self, options): self.options = options
    def update_from_response(self, usage): pass
    def should_compress(self, prompt_tokens=None): return False
    async def compress(self, messages, **asked): raise NotImplementedError

def create(services, options): return Engine(options)
"""


class SilentSummarizer:
    name = "silent"

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        raise NotImplementedError


def services(window: int = 8_000) -> Services:
    return Services(SilentSummarizer(), TokenCounter(), Budget.for_window(window), lambda: 0.0)


def write_plugin(
    home: Path, name: str, code: str = ENGINE.format(said="plugin"), **files: str
) -> Path:
    """A directory plugin; `files` are written beside its code, `__` standing for a dot."""
    place = home / registry.PLUGIN_FOLDER / name
    place.mkdir(parents=True)
    for file, text in {
        "__init__.py": code,
        **{key.replace("__", "."): text for key, text in files.items()},
    }.items():
        (place / file).write_text(textwrap.dedent(text), "utf-8")
    return place


def write_package(site: Path, distribution: str, **engines: str) -> None:
    """Write the metadata of an installed package, with entry points."""
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8"
    )
    lines = "\n".join(f"{name} = {value}" for name, value in engines.items())
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{lines}\n", "utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory packages are installed in."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for name in [name for name in sys.modules if name.startswith("installed_")]:
        del sys.modules[name]


def engine_words(engine: ContextEngine) -> str:
    return str(vars(type(engine))["said"])


class TestPlaces:
    def test_the_home_comes_before_packages_and_projects_are_ignored(
        self, home: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_plugin(
            tmp_path / "project" / ".everthread",
            "mine",
            ENGINE.format(said="project"),
        )
        monkeypatch.chdir(tmp_path / "project")
        with pytest.raises(EngineError, match="there is no context engine 'mine'"):
            find_engine("mine", home=home)
        write_package(site, "other", mine="installed_mine:create")
        (site / "installed_mine.py").write_text(ENGINE.format(said="package"), "utf-8")
        assert find_engine("mine", home=home).origin == "package"
        assert engine_words(create_engine("mine", services(), home=home)) == "package"

        write_plugin(home, "mine", ENGINE.format(said="home"))
        found = find_engine("mine", home=home)
        assert found.origin == "home"
        assert found.location == str(home / registry.PLUGIN_FOLDER / "mine")
        assert engine_words(create_engine("mine", services(), {"a": 1}, home=home)) == "home"
        listed = {info.origin: info for info in list_engines(home=home, active="mine")}
        assert [info.is_active for info in listed.values()].count(True) == 1
        assert listed["home"].is_active
        assert listed["package"].problem == f"hidden by {found.location}"

    def test_options_reach_the_engine(self, home: Path) -> None:
        write_plugin(home, "mine")
        given = {"depth": 3}
        engine = create_engine("mine", services(), given, home=home)
        assert vars(engine)["options"] == given
        assert vars(engine)["options"] is not given

    def test_an_engine_registered_in_the_process_is_found(self, home: Path) -> None:
        register_context_engine("test.registered", create)
        register_context_engine("test.registered", create)
        source = find_engine("test.registered", home=home)
        assert source.origin == "registered"
        assert source.location == f"{create.__module__}:create"
        assert isinstance(create_engine("test.registered", services(), home=home), RecentTurns)
        with pytest.raises(EngineError, match="registered already"):
            register_context_engine("test.registered", lambda services, _: create(services, {}))

    @pytest.mark.parametrize(
        "name",
        [
            "compressor",
            "lossless",
            "lcm",
            "",
            "../up",
            "a/b",
            ".hidden",
            "a b",
            "x" * 101,
        ],
    )
    def test_reserved_names_cannot_be_registered(self, name: str) -> None:
        with pytest.raises(EngineError, match="cannot be registered"):
            register_context_engine(name, create)

    def test_only_a_function_is_registered(self) -> None:
        not_callable: Any = "create"
        with pytest.raises(EngineError, match="not a function"):
            register_context_engine("test.text", not_callable)


class TestBuiltIns:
    def test_the_compressor_is_loaded_like_any_entry_point(self, home: Path) -> None:
        source = find_engine("compressor", home=home)
        assert source.origin == "built-in"
        assert source.location == "everthread.compaction.compressor:create"
        engine = create_engine("compressor", services(), home=home)
        assert engine.name == "compressor"
        assert engine.get_tool_schemas() == []

    def test_a_built_in_name_cannot_be_taken(self, home: Path, site: Path) -> None:
        for name in ("compressor", "lossless", "lcm"):
            write_plugin(home, name, "raise SystemExit('never run')")
        write_package(site, "impostor", compressor="installed_impostor:create")
        assert find_engine("compressor", home=home).origin == "built-in"
        for info in list_engines(home=home):
            if info.name in registry.RESERVED_NAMES and info.origin != "built-in":
                assert "reserved" in info.problem
                assert not info.is_active
        assert [info.origin for info in list_engines(home=home) if info.is_active] == ["built-in"]


class TestFailures:
    def test_an_unknown_name_lists_every_place(self, home: Path) -> None:
        with pytest.raises(EngineError) as caught:
            find_engine("absent", home=home)
        lines = str(caught.value).split("\n  ")
        places = [
            home,
            "register_",
            "entry points",
            "built-ins",
        ]
        for line, place in zip(lines[1:], places, strict=True):
            assert line.startswith(str(place))

    @pytest.mark.parametrize("name", ["../../etc", "a/b", "", ".", "..", "a\0b", "~"])
    def test_a_path_is_not_a_name(self, home: Path, name: str) -> None:
        with pytest.raises(EngineError, match="is not the name"):
            find_engine(name, home=home)

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (
                "import not_there_at_all",
                "ModuleNotFoundError: No module named 'not_there_at_all'",
            ),
            ("def create(:", "SyntaxError"),
            ("x = 1\n1 / 0", "ZeroDivisionError"),
            ("raise SystemExit('needs a key')", "SystemExit: needs a key"),
            ("", "has no create(services, options)"),
            ("create = 3", "its factory is a int, not a function"),
            (
                "def create(services, options): return object()",
                "its factory gave a object, not a ContextEngine",
            ),
            ("def create(): pass", "TypeError: create() takes 0 positional arguments"),
            ("def create(services, options): return options['k']", "KeyError: 'k'"),
            (
                ENGINE.replace("async def compress", "async def squeeze"),
                "abstract method",
            ),
            (
                ENGINE.replace("def should_compress", "async def should_compress"),
                "should_compress must not be async",
            ),
            ("import everthread.errors as e\nraise e.EngineError('mine')", "mine"),
        ],
    )
    def test_an_unusable_engine_says_why_and_is_not_replaced(
        self, home: Path, site: Path, code: str, words: str
    ) -> None:
        place = write_plugin(home, "broken", code)
        write_package(site, "sound", broken="installed_sound:create")
        (site / "installed_sound.py").write_text(ENGINE.format(said="package"), "utf-8")
        for _ in range(2):
            with pytest.raises(EngineError) as caught:
                create_engine("broken", services(), home=home)
            assert words in str(caught.value)
            assert str(place) in str(caught.value)

    def test_the_error_names_the_faulty_line(self, home: Path) -> None:
        place = write_plugin(home, "broken", "import os\n\n1 / 0\n")
        with pytest.raises(EngineError) as caught:
            create_engine("broken", services(), home=home)
        assert str(caught.value).endswith(f"({place / '__init__.py'}:3)")

    def test_a_plugin_can_be_loaded_after_a_repair(self, home: Path) -> None:
        place = write_plugin(
            home,
            "mended",
            "from . import helper\n1 / 0",
            helper__py="",
        )
        with pytest.raises(EngineError, match="ZeroDivisionError"):
            create_engine("mended", services(), home=home)
        (place / "engine.py").write_text(ENGINE.format(said="mended"), "utf-8")
        (place / "__init__.py").unlink()
        assert engine_words(create_engine("mended", services(), home=home)) == "mended"

    def test_a_refused_option_keeps_its_own_error(self, home: Path) -> None:
        register_context_engine("test.options", create)
        with pytest.raises(ConfigError, match="only option is keep_turns"):
            create_engine("test.options", services(), {"keep_turns": 0}, home=home)

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            ({"engine__toml": "name = 'other'"}, "must be the same"),
            ({"engine__toml": "description = 3"}, "not a text"),
            ({"engine__toml": "= 3"}, "cannot be read"),
        ],
    )
    def test_a_wrong_description_is_reported_in_the_list_and_when_used(
        self, home: Path, files: dict[str, str], words: str
    ) -> None:
        write_plugin(home, "mine", **files)
        (info,) = [info for info in list_engines(home=home, active="mine") if info.name == "mine"]
        assert words in info.problem
        assert info.is_active, (
            "the configuration names it, and that it cannot be used is its problem"
        )
        with pytest.raises(EngineError, match=words):
            find_engine("mine", home=home)

    def test_a_directory_without_code_is_an_error(self, home: Path) -> None:
        (home / registry.PLUGIN_FOLDER / "hollow").mkdir(parents=True)
        with pytest.raises(EngineError, match=r"holds neither __init__\.py nor engine\.py"):
            find_engine("hollow", home=home)

    def test_two_packages_offering_one_name_are_unusable(self, home: Path, site: Path) -> None:
        write_package(site, "first", same="installed_first:create")
        write_package(site, "second", same="installed_second:create")
        with pytest.raises(EngineError) as caught:
            find_engine("same", home=home)
        assert "installed_first:create of first 1.0" in str(caught.value)
        assert "installed_second:create of second 1.0" in str(caught.value)
        listed = [info for info in list_engines(home=home) if info.name == "same"]
        assert ["several packages" in info.problem for info in listed] == [True, True]

    def test_an_entry_point_without_a_module_is_an_error(self, home: Path, site: Path) -> None:
        write_package(site, "hollow", hollow="installed_nowhere:create")
        with pytest.raises(EngineError, match="No module named 'installed_nowhere'"):
            create_engine("hollow", services(), home=home)

    def test_an_unreadable_folder_is_an_error(self, home: Path) -> None:
        folder = home / registry.PLUGIN_FOLDER
        folder.parent.mkdir(parents=True)
        folder.symlink_to(folder)
        with pytest.raises(EngineError, match="cannot be read"):
            list_engines(home=home)

    def test_a_file_instead_of_the_folder_is_ignored(self, home: Path) -> None:
        home.mkdir()
        (home / "plugins").write_text("", "utf-8")
        assert [info.name for info in list_engines(home=home) if info.origin == "home"] == []


class TestListing:
    def test_listing_runs_no_code(self, home: Path, site: Path) -> None:
        write_plugin(
            home,
            "one",
            "raise SystemExit",
            engine__toml="description = 'The first.'",
        )
        write_package(site, "third", three="installed_three:create")
        write_plugin(home, "__pycache__")
        write_plugin(home, ".git")
        write_plugin(home, "bad name")
        (home / registry.PLUGIN_FOLDER / "README").write_text("no plugin", "utf-8")
        listed = [info for info in list_engines(home=home) if info.origin != "registered"]
        assert [(info.name, info.origin, info.is_active) for info in listed] == [
            ("bad name", "home", False),
            ("one", "home", False),
            ("three", "package", False),
            *((name, "built-in", name == "compressor") for name in registry.BUILT_IN_ENGINES),
        ]
        assert "a name has letters" in listed[0].problem
        assert listed[1].description == "The first."
        assert listed[2].location == "installed_three:create of third 1.0"
        assert "installed_three" not in sys.modules


class TestDirectoryPlugins:
    @pytest.mark.parametrize("file", ["__init__.py", "engine.py"])
    def test_plugins_import_their_own_files(self, home: Path, file: str) -> None:
        code = ENGINE.replace(
            '"{said}"', "__import__(__name__ + '.helper', fromlist=['word']).word"
        )
        code = f"from .helper import word\nfrom . import helper\nassert helper.word is word\n{code}"
        for name in ("left", "right"):
            place = write_plugin(home, name, code, helper__py=f"word = '{name}'")
            (place / "__init__.py").rename(place / file)
        engines = [create_engine(name, services(), home=home) for name in ("left", "right", "left")]
        assert [engine_words(engine) for engine in engines] == ["left", "right", "left"]
        assert type(engines[0]) is type(engines[2]), "a plugin's code runs once in a process"
        assert "helper" not in sys.modules

    def test_threads_load_a_plugin_once(self, home: Path) -> None:
        code = "import time\ntime.sleep(0.05)\n" + ENGINE
        write_plugin(home, "slow", code)
        made: list[ContextEngine] = []
        threads = [
            threading.Thread(
                target=lambda: made.append(create_engine("slow", services(), home=home))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({type(engine) for engine in made}) == 1
        assert len(made) == 4


class TestExample:
    """The engine shown in the documentation works."""

    async def test_the_count_continues_through_compactions_and_processes(self) -> None:
        messages: list[Message] = conversation()["messages"]
        half = len(messages) // 2
        engine = create(services(), {"keep_turns": 2})
        first = await engine.compress(messages[:half])
        engine.on_compacted(first)
        state: Mapping[str, Any] = json.loads(json.dumps(engine.dump_state()))
        other = create(services(), {"keep_turns": 2})
        other.load_state(state)
        assert not (await other.compress(first.messages)).changed
        second = await other.compress([*first.messages, *messages[half:]])
        other.on_compacted(second)
        kept = sum(index is not None for index in second.kept)
        assert other.dump_state()["left_out"] == len(messages) - kept
        notes = [m for m in second.messages if "EVERTHREAD SUMMARY" in str(m.get("content"))]
        assert [m["content"] for m in notes] == [NOTE.format(len(messages) - kept)]

    @pytest.mark.parametrize("options", [{"keep_turns": 0}, {"keep_turns": "4"}, {"keep": 4}])
    def test_options_are_checked(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="only option is keep_turns"):
            create(services(), options)
