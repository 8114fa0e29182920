"""Which engine: `context.engine` names it, and here is where a name is looked up.

    1  <home>/plugins/context_engine/<name>/
    2  register_context_engine(), and entry points `everthread.context_engines` of installed packages
    3  built-ins

Code is never loaded from a project's folder: a project can come from anywhere.

The first place that has the name decides: an engine found there that cannot be loaded is an error, never a reason to
take another one. Names of built-ins are reserved and looked up in the last place only. Looking and listing run no
code of an engine; that happens when an engine that was named is loaded.

An engine in the home is a directory: `__init__.py` or `engine.py`, and for the list an optional `engine.toml`. Its code
runs under a private module name made from the path: two plugins with the same file names do not meet, and
`from . import helper` finds the plugin's own files.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import threading
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from everthread.compaction.engine import ContextEngine, EngineFactory, Services
from everthread.errors import EngineError, InputError

GROUP = "everthread.context_engines"
PLUGINS = Path("plugins", "context_engine")

BUILT_IN = {
    "compressor": (
        "everthread.compaction.compressor:create",
        "Keeps the start and the recent end, and a checked summary of what was between.",
    ),
    "lossless": (
        "everthread.compaction.lossless:create",
        "Covers the past with a graph of summaries; the model can search and read every original.",
    ),
}
ALIASES = {"lcm": "lossless"}
RESERVED = frozenset({*BUILT_IN, *ALIASES, *ALIASES.values()})

Origin = Literal["home", "registered", "package", "built-in"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_registered: dict[str, EngineFactory] = {}


@dataclass(frozen=True, slots=True)
class EngineSource:
    """Where an engine comes from. `problem`: why it cannot be used, as far as that shows without running it."""

    name: str
    source: Origin
    location: str
    find_factory: Callable[[], object]
    description: str = ""
    problem: str = ""

    def load(self) -> EngineFactory:
        """The engine's factory. Runs the engine's code."""
        with _wrap_errors(f"{self} cannot be loaded"):
            factory = self.find_factory()
        if not callable(factory):
            raise EngineError(f"{self} cannot be loaded: its factory is a {type(factory).__name__}, not a function")
        return cast("EngineFactory", factory)

    def __str__(self) -> str:
        return f"the context engine {self.name!r} ({self.source}: {self.location})"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One line of the list of engines. `active`: it is the one the configuration names."""

    name: str
    source: Origin
    location: str
    active: bool
    problem: str
    description: str


def register_context_engine(name: str, factory: EngineFactory) -> None:
    """Offer an engine under a name. It is used only where `context.engine` says so."""
    if problem := _name_problem(name):
        raise EngineError(f"the context engine {name!r} cannot be registered: {problem}")
    if not callable(factory):
        raise EngineError(f"the context engine {name!r} cannot be registered: {factory!r} is not a function")
    if _registered.setdefault(name, factory) is not factory:
        raise EngineError(f"a context engine {name!r} is registered already: {_registered[name]!r}")


def create_engine(
    name: str,
    services: Services,
    options: Mapping[str, Any] | None = None,
    *,
    home: Path,
) -> ContextEngine:
    """The engine of this name, made for one conversation."""
    source = find_engine(name, home=home)
    factory = source.load()
    with _wrap_errors(f"{source} cannot be made"):
        engine: object = factory(services, dict(options or {}))
    if not isinstance(engine, ContextEngine):
        raise EngineError(f"{source} cannot be used: its factory gave a {type(engine).__name__}, not a ContextEngine")
    if inspect.iscoroutinefunction(engine.should_compress):
        # Its answer would be a coroutine, and that is always true.
        raise EngineError(f"{source} cannot be used: should_compress must not be async")
    return engine


def find_engine(name: str, *, home: Path) -> EngineSource:
    """Where the engine of this name comes from; `EngineError` tells where it was looked for and why it is not used."""
    if name in RESERVED:
        return _built_in(name)
    if problem := _name_problem(name):
        raise EngineError(f"{name!r} is no name of a context engine: {problem}")
    looked = []
    for location, offers in _places(home):
        source = next((offer for offer in offers if offer.name == name), None)
        if source is None:
            looked.append(f"{location}: none of this name")
        elif source.problem:
            raise EngineError(f"{source} cannot be used: {source.problem}")
        else:
            return source
    places = "".join(f"\n  {line}" for line in looked)
    raise EngineError(f"there is no context engine {name!r}; looked in{places}")


