"""Start the run of one client in a process whose network is loopback only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.torture.clients.install import (
    AbsentError,
    install_npm,
    install_python,
    loopback_only,
    version_of,
)
from tests.torture.clients.programs import Program

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "build" / "torture" / "clients"
NO_NETWORK = {
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}
"""Variables that refuse outbound addresses, if no network namespace is permitted."""


def run_program(program: Program, folder: Path, *, module: str, name: str) -> dict[str, Any]:
    """Run a client by a module; keep and return the findings. Skip if it cannot be installed."""
    try:
        install = install_python if program.is_python else install_npm
        places = os.pathsep.join(map(str, install(program.packages)))
    except AbsentError as error:
        pytest.skip(f"{program.name} cannot be installed here: {error}")
    before, network = loopback_only()
    command = [*before, sys.executable, "-m", module, program.name, str(folder), places]
    variables = {**os.environ, **({} if before else NO_NETWORK)}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    path = f"{places}{os.pathsep}{os.environ['PATH']}"
    version = version_of([program.client, "--version"], path)
    keep_result(name, {**found, "version": version, "network": network})
    return found


def keep_result(name: str, found: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
