"""Load engines from the home directory: folders with `__init__.py` or `engine.py`, and optionally an `engine.toml`.

The code runs as a module whose private name is made from the path. So plug-ins with the same file names do not collide,
and `from . import helper` finds the plug-in's own files.
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

CODE_FILES = ("__init__.py", "engine.py")
ABOUT_FILE = "engine.toml"

_loading_lock = threading.RLock()


def list_plugins(folder: Path) -> Iterator[Path]:
    """Yield the plug-in directories in a folder, by name; nothing if the folder is missing."""
    try:
        plugins = sorted(
            entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] not in "._"
        )
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise EngineError(f"{folder}: cannot be read: {error.strerror or error}") from error
    yield from plugins


def describe_plugin(plugin: Path) -> tuple[str, str]:
    """Return the plug-in's description and the reason why it is unusable; either may be empty.

    Run none of its code.
    """
    if _find_code_file(plugin) is None:
        return "", f"holds neither {' nor '.join(CODE_FILES)}"
    try:
        description_fields = tomllib.loads((plugin / ABOUT_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError) as error:
        return "", f"its {ABOUT_FILE} cannot be read: {error}"
    name = description_fields.get("name", plugin.name)
    description = description_fields.get("description", "")
    if name != plugin.name:
        return (
            "",
            f"its {ABOUT_FILE} calls it {name!r}, its directory {plugin.name!r}: the two must be the same",
        )
    if not isinstance(description, str):
        return "", f"its {ABOUT_FILE} has a description that is not a text"
    return description, ""


def load_plugin(plugin: Path) -> ModuleType:
    """Return the plug-in's module, run once per process. Let exceptions of its code pass."""
    directory = plugin.resolve()
    name = f"_everthread_engine_{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    with _loading_lock:
        return sys.modules.get(name) or _run_code(name, directory)


def _find_code_file(plugin: Path) -> Path | None:
    """Return the plug-in's code file, or None."""
    return next((plugin / file for file in CODE_FILES if (plugin / file).is_file()), None)


def _run_code(name: str, plugin: Path) -> ModuleType:
    """Run a plug-in's code as a module of this name. Forget the module if the code fails."""
    code_path = str(_find_code_file(plugin) or plugin / CODE_FILES[0])
    loader = SourceFileLoader(name, code_path)
    # Either file is the package of the directory, so that relative imports work in both.
    spec = ModuleSpec(name, loader, origin=code_path, is_package=True)
    spec.submodule_search_locations = [str(plugin)]
    spec.has_location = True
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        # Forget a half-run module, so that it does not count as loaded the next time.
        for module_name in [
            key for key in sys.modules if key == name or key.startswith(f"{name}.")
        ]:
            del sys.modules[module_name]
        raise
    return module
