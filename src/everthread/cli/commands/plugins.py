"""`everthread plugins [list|use NAME]`: which context engines there are, and which one is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from everthread.cli.formats import shorten_path
from everthread.cli.output import console, indent_further_lines, print_json, print_text
from everthread.cli.shared_options import JsonOption
from everthread.compaction import registry
from everthread.config import config_path, home_directory, load_config
from everthread.config.file_edits import set_keys
from everthread.errors import EngineError
from everthread.factory.engine_choice import EngineChoice

app = typer.Typer(help="Context engines: list them, and choose one.")


@app.callback(invoke_without_command=True)
def plugins(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the engines, where they come from and the active one. Runs none of their code."""
    if context.invoked_subcommand is None:
        list_engines(as_json=as_json)


@app.command("list")
def list_engines(as_json: JsonOption = False) -> None:
    """List the engines, where they come from and the active one. Runs none of their code."""
    home = home_directory()
    active_engine = load_config().context.engine
    engines = registry.list_engines(home=home, active=active_engine)
    problem = _find_problem(active_engine, home)
    if as_json:
        print_json(
            {
                "active": active_engine,
                "problem": problem,
                "engines": [_describe_engine(engine) for engine in engines],
            }
        )
        return
    name_width = max(len(engine.name) for engine in engines)
    source_width = max(len(engine.origin) for engine in engines)
    for engine in engines:
        mark = "*" if engine.is_active else " "
        line_start = f"{mark} {engine.name:<{name_width}}  {engine.origin:<{source_width}}  "
        line = f"{line_start}{shorten_path(str(engine.location), console.width - len(line_start))}"
        # A directory may be called anything; it takes one line.
        print_text(line.replace("\n", "␊"))
        if note := engine.problem or engine.description:
            print_text(f"    {indent_further_lines(note, indent=4)}")
    if problem:
        print_text(f"\nActive is {active_engine}, which cannot be used: {problem}")
    else:
        print_text(f"\nActive: {active_engine}")


@app.command()
def use(
    name: Annotated[str, typer.Argument(help="An engine's name, as `list` shows it.")],
) -> None:
    """Switch to another engine, if it can be loaded. Changes `context.engine` in config.yaml and nothing else."""
    home = home_directory()
    config = load_config()
    source = registry.find_engine(name, home=home)
    EngineChoice(name, config.engines.get(source.name, {})).check()
    is_changed = set_keys(config_path(), {"context.engine": name})
    print_text(f"{source}: {'is used from now on' if is_changed else 'was in use already'}")


def _describe_engine(engine: registry.FoundEngine) -> dict[str, Any]:
    return {
        "name": engine.name,
        "source": engine.origin,
        "location": engine.location,
        "active": engine.is_active,
        "problem": engine.problem,
        "description": engine.description,
    }


def _find_problem(active_engine: str, home: Path) -> str:
    try:
        registry.find_engine(active_engine, home=home)
    except EngineError as error:
        return str(error)
    return ""
