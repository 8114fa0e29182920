"""Turn errors of a file that a command writes into one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everthread.errors import InputError


@contextmanager
def explain_write_errors(file: str) -> Iterator[None]:
    """Turn an `OSError` inside the block into an `InputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror or error}") from error
