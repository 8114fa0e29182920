"""Two terminals that have the same thread open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from everthread.cli.chat.presence import TerminalPresence


def test_two_terminals_on_one_thread_warn_each_other_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from everthread.cli.chat.presence import TerminalPresence;"
        "presence = TerminalPresence(Path(sys.argv[1]));"
        "print(presence.enter('thread'), flush=True);"
        "sys.stdin.readline()"
    )
    with TerminalPresence(tmp_path) as presence:
        assert presence.enter("thread") == ""
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            warning = other.stdout.readline()
            assert f"open in another terminal too (process {os.getpid()})" in warning
            assert f"(process {other.pid})" in presence.enter("thread")
            assert presence.enter("thread") == ""
            assert presence.enter("another") == ""
            other.stdin.close()
        assert presence.enter("thread") == "", "the other terminal has exited"
    assert list((tmp_path / "terminals").iterdir()) == []
