"""Packages that come with an extra."""

from __future__ import annotations

import pytest

from everthread.core.packages import require_package
from everthread.errors import MissingPackageError


def test_accepts_an_installed_package() -> None:
    missing = []
    for name in ("json", "no_such_package_anywhere"):
        try:
            require_package(name, extra="models")
        except MissingPackageError:
            missing.append(name)
    assert missing == ["no_such_package_anywhere"]


def test_missing_package_error_names_the_install_command() -> None:
    with pytest.raises(MissingPackageError, match=r"pip install 'everthread\[models\]'"):
        require_package("no_such_package_anywhere", extra="models")
