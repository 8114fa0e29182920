"""Packages that come with an extra of Everthread (`pip install 'everthread[models]'`)."""

from __future__ import annotations

from importlib.util import find_spec

from everthread.errors import MissingPackageError


def require_package(name: str, *, extra: str) -> None:
    """Raise `MissingPackageError` if a package is not installed. It is not loaded yet."""
    if find_spec(name) is None:
        raise MissingPackageError(name, extra=extra)
