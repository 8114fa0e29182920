"""Which window a command reckons with."""

from __future__ import annotations

from everthread.config import load_config

DEFAULT_WINDOW = 128_000


def window_or_default(asked: int | None) -> tuple[int, str]:
    """The window and where it comes from: the option, the configuration, or the default."""
    if asked is not None:
        return asked, "option"
    configured = load_config().model.context_length
    return (configured, "configuration") if configured else (DEFAULT_WINDOW, "default")