def list_engines(*, home: Path, active: str = "compressor") -> list[EngineInfo]:
    """Every engine on offer, in the order in which names are looked up. Runs no code of theirs."""
    active = ALIASES.get(active, active)
    first: dict[str, str] = {}
    listed = []
    for offer in (offer for _, offers in _places(home) for offer in offers):
        problem = offer.problem
        if offer.source != "built-in" and (wrong := _name_problem(offer.name)):
            problem = f"never used: {wrong}"
        else:
            chosen = first.setdefault(offer.name, offer.location)
            problem = problem or ("" if chosen == offer.location else f"hidden by {chosen}")
        mine = first.get(offer.name) == offer.location and offer.name == active
        listed.append(EngineInfo(offer.name, offer.source, offer.location, mine, problem, offer.description))
    return listed


def _name_problem(name: str) -> str:
    """Why nobody may offer an engine of this name; empty if one may."""
    if name in RESERVED:
        return "the name is reserved for the built-in engine"
    if not _NAME.fullmatch(name):
        return "a name has letters, digits, `_`, `-` and `.`, begins with a letter or digit and is not long"
    return ""


# The places, in the order in which a name is looked up


def _places(home: Path) -> Iterator[tuple[str, Iterator[EngineSource]]]:
    folder = home / PLUGINS
    yield str(folder), _directories(folder)
    yield "register_context_engine()", _in_this_process()
    yield f"entry points {GROUP!r} of installed packages", _packages()
    yield f"built-ins ({', '.join(BUILT_IN)})", map(_built_in, BUILT_IN)


def _directories(folder: Path) -> Iterator[EngineSource]:
    for plugin in plugins_in(folder):
        description, problem = describe_plugin(plugin)
        yield EngineSource(plugin.name, "home", str(plugin), partial(_create_of, plugin), description, problem)


def _create_of(plugin: Path) -> object:
    module = load_plugin(plugin)
    if not hasattr(module, "create"):
        raise EngineError(f"{module.__file__} has no create(services, options)")
    return module.create


def _in_this_process() -> Iterator[EngineSource]:
    for name, factory in _registered.items():
        location = f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', repr(factory))}"
        yield EngineSource(name, "registered", location, partial(_registered.__getitem__, name))


def _packages() -> Iterator[EngineSource]:
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    often = Counter(point.name for point in points)
    for point in points:
        offer = _entry_point(point, "package")
        if often[point.name] > 1:
            owners = ", ".join(_location(other) for other in points if other.name == point.name)
            offer = replace(offer, problem=f"several packages offer this name: {owners}")
        yield offer


def _built_in(name: str) -> EngineSource:
    name = ALIASES.get(name, name)
    if name not in BUILT_IN:
        raise EngineError(f"the context engine {name!r} is a built-in that this version does not have")
    factory, description = BUILT_IN[name]
    return replace(_entry_point(EntryPoint(name, factory, GROUP), "built-in"), description=description)


def _entry_point(point: EntryPoint, source: Origin) -> EngineSource:
    return EngineSource(point.name, source, _location(point), point.load)


def _location(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist else point.value


# Code of others


@contextmanager
def _wrap_errors(failing: str) -> Iterator[None]:
    """What an engine's code raises, of whatever kind, as an `EngineError`; a refused option keeps its own error."""
    try:
        yield
    except InputError:
        raise
    except EngineError as error:
        raise EngineError(f"{failing}: {error}") from error
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
        raise EngineError(f"{failing}: {type(error).__name__}: {error}{where}") from error


# --- engines in the home ----------------------------------------------------------------------------------------------


CODE = ("__init__.py", "engine.py")
ABOUT = "engine.toml"

_loading = threading.RLock()


def plugins_in(folder: Path) -> Iterator[Path]:
    """The directories in a folder of plugins, by name; nothing where there is no such folder."""
    try:
        plugins = sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] not in "._")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise EngineError(f"{folder}: cannot be read: {error.strerror or error}") from error
    yield from plugins


def describe_plugin(plugin: Path) -> tuple[str, str]:
    """What the plugin says of itself and why it cannot be used, either may be empty. Runs none of its code."""
    if _code(plugin) is None:
        return "", f"holds neither {' nor '.join(CODE)}"
    try:
        about = tomllib.loads((plugin / ABOUT).read_text("utf-8"))
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError) as error:
        return "", f"its {ABOUT} cannot be read: {error}"
    name, description = about.get("name", plugin.name), about.get("description", "")
    if name != plugin.name:
        return "", f"its {ABOUT} calls it {name!r}, its directory {plugin.name!r}: the two must be the same"
    if not isinstance(description, str):
        return "", f"its {ABOUT} has a description that is no text"
    return description, ""


def load_plugin(plugin: Path) -> ModuleType:
    """The plugin's module, run once in a process. What its code raises comes out as it is."""
    directory = plugin.resolve()
    name = f"_everthread_engine_{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
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
        # What half ran must not be taken for loaded the next time.
        for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module
