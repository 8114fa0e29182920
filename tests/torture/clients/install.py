"""Install each client into its own folder under `build/clients`: from npm with its own Node, or from PyPI."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "build" / "clients"
NODE = "node@22.23.3"
"""Several clients need a newer Node than machines have; npm installs it like any other package."""
SECONDS = 900


class AbsentError(Exception):
    """A client cannot be installed here; the message says why."""


def install_npm(packages: Sequence[str]) -> list[Path]:
    """Install packages from npm; return the folders of their programs and of the Node that runs them."""
    if shutil.which("npm") is None:
        raise AbsentError("npm is not installed")
    node = _npm([NODE], os.environ["PATH"]) / "node_modules" / "node" / "bin"
    folder = _npm(packages, f"{node}{os.pathsep}{os.environ['PATH']}")
    return [folder / "node_modules" / ".bin", node]


def npm_modules(packages: Sequence[str]) -> Path:
    """Return the folder whose `node_modules` has these packages."""
    return install_npm(packages)[0].parents[1]


def install_python(packages: Sequence[str]) -> list[Path]:
    """Install packages from PyPI; return the folder of their programs."""
    folder = FOLDER / _name(packages)
    if not _is_ready(folder, packages):
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        quick = (
            ["uv", "pip", "install", "--python", python]
            if shutil.which("uv")
            else [python, "-m", "pip", "install"]
        )
        _run([*quick, "--quiet", *packages], folder, os.environ["PATH"])
        _set_ready(folder, packages)
    return [folder / "bin"]


def version_of(command: Sequence[str], path: str) -> str:
    """Return the output of a program's `--version`."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    return (
        (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
        if done.returncode == 0
        else ""
    )


def loopback_only() -> tuple[list[str], str]:
    """Return a command prefix that leaves only loopback networking, and how it does that."""
    script = 'ip link set lo up && exec "$@"'
    for flags in (["-n"], ["-r", "-n"]):
        command = ["unshare", *flags, "sh", "-c", script, "sh"]
        if (
            shutil.which("unshare")
            and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode
        ):
            return command, "a network namespace with loopback only"
    return (
        [],
        "no namespace is permitted here: outbound addresses go to a proxy that refuses",
    )


def _npm(packages: Sequence[str], path: str) -> Path:
    folder = FOLDER / _name(packages)
    if not _is_ready(folder, packages):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}\n', "utf-8")
        _run(
            [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                *packages,
            ],
            folder,
            path,
        )
        _set_ready(folder, packages)
    return folder


def _name(packages: Sequence[str]) -> str:
    first = packages[0].lstrip("@").partition("@")[0].partition("=")[0].replace("/", "-")
    return (
        f"{first}-{hashlib.sha256(json.dumps([*packages, sys.version]).encode()).hexdigest()[:8]}"
    )


def _is_ready(folder: Path, packages: Sequence[str]) -> bool:
    ready = folder / "installed.txt"
    return ready.exists() and ready.read_text("utf-8") == "\n".join(packages)


def _set_ready(folder: Path, packages: Sequence[str]) -> None:
    (folder / "installed.txt").write_text("\n".join(packages), "utf-8")


def _run(command: Sequence[str], folder: Path, path: str) -> None:
    try:
        subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "PATH": path},
        )
    except subprocess.CalledProcessError as error:
        raise AbsentError((error.stderr.strip() or error.stdout.strip()).split("\n")[-1]) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbsentError(str(error)) from error
