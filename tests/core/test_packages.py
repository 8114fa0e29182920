"""Packages that come with an extra."""

from __future__ import annotations

import pytest

from everthread.core.packages import require_package
from everthread.errors import MissingPackageError


def test_only_a_missing_package_is_an_error() -> None:
    missing = []
    for name in ("json", "no_such_package_anywhere"):
        try:
            require_package(name, extra="models")
        except MissingPackageError:
            missing.append(name)
    assert missing == ["no_such_package_anywhere"]


def test_a_missing_package_names_the_command_that_installs_it() -> None:
    with pytest.raises(
        MissingPackageError, match=r"pip install 'everthread\[models\]'"
    ):
        require_package("no_such_package_anywhere", extra="models")
