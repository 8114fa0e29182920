"""What Everthread does with a long session: `make demo`. Offline, no key, ends by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from examples.conversation import SESSION, main, say


def run(*arguments: str) -> None:
    """One command of Everthread, as a user types it."""
    say(f"\n$ everthread {' '.join(arguments)}\n")
    subprocess.run([sys.executable, "-m", "everthread", *arguments], check=True)  # noqa: S603 - our own command


def demo() -> None:
    session = str(SESSION.relative_to(Path.cwd()) if SESSION.is_relative_to(Path.cwd()) else SESSION)
    run("tokens", session, "--window", "64000")
    say("\n# The same session again, held with a simulated Claude whose window is far too small for it\n")
    thread = asyncio.run(main())
    run("sessions", "list")
    run("sessions", "search", "migrations folder", "--limit", "3")
    run("usage", thread[:8])
    say("\nTry next: everthread compress YOUR_SESSION.json, everthread models, docs/guide.md")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["EVERTHREAD_HOME"] = home
        demo()
