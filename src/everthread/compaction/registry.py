"""Find a context engine by the name in `context.engine`:

    1  <home>/plugins/context_engine/<name>/
    2  register_context_engine(), and entry points `everthread.context_engines` of installed packages
    3  built-ins

The first source that has the name is used. If that engine cannot be loaded, an error is raised; no other engine is
used instead. Names of built-ins are reserved. Only the engine that is created runs its code: finding and listing
engines run none. Code is never loaded from a project's folder, because a project can come from anywhere.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

from everthread.compaction.engine import ContextEngine, EngineFactory, Services
from everthread.compaction.home_plugins import (
    describe_plugin,
    list_plugins,
    load_plugin,
)
from everthread.errors import EngineError, InputError, UnknownEngineError

ENTRY_POINT_GROUP = "everthread.context_engines"
PLUGIN_FOLDER = Path("plugins", "context_engine")

BUILT_IN_ENGINES = {
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
RESERVED_NAMES = frozenset({*BUILT_IN_ENGINES, *ALIASES, *ALIASES.values()})

EngineOrigin = Literal["home", "registered", "package", "built-in"]

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_registered_factories: dict[str, EngineFactory] = {}


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine that was found, not loaded yet."""

    name: str
    origin: EngineOrigin
    location: str
    find_factory: Callable[[], object]
    """Loads the engine's code and returns its factory."""
    description: str = ""
    problem: str = ""
    """The reason why the engine is unusable, if that is known without running its code."""
    is_active: bool = False
    """Whether the configuration names this engine. Only `list_engines` sets it."""

    def load(self) -> EngineFactory:
        """Return the engine's factory. This runs the engine's code."""
        with _wrap_errors(f"{self} cannot be loaded"):
            factory = self.find_factory()
        if not callable(factory):
            raise EngineError(
                f"{self} cannot be loaded: its factory is a {type(factory).__name__}, not a function"
            )
        return cast("EngineFactory", factory)

    def __str__(self) -> str:
        return f"the context engine {self.name!r} ({self.origin}: {self.location})"


def register_context_engine(name: str, factory: EngineFactory) -> None:
    """Register an engine under a name. It is used only if `context.engine` names it."""
    if problem := _find_name_problem(name):
        raise EngineError(f"the context engine {name!r} cannot be registered: {problem}")
    if not callable(factory):
        raise EngineError(
            f"the context engine {name!r} cannot be registered: {factory!r} is not a function"
        )
    if _registered_factories.setdefault(name, factory) is not factory:
        raise EngineError(
            f"a context engine {name!r} is registered already: {_registered_factories[name]!r}"
        )


def create_engine(
    name: str,
    services: Services,
    options: Mapping[str, Any] | None = None,
    *,
    home: Path,
) -> ContextEngine:
    """Create the engine of this name for one conversation."""
    found_engine = find_engine(name, home=home)
    factory = found_engine.load()
    with _wrap_errors(f"{found_engine} cannot be made"):
        engine: object = factory(services, dict(options or {}))
    if not isinstance(engine, ContextEngine):
        raise EngineError(
            f"{found_engine} cannot be used: its factory gave a {type(engine).__name__}, not a ContextEngine"
        )
    if inspect.iscoroutinefunction(engine.should_compress):
        # It would return a coroutine, which is always true.
        raise EngineError(f"{found_engine} cannot be used: should_compress must not be async")
    return engine


def find_engine(name: str, *, home: Path) -> FoundEngine:
    """Find the engine of this name. If there is none, raise an `EngineError` that names the locations searched."""
    if name in RESERVED_NAMES:
        return _find_built_in(name)
    if problem := _find_name_problem(name):
        raise UnknownEngineError(f"{name!r} is not the name of a context engine: {problem}")
    search_notes = []
    for location, found_engines in _list_search_locations(home):
        found_engine = next(
            (found_engine for found_engine in found_engines if found_engine.name == name), None
        )
        if found_engine is None:
            search_notes.append(f"{location}: none of this name")
        elif found_engine.problem:
            raise EngineError(f"{found_engine} cannot be used: {found_engine.problem}")
        else:
            return found_engine
    search_text = "".join(f"\n  {line}" for line in search_notes)
    raise UnknownEngineError(f"there is no context engine {name!r}; looked in{search_text}")


