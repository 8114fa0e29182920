"""`python -m benchmarks [NAME …] [--out FILE]`: print the measurements as Markdown tables, with the machine used.

Each benchmark that runs replaces its section in the file; the other sections stay. The exit status is 1 if a required
goal is missed.
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

from benchmarks.table import format_section

HELPER_MODULES = {
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
    benchmark_names = sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPER_MODULES
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name",
        nargs="*",
        help=f"one or more of {', '.join(benchmark_names)}; default: all",
    )
    parser.add_argument("--out", type=Path, help="a Markdown file to keep the tables in")
    arguments = parser.parse_args()
    unknown_names = [name for name in arguments.name if name not in benchmark_names]
    if unknown_names:
        sys.exit(
            f"no benchmark named {', '.join(unknown_names)}; there are: {', '.join(benchmark_names)}"
        )
    missed_goals: list[str] = []
    for name in arguments.name or benchmark_names:
        started_at = time.perf_counter()
        module = importlib.import_module(f"benchmarks.{name}")
        rows = list(module.run())
        missed_goals += [f"{name}: {row.name}" for row in rows if row.is_failed]
        table = format_section(name, rows, inspect.cleandoc(module.__doc__ or ""))
        section = f"{table}\n*{_describe_run(time.perf_counter() - started_at)}*\n"
        sys.stdout.write(f"{section}\n")
        sys.stdout.flush()
        if arguments.out is not None:
            arguments.out.write_text(
                replace_section(arguments.out, name, section, benchmark_names), "utf-8"
            )
    if missed_goals:
        sys.exit("FAILED: " + "; ".join(missed_goals))


def _describe_run(seconds: float) -> str:
    today = time.strftime("%Y-%m-%d")
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    load_text = f", a busy machine (load {load:.1f})" if load > cores + 0.5 else ", an idle machine"
    return (
        f"{today}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores} cores"
        f"{load_text}, in {seconds:,.0f} s"
    )


def replace_section(path: Path, name: str, section: str, benchmark_names: list[str]) -> str:
    """Return the file's text with this section replaced, sorted by name, without benchmarks that no longer exist."""
    text = path.read_text("utf-8") if path.exists() else ""
    sections = {
        match[1]: match[0].rstrip()
        for match in re.finditer(r"^### (\w+)\n.*?(?=^### |\Z)", text, re.M | re.S)
    }
    sections[name] = section.rstrip()
    return (
        "\n\n".join(
            [
                INTRO.rstrip(),
                *(sections[key] for key in sorted(sections) if key in benchmark_names),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
