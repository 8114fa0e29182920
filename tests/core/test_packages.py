"""Packages that come with an extra."""

from __future__ import annotations

import pytest

from everthread.core.packages import require_package
from everthread.errors import MissingPackageError


def test_an_installed_package_is_fine() -> None:
    require_package("json", extra="models")


def test_a_missing_package_names_the_command_that_installs_it() -> None:
    with pytest.raises(
        MissingPackageError, match=r"pip install 'everthread\[models\]'"
    ):
        require_package("no_such_package_anywhere", extra="models")
