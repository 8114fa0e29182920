"""The folders and processes of one client's run, and the command that starts the run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.clients.model import QUESTION, file_text
from tests.torture.clients.programs import Program

MAX_RUN_SECONDS = 1_500
INHERITED_VARIABLES = ("LANG", "TERM", "TMPDIR", "PYTHONPATH")


@dataclass(frozen=True)
class CommandOutput:
    """The outcome of a command that has ended."""

    code: int
    text: str
    errors: str


@dataclass(frozen=True)
class Workspace:
    """A home folder for the client, a home for Everthread, and a folder of ledgers to read."""

    folder: Path
    environment: Mapping[str, str]
    """Variables of the client's processes."""

    @classmethod
    def create(cls, folder: Path, program: Program, binaries: str, rounds: int) -> Workspace:
        """Create the folders of a run, with the files that the client reads in this many rounds."""
        home = folder / "home"
        environment = {
            "HOME": str(home),
            "EVERTHREAD_HOME": str(folder / "everthread"),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local/share"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_STATE_HOME": str(home / ".local/state"),
            "PATH": f"{binaries}:{os.environ['PATH']}",
            **program.variables,
        }
        workspace = cls(folder, environment)
        for path in (home, workspace.ledgers, workspace.everthread_home):
            path.mkdir(parents=True)
        for number in range(1, rounds * program.files_per_round + 2):
            file = workspace.ledgers / f"part-{number:03d}.txt"
            file.write_text(file_text(number, program.file_chars), "utf-8")
        if program.prepare_home is not None:
            program.prepare_home(home)
        return workspace

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def ledgers(self) -> Path:
        """The client's working folder."""
        return self.folder / "work"

    @property
    def everthread_home(self) -> Path:
        return self.folder / "everthread"

    @property
    def gateway_log(self) -> Path:
        return self.folder / "gateway.log"

    def insert_folder(self, value: Any) -> Any:
        """Return a tool's arguments with the working folder inserted for `{folder}`."""
        if isinstance(value, Mapping):
            return {key: self.insert_folder(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.insert_folder(part) for part in value]
        if isinstance(value, str):
            return value.replace("{folder}", str(self.ledgers))
        return value

    async def wrap(
        self,
        client: str,
        options: Sequence[str],
        arguments: Sequence[str],
        *,
        typed: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        """Run `everthread wrap` in the working folder. `variables`: replace some of the environment's."""
        command = [sys.executable, "-m", "everthread", "wrap", client, *options]
        inherited = {
            name: value for name, value in os.environ.items() if name in INHERITED_VARIABLES
        }
        process = await asyncio.create_subprocess_exec(
            *command,
            "--",
            *arguments,
            cwd=self.ledgers,
            env={**inherited, **self.environment, **(variables or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(MAX_RUN_SECONDS):
                output, errors = await process.communicate(typed.encode())
        except TimeoutError:
            os.killpg(process.pid, 9)
            output, errors = await process.communicate()
        return CommandOutput(
            process.returncode or 0,
            output.decode(errors="replace"),
            errors.decode(errors="replace"),
        )


def fill_arguments(arguments: Sequence[str], task: str, question: str) -> list[str]:
    """Return a program's arguments with the task and the question inserted."""
    return [text.replace("{task}", task).replace("{question}", question) for text in arguments]


def type_lines(count: int) -> str:
    """Return the lines that a person types into a program without tools; the question is the last."""
    lines = [f"Compare part {number} of the ledger." for number in range(1, count + 1)]
    return "\n".join([*lines, QUESTION]) + "\n"


def run_from_command_line(
    programs: Mapping[str, Program],
    run: Callable[[Program, Path, str], Awaitable[dict[str, Any]]],
) -> None:
    """Run the program named by `NAME FOLDER PATH`, and write the findings to `FOLDER/result.json`."""
    name, folder_name, binaries = sys.argv[1:]
    folder = Path(folder_name)

    async def run_program() -> dict[str, Any]:
        return await run(programs[name], folder, binaries)

    findings = json.dumps(asyncio.run(run_program()), indent=1, ensure_ascii=False)
    (folder / "result.json").write_text(findings + "\n", "utf-8")
