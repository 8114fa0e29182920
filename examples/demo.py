"""What Everthread does, in a few minutes: `make demo`. Offline, no key, ends by itself.

First a client that knows nothing of Everthread, through the gateway, to a small real model. Then a long session with a
simulated Claude whose window is far too small for it, what is in the store afterwards, and a report on the session.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from examples import conversation, gateway
from examples.conversation import SESSION, say

REPORT = "everthread-report.html"


def run(*arguments: str) -> None:
    """One command of Everthread, as a user types it."""
    say(f"\n$ everthread {' '.join(arguments)}\n")
    subprocess.run([sys.executable, "-m", "everthread", *arguments], check=True)  # noqa: S603 - our own command


def demo() -> None:
    session = str(
        SESSION.relative_to(Path.cwd()) if SESSION.is_relative_to(Path.cwd()) else SESSION
    )
    say(
        "# 1. Any client, one URL changed: the OpenAI SDK, through the gateway, to a small model on this machine\n"
    )
    missing = gateway.fetch_model()
    if missing:
        say(f"This part cannot run here, the others can: {missing}")
    else:
        asyncio.run(gateway.main())
        run("usage")
    say("\n# 2. A long session with a simulated Claude whose window is far too small for it\n")
    thread = asyncio.run(conversation.main())
    run("sessions", "search", "migrations folder", "--limit", "3")
    run("usage", thread[:8])
    say(
        "\n# 3. The same session replayed: what it would have cost, and what would have been lost, otherwise"
    )
    run("replay", session, "--window", "64000", "--no-recall", "--html", REPORT)
    say(
        f"""
Seen: a client held a conversation several windows long without knowing of it; what was said first was still in the
last request; a session of {len(SESSION.read_bytes()) // 1000} KB went through 64,000 tokens, most of it from the cache.

Try next:
  open {REPORT} in a browser
  everthread serve, and OPENAI_BASE_URL or ANTHROPIC_BASE_URL in the client you have
  everthread replay YOUR_SESSION (Claude Code's and Codex's logs are read as they are)
  docs/README.md"""
    )


if __name__ == "__main__":
    # 98 MB, kept for the next time.
    fetched = Path(sys.prefix) / "everthread-demo" / "models"
    fetched.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["EVERTHREAD_HOME"] = home
        Path(home, "models").symlink_to(fetched)
        demo()
