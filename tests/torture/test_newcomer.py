"""A newcomer's first minutes: the wheel, a new virtual environment, an empty home, none of this machine's variables.

Every command of the README and of the Start pages runs, from the installation to a managed conversation. The commands,
their output and their times are in `build/torture/newcomer.txt`.

"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.test_docs import fences, indented

ROOT = Path(__file__).parents[2]
START = sorted((ROOT / "docs" / "start").glob("*.md"))
RECORD = ROOT / "build" / "torture" / "newcomer.txt"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
pytestmark = pytest.mark.timeout(1_800)

CLIENT = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="any")
history = [{"role": "user", "content": "Never touch the migrations folder. The ledger listens on port 8443."}]
for number in range(10):
    answer = client.chat.completions.create(model="gpt-4o", messages=history)
    history.append({"role": "assistant", "content": answer.choices[0].message.content})
    history.append({"role": "user", "content": f"Entry {number}: " + "the books are in order. " * 200})
print(len(history), "messages")
"""


def find_python(version: str) -> str | None:
    """Return the interpreter of a version, if this machine has it."""
    interpreters = [
        *(Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"),
        *(
            Path(path)
            for path in [shutil.which(f"python{version}")]
            if path and "shims" not in path
        ),
    ]
    return str(interpreters[0]) if interpreters else None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            folder,
            ROOT,
        ],
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    [built] = folder.glob("*.whl")
    return built


class Newcomer:
    """A person at an empty machine. Log each command with its time."""

    def __init__(self, home: Path, record: Path | None = None) -> None:
        self.home = home
        self.work = home / "work"
        self.work.mkdir()
        self.bin = home / "venv" / "bin"
        self.record = record
        index = {
            name: os.environ[name]
            for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE")
            if name in os.environ
        }
        self.environment = {
            **index,
            "HOME": str(home),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }

    def run(self, *command: str, code: int = 0, typed: str = "") -> str:
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        seconds = time.monotonic() - began
        self.write(
            f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}[{done.returncode}, {seconds:.1f} s]\n"
        )
        assert done.returncode == code, (
            f"{shlex.join(command)}\n{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
        )
        return done.stdout

    def write(self, text: str) -> None:
        if self.record is not None:
            with self.record.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def install(self, python: str, wheel: Path, extra: str = "") -> None:
        self.run(python, "-m", "venv", str(self.home / "venv"))
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet"]
        self.run(*pip, f"{wheel}[{extra}]" if extra else str(wheel))

    @contextmanager
    def serving(self, *command: str) -> Iterator[str]:
        """Run a server that prints its address as JSON; yield the address."""
        self.write(f"$ {shlex.join(command)} &\n")
        with (self.home / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--json"],
                cwd=self.work,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                assert process.stdout is not None
                yield str(json.loads(process.stdout.readline())["url"])
            finally:
                process.terminate()
                process.communicate(timeout=60)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_installs_and_runs(version: str, wheel: Path, tmp_path: Path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    newcomer = Newcomer(tmp_path)
    newcomer.install(python, wheel)
    assert newcomer.run("everthread", "--version").strip()
    assert json.loads(newcomer.run("everthread", "sessions", "list", "--json"))["sessions"] == []
    newcomer.run("python", "-c", "import everthread; everthread.compress([], window=8_000)")


def test_old_python_is_refused_with_a_clear_message(wheel: Path, tmp_path: Path) -> None:
    python = find_python("3.10")
    if python is None:
        pytest.skip("this machine has no Python 3.10")
    newcomer = Newcomer(tmp_path)
    newcomer.run(python, "-m", "venv", str(tmp_path / "venv"))
    command = [str(newcomer.bin / "python"), "-m", "pip", "install", str(wheel)]
    refused = subprocess.run(
        command, env=newcomer.environment, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "3.11" in refused.stderr


def test_commands_of_the_readme_and_start_pages(wheel: Path, tmp_path: Path) -> None:
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    newcomer = Newcomer(tmp_path, RECORD)
    newcomer.install(find_python("3.11") or sys.executable, wheel, extra="models")
    newcomer.run("everthread", "--help")

    newcomer.write("== without a key, run says what to do")
    refused = subprocess.run(
        ["everthread", "run", "hello"],
        env=newcomer.environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=newcomer.work,
    )
    assert refused.returncode == 2
    assert "model.default" in refused.stderr

    for page in [ROOT / "README.md", *START]:
        newcomer.write(f"== {page.relative_to(ROOT)}")
        for number, code in enumerate(fences(page, "python")):
            script = newcomer.work / f"{page.stem}_{number}.py"
            script.write_text(code, "utf-8")
            newcomer.run("python", str(script))
        for command in indented(page):
            newcomer.run(*shlex.split(command))

    newcomer.write("== a model that answers, the terminal in front of it")
    model = ["everthread", "lab", "provider", "--model", "gpt-4o=8000"]
    with newcomer.serving(*model) as provider:
        reached = ["--base-url", f"{provider}/v1", "--model", "gpt-4o"]
        assert "ledger" in newcomer.run("everthread", "run", "Where is the ledger?", *reached)
        newcomer.run("everthread", "chat", *reached, typed="Good morning.\n/usage\n/exit\n")
        newcomer.run("everthread", "chat", "--continue", *reached, typed="/state\n/cost\n/exit\n")

        newcomer.write("== the gateway in front of it, and a client past its window")
        with newcomer.serving(
            "everthread", "serve", "--port", "0", "--upstream", f"lab={provider}"
        ) as gateway:
            script = newcomer.work / "client.py"
            script.write_text(CLIENT, "utf-8")
            assert "21 messages" in newcomer.run("python", str(script), gateway)
    threads = json.loads(newcomer.run("everthread", "sessions", "list", "--json"))["sessions"]
    [proxied] = [thread for thread in threads if thread["platform"] == "gateway"]
    assert proxied["compactions"] >= 1
    assert "8443" in newcomer.run("everthread", "sessions", "search", "8443")
    newcomer.run("everthread", "insights")
    assert re.search(r"^\[0, \d+\.\d s\]$", RECORD.read_text("utf-8"), re.MULTILINE)
