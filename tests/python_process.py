"""Code in a Python process of its own, with nothing loaded yet."""

from __future__ import annotations

import subprocess
import sys


def printed_by(code: str) -> str:
    """Run the code and return what it printed."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()
