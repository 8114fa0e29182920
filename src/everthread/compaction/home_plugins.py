"""Engines in the home: a directory with `__init__.py` or `engine.py`, and for the list an optional `engine.toml`.

The code runs under a private module name made from the path: two plug-ins with the same file names do not collide, and
`from . import helper` finds the plug-in's own files.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import tomllib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from everthread.errors import EngineError

CODE = ("__init__.py", "engine.py")
ABOUT = "engine.toml"

_loading = threading.RLock()


def plugins_in(folder: Path) -> Iterator[Path]:
    """Yield the directories in a folder of plug-ins, by name; nothing if the folder is missing."""
    try:
        plugins = sorted(
            entry
            for entry in folder.iterdir()
            if entry.is_dir() and entry.name[0] not in "._"
        )
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise EngineError(
            f"{folder}: cannot be read: {error.strerror or error}"
        ) from error
    yield from plugins


def describe_plugin(plugin: Path) -> tuple[str, str]:
    """Return the plug-in's description and the reason why it is unusable; either may be empty.

    Run none of its code.
    """
    if _code(plugin) is None:
        return "", f"holds neither {' nor '.join(CODE)}"
    try:
        about = tomllib.loads((plugin / ABOUT).read_text("utf-8"))
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError) as error:
        return "", f"its {ABOUT} cannot be read: {error}"
    name = about.get("name", plugin.name)
    description = about.get("description", "")
    if name != plugin.name:
        return (
            "",
            f"its {ABOUT} calls it {name!r}, its directory {plugin.name!r}: the two must be the same",
        )
    if not isinstance(description, str):
        return "", f"its {ABOUT} has a description that is no text"
    return description, ""


def load_plugin(plugin: Path) -> ModuleType:
    """Return the plugin's module, run once per process. Do not wrap exceptions of its code."""
    directory = plugin.resolve()
    name = (
        f"_everthread_engine_{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    )
    with _loading:
        return sys.modules.get(name) or _run(name, directory)


def _code(plugin: Path) -> Path | None:
    return next((plugin / file for file in CODE if (plugin / file).is_file()), None)


def _run(name: str, plugin: Path) -> ModuleType:
    code = str(_code(plugin) or plugin / CODE[0])
    loader = SourceFileLoader(name, code)
    # Either file is the package of the directory, so that relative imports work in both.
    spec = ModuleSpec(name, loader, origin=code, is_package=True)
    spec.submodule_search_locations = [str(plugin)]
    spec.has_location = True
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        # Forget a half-run module, so that it does not count as loaded the next time.
        for loaded in [
            key for key in sys.modules if key == name or key.startswith(f"{name}.")
        ]:
            del sys.modules[loaded]
        raise
    return module
