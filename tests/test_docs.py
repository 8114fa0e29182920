"""The pages say what is true: examples run, settings and commands exist, every link and anchor leads somewhere.

Run are Python fences and indented `everthread` lines. Read by what reads them in earnest are YAML, JSON, TOML and rules
of approval. Shell fences are not run; each of their commands is named in `NOT_RUN` with the reason, and what they give
to `everthread` must be options that it has.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.agent.approval import parse_rules
from everthread.cli.main import COMMANDS, load_command
from everthread.compaction.engine import ContextEngine
from everthread.config import Config, parse_config
from everthread.factory import open_store
from tests.cli.conftest import environment
from tests.cli.fork_server import ForkServer

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "RESULTS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BEGINNING = 60
"""Messages of the long session."""

NOT_RUN = {
    "everthread compare": "reads the reader's own logs; tests/cli/test_replay_latest.py",
    "everthread tune": "reads the reader's own logs; tests/cli/test_replay_latest.py",
    "everthread continue": "reads the reader's own logs; tests/cli/test_replay_latest.py",
    "everthread statusline": "reads the reader's own logs; tests/cli/test_replay_latest.py",
    "everthread init": "asks a person",
    "everthread chat": "needs a person and a model",
    "uv": "needs a package index",
    "everthread run": "needs a model",
    "everthread models pull": "downloads a model",
    "everthread dashboard": "serves until it is ended",
    "everthread serve": "serves until it is ended",
    "everthread mcp": "serves until its client leaves",
    "everthread replay": "reads the reader's own logs, or takes too long for a test",
    "everthread keys revoke": "names a key that the reader made",
    "everthread plugins use": "needs the plugin that the line before it installed",
    "everthread sessions": "moves threads between the reader's stores",
    "everthread db": "reads the reader's store",
    "claude": "another program",
    "your-agent": "the reader's own program",
    "curl": "asks a server that the lines before it started",
    "jq": "reads what the server answers",
    "thread": "stores the server's answer in a variable",
    "api": "sets a variable",
    "json": "sets a variable",
    "export": "sets a variable",
    "pip": "needs a package index",
    "cd": "needs a folder of the reader's machine",
    "mkdir": "changes folders of the reader's machine",
    "mv": "changes folders of the reader's machine",
    "cp": "changes folders of the reader's machine",
    "git": "reads the reader's own repository",
    "createdb": "needs a PostgreSQL server",
    "docker": "needs Docker",
    "systemctl": "needs systemd",
    "useradd": "needs root",
    "sudo": "needs root",
    "/opt/everthread/bin/pip": "needs a package index",
    "everthread wrap": "starts another program",
    "pg_restore": "needs a PostgreSQL server",
    "python": "takes minutes",
}
NOT_READ = {
    "": "drawings and listings",
    "sql": "needs a PostgreSQL server",
}


def fences(page: Path, kind: str) -> list[str]:
    found_fences = FENCE.findall(page.read_text("utf-8"))
    return [body for name, body in found_fences if name == kind]


def indented(page: Path) -> list[str]:
    prose = FENCE.sub("", page.read_text("utf-8"))
    return re.findall(r"^    (everthread [^#\n]*?)\s*(?:#.*)?$", prose, re.MULTILINE)


def spans(page: Path) -> list[str]:
    """Inline code."""
    prose = FENCE.sub("", page.read_text("utf-8"))
    return re.findall(r"`([^`\n]+)`", prose)


def relative_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fence_params(kind: str) -> list[Any]:
    """Every fence of a kind, as parameters."""
    return [
        pytest.param(body, id=f"{relative_name(page)}-{number}")
        for page in PAGES
        if kind != "python" or not example_of(page)
        for number, body in enumerate(fences(page, kind), 1)
    ]


Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The beginning of the long session: the whole of it is played by other tests."""
    whole = json.loads((ROOT / "examples" / "long_session.json").read_text("utf-8"))
    folder = tmp_path_factory.mktemp("examples")
    shorter = {**whole, "messages": whole["messages"][:BEGINNING]}
    (folder / "long_session.json").write_text(json.dumps(shorter), "utf-8")
    return folder


