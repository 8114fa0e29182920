"""What Everthread sees in a long session: `make demo`. Offline, no key, ends by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SESSION = Path(__file__).with_name("long_session.json")


def run(*arguments: str) -> None:
    """One command of Everthread, as a user types it."""
    sys.stdout.write(f"\n$ everthread {' '.join(arguments)}\n\n")
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "everthread", *arguments], check=True)  # noqa: S603 - our own command


def main() -> None:
    session = str(SESSION.relative_to(Path.cwd()) if SESSION.is_relative_to(Path.cwd()) else SESSION)
    run("tokens", session, "--window", "200000")
    run("inspect", session)
    sys.stdout.write("\nTry next: everthread tokens YOUR_SESSION.json, everthread inspect --json YOUR_SESSION.json\n")


if __name__ == "__main__":
    main()