def list_engines(*, home: Path, active: str = "compressor") -> list[FoundEngine]:
    """List every available engine, in the order in which names are looked up, without running any engine's code."""
    active_name = ALIASES.get(active, active)
    first_locations: dict[str, str] = {}
    engines = []
    for found_engine in chain.from_iterable(
        found_engines for _, found_engines in _list_search_locations(home)
    ):
        is_built_in = found_engine.origin == "built-in"
        name_problem = "" if is_built_in else _find_name_problem(found_engine.name)
        is_found_first = False
        if name_problem:
            problem = f"never used: {name_problem}"
        else:
            first_location = first_locations.setdefault(found_engine.name, found_engine.location)
            is_found_first = first_location == found_engine.location
            hidden = "" if is_found_first else f"hidden by {first_location}"
            problem = found_engine.problem or hidden
        engines.append(
            replace(
                found_engine,
                problem=problem,
                is_active=is_found_first and found_engine.name == active_name,
            )
        )
    return engines


def _find_name_problem(name: str) -> str:
    """Return the reason why plug-ins cannot use this engine name, or an empty string if they can."""
    if name in RESERVED_NAMES:
        return "the name is reserved for the built-in engine"
    if not _NAME_PATTERN.fullmatch(name):
        return "a name has letters, digits, `_`, `-` and `.`, begins with a letter or digit and is not long"
    return ""


def _list_search_locations(home: Path) -> Iterator[tuple[str, Iterator[FoundEngine]]]:
    """Yield each location in which engines are looked up, as text, with the engines found there."""
    folder = home / PLUGIN_FOLDER
    yield str(folder), _list_home_engines(folder)
    yield "register_context_engine()", _list_registered_engines()
    yield (
        f"entry points {ENTRY_POINT_GROUP!r} of installed packages",
        _list_package_engines(),
    )
    yield (
        f"built-ins ({', '.join(BUILT_IN_ENGINES)})",
        map(_find_built_in, BUILT_IN_ENGINES),
    )


def _list_home_engines(folder: Path) -> Iterator[FoundEngine]:
    """Yield the engines in the home's plug-in folder."""
    for plugin in list_plugins(folder):
        description, problem = describe_plugin(plugin)
        yield FoundEngine(
            plugin.name,
            "home",
            location=str(plugin),
            find_factory=partial(_load_factory, plugin),
            description=description,
            problem=problem,
        )


def _load_factory(plugin: Path) -> object:
    """Load a plug-in and return its `create` function."""
    module = load_plugin(plugin)
    if not hasattr(module, "create"):
        raise EngineError(f"{module.__file__} has no create(services, options)")
    return module.create


def _list_registered_engines() -> Iterator[FoundEngine]:
    """Yield the engines that were registered by `register_context_engine`."""
    for name, factory in _registered_factories.items():
        location = f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', repr(factory))}"
        yield FoundEngine(
            name,
            "registered",
            location,
            partial(_registered_factories.__getitem__, name),
        )


def _list_package_engines() -> Iterator[FoundEngine]:
    """Yield the engines that installed packages offer. A name offered by two packages is unusable."""
    entry_point_list = sorted(
        entry_points(group=ENTRY_POINT_GROUP),
        key=lambda entry_point: (entry_point.name, entry_point.value),
    )
    offered_names = Counter(point.name for point in entry_point_list)
    for point in entry_point_list:
        found_engine = _make_found_engine(point, "package")
        if offered_names[point.name] > 1:
            offering_packages = ", ".join(
                _describe_location(other_entry_point)
                for other_entry_point in entry_point_list
                if other_entry_point.name == point.name
            )
            found_engine = replace(
                found_engine,
                problem=f"several packages offer this name: {offering_packages}",
            )
        yield found_engine


def _find_built_in(name: str) -> FoundEngine:
    """Return the built-in engine of this name or alias."""
    name = ALIASES.get(name, name)
    if name not in BUILT_IN_ENGINES:
        raise EngineError(
            f"the context engine {name!r} is a built-in that this version does not have"
        )
    factory, description = BUILT_IN_ENGINES[name]
    return replace(
        _make_found_engine(EntryPoint(name, factory, ENTRY_POINT_GROUP), "built-in"),
        description=description,
    )


def _make_found_engine(entry_point: EntryPoint, origin: EngineOrigin) -> FoundEngine:
    return FoundEngine(entry_point.name, origin, _describe_location(entry_point), entry_point.load)


def _describe_location(entry_point: EntryPoint) -> str:
    if entry_point.dist:
        return f"{entry_point.value} of {entry_point.dist.name} {entry_point.dist.version}"
    return entry_point.value


@contextmanager
def _wrap_errors(failed_action: str) -> Iterator[None]:
    """Raise any exception of an engine's code as an `EngineError`; let an `InputError` pass unchanged."""
    try:
        yield
    except InputError:
        raise
    except EngineError as error:
        raise EngineError(f"{failed_action}: {error}") from error
    except (Exception, SystemExit) as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<")
        ]
        code_location = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
        raise EngineError(
            f"{failed_action}: {type(error).__name__}: {error}{code_location}"
        ) from error
