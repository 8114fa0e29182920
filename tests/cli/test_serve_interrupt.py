"""Ctrl-C ends `everthread serve`, also while it is loaded."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import environment

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("moment", ["everthread.cli", ""])
def test_ctrl_c_ends_the_gateway_without_a_traceback(tmp_path: Path, moment: str) -> None:
    """Press it when a module is loaded or when the gateway runs; the signal reaches every process of the group."""
    log = tmp_path / "errors"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "importtime",
                "-m",
                "everthread",
                "serve",
                "--port",
                "0",
            ],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    if moment:
        loaded = re.compile(rf"\| +{re.escape(moment)}$", re.MULTILINE)
        while not loaded.search(log.read_text()):
            assert process.poll() is None, "it ended before the module was loaded"
            time.sleep(0.01)
    else:
        assert process.stdout.readline().startswith("Everthread listens")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert "Traceback" not in log.read_text()


IN_EXEC = "exec('os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10**6): pass')"


IN_DESTRUCTOR = "Dropped()"


@pytest.mark.parametrize("interrupt", [IN_EXEC, IN_DESTRUCTOR])
def test_ctrl_c_during_an_import_of_the_gateway_ends_it(tmp_path: Path, interrupt: str) -> None:
    """In `exec` an interrupt ends Python by signal, in a destructor it is lost: neither may happen."""
    hook = f"""
import os, signal, sys

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**6):
            pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "everthread.factory.gateways":
            sys.meta_path.remove(self)
            {interrupt}
        return None

sys.meta_path.insert(0, Finder())
"""
    (tmp_path / "sitecustomize.py").write_text(hook, "utf-8")
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(tmp_path), *filter(None, [variables.get("PYTHONPATH", "")])]
    )
    result = subprocess.run(
        [sys.executable, "-m", "everthread", "serve", "--port", "0"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 130
    assert "Traceback" not in result.stderr
