"""Projects whose plugins may run, because the user said so.

A project can come from anywhere (a clone, an archive), and loading an engine runs its code. Trust is given to the
project's real path. Each trusted project has a file of its own in the home, named by the path's hash and holding the
path: giving trust to one never touches another, and a file that holds anything else, or cannot be read, trusts nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

FOLDER = "trusted_projects"


def is_trusted(home: Path, project: Path) -> bool:
    """Whether the user trusted the project at this real path."""
    try:
        return _file(home, project).read_bytes() == _identity(project)
    except OSError:
        return False


def trust(home: Path, project: Path) -> None:
    """From now on the project's plugins may run."""
    file = _file(home, project)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(_identity(project))


def revoke(home: Path, project: Path) -> bool:
    """From now on they may not. False: they could not before either."""
    trusted = is_trusted(home, project)
    _file(home, project).unlink(missing_ok=True)
    return trusted


def _file(home: Path, project: Path) -> Path:
    return home / FOLDER / hashlib.sha256(_identity(project)).hexdigest()


def _identity(project: Path) -> bytes:
    return os.fsencode(os.path.realpath(project))