@pytest.fixture
def run(
    fork_server: ForkServer,
    examples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run a command or a script in an empty folder beside the examples; return the exit code and its errors."""
    (tmp_path / "examples").symlink_to(examples)
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"

    def go(*arguments: str, script: str = "") -> tuple[int, str]:
        with (
            open(os.devnull, "rb") as nothing,  # noqa: PTH123
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            streams = [nothing.fileno(), out.fileno(), err.fileno()]
            fork_server.start(arguments, environment(home), streams, script=script)
            code = fork_server.wait()
            err.seek(0)
            return code, err.read().decode()

    return go


def example_of(page: Path) -> Path | None:
    """The examples of a framework's recipe. They need the framework: `make torture PART=integrations` runs it."""
    example = ROOT / "examples" / f"{page.stem.replace('-', '_')}_agent.py"
    return example if page.parent.name == "recipes" and example.exists() else None


@pytest.mark.parametrize("page", [page for page in PAGES if example_of(page)], ids=relative_name)
def test_recipes_show_their_examples(page: Path) -> None:
    example = example_of(page)
    assert example is not None
    shown = fences(page, "python")
    assert shown[0] in example.read_text("utf-8")
    assert shown[0].count("\n") > 12, "all but the docstring"
    for other in shown[1:]:
        compile(other, relative_name(page), "exec")


@pytest.mark.parametrize("code", fence_params("python"))
def test_examples_run(code: str, run: Run) -> None:
    exit_code, errors = run(script=code)
    assert exit_code == 0, errors


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "everthread.db"
    asyncio.run(open_store(path).close())
    return path


@pytest.mark.parametrize(
    "command", sorted({command for page in PAGES for command in indented(page)})
)
def test_commands_run(command: str, run: Run, empty_store: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    # A reader of the pages has a store by then.
    shutil.copy(empty_store, tmp_path / "home")
    exit_code, errors = run(*shlex.split(command)[1:])
    assert exit_code == 0, errors


@pytest.mark.parametrize("text", fence_params("yaml"))
def test_yaml_examples_are_valid(text: str) -> None:
    assert parse_config(text) != parse_config(""), (
        "an example shows something that is not the default"
    )


def test_other_fences_are_valid() -> None:
    readers: dict[str, Callable[[str], object]] = {
        "json": json.loads,
        "toml": tomllib.loads,
        "text": lambda rules: parse_rules(rules.splitlines()),
    }
    for page in PAGES:
        for kind, body in FENCE.findall(page.read_text("utf-8")):
            if kind in readers:
                readers[kind](body)
            else:
                assert kind in {"python", "sh", "yaml", *NOT_READ}, (
                    f"{relative_name(page)}: nobody looks at a fence of {kind}"
                )


def shell_commands(page: Path) -> Iterator[list[str]]:
    """The words of every command in the shell fences; of a pipe only what is at its ends, without redirections."""
    for body in fences(page, "sh"):
        for line in body.replace("\\\n", " ").splitlines():
            command: list[str] = []
            for word in [*shlex.split(line, comments=True), "&"]:
                if word not in ("|", "&&", "&"):
                    if not re.fullmatch(r"[A-Z_]+=\S*", word):
                        command.append(word)
                elif command:
                    yield command
                    command = []


def test_shell_commands_exist() -> None:
    for page in PAGES:
        for words in shell_commands(page):
            if words[0] == "everthread":
                parse_command(words[1:], relative_name(page))
            names = {" ".join(words[:count]) for count in (1, 2, 3)}
            names.add(words[0].partition("=")[0])
            assert not names.isdisjoint(NOT_RUN), (
                f"{relative_name(page)}: run `{' '.join(words)}` (as an indented line), or say in NOT_RUN why not"
            )


@functools.cache
def command_of(*names: str) -> Any:
    """Return the command of these names; None if there is none."""
    if len(names) == 1:
        return load_command(names[0]) if names[0] in COMMANDS else None
    return getattr(command_of(*names[:-1]), "commands", {}).get(names[-1])


def parse_command(words: list[str], where: str) -> None:
    """`everthread` takes these words. Nothing is run."""
    command: Any = None
    name_count = 0
    for count in (1, 2, 3):
        found_command = command_of(*words[:count]) if len(words) >= count else None
        if found_command is None:
            break
        command = found_command
        name_count = count
    name = " ".join(words[:name_count])
    arguments = words[name_count:]
    is_unknown = command is None
    if arguments and not arguments[0].startswith("-"):
        is_unknown = is_unknown or hasattr(command, "commands")
    assert not is_unknown, f"{where}: there is no command everthread {' '.join(words)}"
    try:
        command.make_context(name, arguments)
    except Exception as error:  # noqa: BLE001 - typer has click's classes under names of its own
        pytest.fail(f"{where}: everthread {' '.join(words)}: {error}")


def test_mentioned_commands_exist() -> None:
    for page in PAGES:
        for span in spans(page):
            if not span.startswith("everthread "):
                continue
            names: tuple[str, ...] = ()
            words = span.replace("\\|", "|").split()
            for word in words[1:]:
                if names and not hasattr(command_of(*names), "commands"):
                    break
                if re.fullmatch(r"[a-z|]+", word) is None:
                    break
                for name in word.split("|"):
                    assert command_of(*names, name) is not None, (
                        f"{relative_name(page)}: there is no `{span}`"
                    )
                names = (*names, word.split("|")[0])


def test_mentioned_settings_exist() -> None:
    roots = "|".join(Config.model_fields)
    for page in PAGES:
        for span in spans(page):
            key = re.fullmatch(rf"((?:{roots})(?:\.[a-z_]+)+)(?:: .*|\.\*\w+)?", span)
            if key is None or key[1].endswith((".md", ".py", ".svg", ".engine")):
                continue
            section: Any = Config
            for step in key[1].split("."):
                if not hasattr(section, "model_fields"):
                    break  # options of an engine, or a list
                assert step in section.model_fields, (
                    f"{relative_name(page)}: there is no setting {key[1]}"
                )
                section = section.model_fields[step].annotation


def test_mentioned_files_exist() -> None:
    files: list[str] = []
    for folder in ("src", "docs", "examples", "tests", "benchmarks"):
        paths = (ROOT / folder).rglob("*.py")
        files += [str(path.relative_to(ROOT)) for path in paths]
    for page in PAGES:
        if page.parent.name == "recipes" or page.name == "CHANGELOG.md":
            continue  # files of the reader's, and of earlier versions
        for span in spans(page):
            name = re.fullmatch(r"[\w/.-]+\.py", span)
            assert name is None or any(f"/{file}".endswith(f"/{span}") for file in files), (
                f"{relative_name(page)}: no {span}"
            )


def test_engines_page_names_every_argument_of_compress() -> None:
    page = (ROOT / "docs" / "reference" / "engines.md").read_text("utf-8")
    signature = inspect.signature(ContextEngine.compress)
    arguments = set(signature.parameters) - {"self", "messages"}
    text = page.partition("`compress` gets these arguments")[2]
    table = text.partition("\n\nIt runs")[0]
    named_in_table: set[str] = set()
    for line in table.splitlines():
        if "|" in line:
            first_cell = line.split("|")[1]
            named_in_table.update(re.findall(r"`(\w+)`", first_cell))
    assert named_in_table == arguments


def test_mentioned_ports_are_used() -> None:
    """The gateway's own; 8485 is what the pages choose for `everthread mcp --http`."""
    listening = {str(Config().gateway.port), "8485"}
    for page in PAGES:
        ports = set(re.findall(r"127\.0\.0\.1:(\d+)", page.read_text("utf-8")))
        assert ports <= listening, (
            f"{relative_name(page)}: no service listens on {ports - listening}"
        )


# Links


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    prose = FENCE.sub("", page.read_text("utf-8"))
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))
    return [
        *re.findall(r"\]\(<?([^)\s>]+)", prose),
        *re.findall(r"\b(?:src|href)=\"([^\"]+)\"", prose),
    ]


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?:|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{relative_name(page)}: {link} leads nowhere"
        assert place.is_relative_to(ROOT), (
            f"{relative_name(page)}: {link} leads out of the repository"
        )
        assert not anchor or place.suffix != ".md" or anchor in anchors(place), (
            f"{relative_name(page)}: no heading at {link}"
        )


