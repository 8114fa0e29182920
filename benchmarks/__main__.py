"""`python -m benchmarks [NAME …] [--out FILE]`: the measurements as Markdown tables, with the machine they ran on.

What is measured in a run replaces its section in the file; the others stay as they were measured before.
The exit status is 1 if a required goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import platform
import re
import sys
import time
from pathlib import Path

from benchmarks.table import markdown

HELPERS = {
    "__init__",
    "__main__",
    "corpus",
    "gateway_beside",
    "servers",
    "shared",
    "table",
}
INTRO = """# Benchmarks

*Written by `make bench` (`python -m benchmarks --out benchmarks/RESULTS.md`). Each section says what was measured, on
which material, when, and whether the machine was idle. Speed is a ratio against something measured in the same run;
peers come from PyPI and run on the same inputs in environments of their own. "Tuned on" is material that was looked
at while building, "kept aside" is material that was not. "Told on" is the half of a file that is only measured since it
was split; before that all of it had been seen.*
"""


def main() -> None:
    known = sorted(
        path.stem
        for path in Path(__file__).parent.glob("*.py")
        if path.stem not in HELPERS
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="*", help=f"one or more of {', '.join(known)}; default: all"
    )
    parser.add_argument(
        "--out", type=Path, help="a Markdown file to keep the tables in"
    )
    given = parser.parse_args()
    unknown = [name for name in given.name if name not in known]
    if unknown:
        sys.exit(
            f"no benchmark named {', '.join(unknown)}; there are: {', '.join(known)}"
        )
    failed: list[str] = []
    for name in given.name or known:
        began = time.perf_counter()
        module = importlib.import_module(f"benchmarks.{name}")
        rows = list(module.run())
        failed += [f"{name}: {row.what}" for row in rows if row.is_failed]
        table = markdown(name, rows, inspect.cleandoc(module.__doc__ or ""))
        section = f"{table}\n*{_measured(time.perf_counter() - began)}*\n"
        sys.stdout.write(f"{section}\n")
        sys.stdout.flush()
        if given.out is not None:
            given.out.write_text(_kept(given.out, name, section, known), "utf-8")
    if failed:
        sys.exit("FAILED: " + "; ".join(failed))


def _measured(seconds: float) -> str:
    today = time.strftime("%Y-%m-%d")
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = (
        f", a busy machine (load {load:.1f})"
        if load > cores + 0.5
        else ", an idle machine"
    )
    return (
        f"{today}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores} cores{busy}, "
        f"in {seconds:,.0f} s"
    )


def _kept(path: Path, name: str, section: str, known: list[str]) -> str:
    """The file with this section in its place, in the order of the names; those of benchmarks that are gone go."""
    text = path.read_text("utf-8") if path.exists() else ""
    sections = {
        found[1]: found[0].rstrip()
        for found in re.finditer(r"^### (\w+)\n.*?(?=^### |\Z)", text, re.M | re.S)
    }
    sections[name] = section.rstrip()
    return (
        "\n\n".join(
            [
                INTRO.rstrip(),
                *(sections[key] for key in sorted(sections) if key in known),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
