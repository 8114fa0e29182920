"""Write unexpected errors to a log in the Everthread home."""

from __future__ import annotations

import contextlib
import os
import traceback
from datetime import UTC, datetime

from everthread._version import __version__
from everthread.config import home_directory
from everthread.core.secrets.redaction import redact

LOG_FILE = "errors.log"
"""Name of the log in the Everthread home."""


MAX_LOG_BYTES = 1_000_000
"""Maximum bytes of the log. A larger log is emptied before the next entry."""


def log_unexpected_error(error: Exception) -> str:
    """Write the traceback of an unexpected error to the log, and return the message for the user."""
    message = redact(f"unexpected error: {type(error).__name__}: {error}")
    details = type(error).__name__
    # An exception whose own `__str__` fails is named by its class.
    with contextlib.suppress(Exception):
        details = redact("".join(traceback.format_exception(error)))
    path = home_directory() / LOG_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_large = path.exists() and path.stat().st_size > MAX_LOG_BYTES
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_large else os.O_APPEND)
        with os.fdopen(
            os.open(path, flags, 0o600), "a", encoding="utf-8", errors="replace"
        ) as file:
            file.write(
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, everthread {__version__}\n{details}\n"
            )
    except OSError:
        return f"{message}\n{details}"
    return f"{message}\nThe details are in {path}."