@pytest.mark.parametrize("folder", ["docs", "docs/design", "docs/recipes"])
def test_every_page_is_in_the_index(folder: str) -> None:
    index = ROOT / folder / "README.md"
    linked = {index}
    for page in (index, ROOT / "README.md"):
        for link in links(page):
            target = page.parent / link.partition("#")[0]
            linked.add(target.resolve())
    pages = set(index.parent.glob("*.md"))
    if folder == "docs":  # its other folders have an index of their own
        for page in index.parent.rglob("*.md"):
            if page.parent.name not in ("design", "recipes"):
                pages.add(page)
    missing = sorted(map(relative_name, pages - linked))
    assert not missing, f"{relative_name(index)} does not name {', '.join(missing)}"


@pytest.mark.parametrize(
    ("name", "flow"), [("flow-gateway.svg", "GATEWAY"), ("flow-send.svg", "SEND")]
)
def test_flow_pictures_show_existing_files(name: str, flow: str) -> None:
    flows = runpy.run_path(str(ROOT / "docs" / "flows.py"))
    drawn = (ROOT / "docs" / "design" / name).read_text("utf-8")
    for box in flows[flow]:
        assert (ROOT / "src" / "everthread" / box.file).is_file(), box.file
        assert f"<title>{box.file}</title>" in drawn, "run python docs/flows.py"


FIGURE = re.compile(r"(?<![\w.])\$?\d[\d,]*(?:\.\d+)?(?!\w)")


def figures(text: str) -> set[str]:
    """Numbers without the commas that group or follow them."""
    return {figure.replace(",", "") for figure in FIGURE.findall(text)}


def test_figures_of_the_comparison_are_in_the_results() -> None:
    """Each figure of the summary is in the results, or is one of them with fewer digits."""
    measured = figures((ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8"))
    rounded = {f"{float(figure):.1f}" for figure in measured if re.fullmatch(r"\d+\.\d+", figure)}
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    section = page.partition("## How it compares")[2]
    section = section.partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = lines[2:]
    assert rows
    for row in rows:
        name, _, *cells = row.strip("|").split(" | ")
        unknown = figures(" ; ".join(cells)) - measured - rounded
        assert not unknown, (
            f"{name.strip()}: {', '.join(sorted(unknown))} is in no row of benchmarks/RESULTS.md"
        )
