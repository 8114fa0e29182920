"""`python -m benchmarks [NAME …]`: the measurements as Markdown tables, with the machine they were taken on."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

from benchmarks.table import markdown

HELPERS = {"__init__", "__main__", "corpus", "shared", "table"}


def main() -> None:
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)
    asked = sys.argv[1:] or known
    unknown = [name for name in asked if name not in known]
    if unknown:
        sys.exit(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(known)}")
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    sys.stdout.write(f"*Measured with `python -m benchmarks` on {machine}.*\n\n")
    for name in asked:
        sys.stdout.write(markdown(name, importlib.import_module(f"benchmarks.{name}").run()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
