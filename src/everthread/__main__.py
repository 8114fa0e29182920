"""`everthread` and `python -m everthread`: the command. Ctrl-C ends it quietly, also while it is being loaded."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
"""The exit code of a command that Ctrl-C ended, as shells give it."""


def main() -> None:
    """Load the command and run it."""
    handler_from_import = signal.signal(signal.SIGINT, _leave)
    from everthread.cli.main import main as run_command  # noqa: PLC0415 - a signal may come while it is loaded

    signal.signal(signal.SIGINT, handler_from_import)
    try:
        run_command()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
    finally:
        # Threads that still end must not be interrupted with a traceback.
        signal.signal(signal.SIGINT, _leave)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED_EXIT_CODE)


if __name__ == "__main__":
    main()
