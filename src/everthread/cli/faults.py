"""Errors nobody foresaw: told in a sentence, kept with all there is to know about them."""

from __future__ import annotations

import contextlib
import os
import traceback
from datetime import UTC, datetime
from pathlib import Path

from everthread._version import __version__
from everthread.config import home_directory
from everthread.core.redaction import redact

LOG = "errors.log"
"""In the Everthread home."""
LARGEST = 1_000_000
"""Bytes after which it is begun anew."""


def unforeseen(error: Exception) -> str:
    """What to say of an error that is not one of ours; its traceback is written to the log."""
    said = redact(f"something went wrong that should not: {type(error).__name__}: {error}")
    kept = _log(error)
    return f"{said}\nThe details are in {kept}." if kept else f"{said}\n{_told(error)}"


def _log(error: Exception) -> Path | None:
    """Where it was written; None where that is impossible."""
    path = home_directory() / LOG
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST:
            path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # nobody else's business
        with os.fdopen(handle, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, everthread {__version__}\n{_told(error)}\n")
    except OSError:
        return None
    return path


def _told(error: Exception) -> str:
    with contextlib.suppress(Exception):  # an exception whose own words cannot be had is still told by its class
        return redact("".join(traceback.format_exception(error)))
    return type(error).__name__
