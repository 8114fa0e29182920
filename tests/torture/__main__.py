"""Run the long runs, each part by itself: `python -m tests.torture [PART ...]`.

A part is a file `test_PART.py` here, or `properties`: the properties of core and wire with many more examples. Each
writes `build/torture/PART.json` after every test, so that an interrupted run resumes with the tests that have not
passed yet. Results of other code do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "torture"
PROPERTIES = "properties"


def list_parts() -> list[str]:
    return [
        PROPERTIES,
        *sorted(file.stem.removeprefix("test_") for file in HERE.glob("test_*.py")),
    ]


def hash_code() -> str:
    """Return a hash of the tracked and the new files; a result counts only for the same hash."""
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "-co",
            "--exclude-standard",
            "src",
            "tests",
            "requirements",
            "pyproject.toml",
        ],
        cwd=ROOT,
        capture_output=True,
        check=False,
    ).stdout
    digest = hashlib.sha256()
    for name in sorted(set(listed.split(b"\n")) - {b""}):
        file = ROOT / os.fsdecode(name)
        digest.update(name + b"\0" + (file.read_bytes() if file.is_file() else b"") + b"\0")
    return digest.hexdigest()[:16] if listed else ""


class PartResult:
    """A pytest plugin that saves the results of a part after each test."""

    def __init__(self, part: str, code: str) -> None:
        self.file = RESULTS / f"{part}.json"
        self.found: dict[str, Any] = {"part": part, "code": code, "tests": {}}
        before = json.loads(self.file.read_text("utf-8")) if self.file.is_file() else {}
        if code and before.get("code") == code:
            self.found["tests"] = {
                name: test for name, test in before["tests"].items() if test["outcome"] != "failed"
            }

    def passed_before(self) -> list[str]:
        return list(self.found["tests"])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        test = self.found["tests"].setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 2)
        if test["outcome"] != "failed":
            test["outcome"] = report.outcome
        if report.failed:
            test["error"] = report.longreprtext[-2_000:]
        self.write("running")

    def write(self, state: str) -> None:
        outcomes = [test["outcome"] for test in self.found["tests"].values()]
        self.found["state"] = state
        self.found["counts"] = {
            name: outcomes.count(name) for name in ("passed", "failed", "skipped")
        }
        self.found["seconds"] = round(
            sum(test["seconds"] for test in self.found["tests"].values()), 1
        )
        self.found["machine"] = (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        self.found["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        RESULTS.mkdir(parents=True, exist_ok=True)
        half = self.file.with_suffix(".tmp")
        half.write_text(json.dumps(self.found, indent=1, sort_keys=True) + "\n", "utf-8")
        half.replace(self.file)


def run_part(part: str) -> bool:
    """Run the tests that have not passed yet; return whether the whole part has passed now."""
    result = PartResult(part, hash_code())
    if part == PROPERTIES:
        arguments = [
            "-n",
            "2",
            "--hypothesis-profile=torture",
            "tests/core",
            "tests/wire",
        ]
        result.found["tests"] = {}  # too many to name one by one: they are run again
    else:
        arguments = [f"tests/torture/test_{part}.py", "--timeout=3600"]
        arguments += [f"--deselect={name}" for name in result.passed_before()]
    code = pytest.main(["-q", "--rootdir", str(ROOT), *arguments], plugins=[result])
    nothing_left = code == pytest.ExitCode.NO_TESTS_COLLECTED and bool(result.passed_before())
    fine = code == pytest.ExitCode.OK or nothing_left
    result.write("passed" if fine else "failed")
    return fine


def run_parts(wanted: list[str]) -> int:
    parts = list_parts()
    if unknown := sorted(set(wanted) - set(parts)):
        print(
            f"There is no part {', '.join(unknown)}. Parts: {', '.join(parts)}",
            file=sys.stderr,
        )
        return 2
    # Each in a process of its own, so that none is affected by another's remains.
    if len(wanted) == 1:
        return 0 if run_part(wanted[0]) else 1
    failed = []
    for part in wanted or parts:
        print(f"== {part}", flush=True)
        if subprocess.run(
            [sys.executable, "-m", "tests.torture", part], cwd=ROOT, check=False
        ).returncode:
            failed.append(part)
    print(f"{'failed: ' + ', '.join(failed) if failed else 'all passed'}; results are in {RESULTS}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_parts(sys.argv[1:]))
