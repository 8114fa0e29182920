"""Check that a framework is installed, new enough and has the hook that its integration uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import metadata


@contextlib.contextmanager
def guard_framework_imports(
    package: str, min_version: str, extra: str, hook: str
) -> Iterator[None]:
    """Wrap imports from a framework. Raise `ImportError` with advice if it is missing, too old or lacks the hook."""
    install_command = f"pip install 'everthread[{extra}]'"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        message = f"everthread.integrations needs the package {package}, which is not installed: {install_command}"
        raise ImportError(message, name=package) from None
    if _parse_version(version) < _parse_version(min_version):
        message = (
            f"{package} {version} is installed; everthread.integrations needs "
            f"{min_version} or newer for {hook}: {install_command}"
        )
        raise ImportError(message, name=package)
    try:
        yield
    except ImportError as error:
        message = f"{package} {version} has no {hook} ({error}); install the version that was tested: {install_command}"
        raise ImportError(message, name=package) from error


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:3])
