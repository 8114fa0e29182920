"""`everthread plugins [use NAME]`: which context engines there are, and which one is used."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from everthread.cli.output import console, print_json, visible
from everthread.compaction import registry
from everthread.compaction.engine import Services
from everthread.compaction.summary import SummaryDraft, SummaryRequest
from everthread.config import Config, config_path, home_directory, load_config
from everthread.config.file import set_keys
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.errors import EngineError, InputError, SummaryError

app = typer.Typer(help="Context engines: which there are, where they come from, which one is used.")


@app.callback(invoke_without_command=True)
def plugins(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """List the engines, where they come from and the active one. Runs none of their code."""
    if context.invoked_subcommand is not None:
        return
    home, active = home_directory(), load_config().context.engine
    engines = registry.list_engines(home=home, active=active)
    problem = _problem(active, home)
    if as_json:
        print_json({"active": active, "problem": problem, "engines": [dataclasses.asdict(info) for info in engines]})
        return
    names, sources = (max(map(len, column)) for column in zip(*((i.name, i.source) for i in engines), strict=True))
    for info in engines:
        mark = "*" if info.active else " "
        line = f"{mark} {info.name:<{names}}  {info.source:<{sources}}  {info.location}"
        _say(line.replace("\n", "␊"))  # a directory may be called anything; it takes one line
        if note := info.problem or info.description:
            _say(f"    {note}")
    _say(f"\nActive: {active}" if not problem else f"\nActive is {active}, which cannot be used: {problem}")


@app.command()
def use(name: Annotated[str, typer.Argument(help="An engine's name, as the list has it.")]) -> None:
    """Switch to another engine, if it can be loaded. Changes `context.engine` in config.yaml and nothing else."""
    home, config = home_directory(), load_config()
    try:
        source = registry.find_engine(name, home=home)
    except EngineError as error:
        raise InputError(str(error)) from error
    registry.create_engine(name, _trial(config), config.engines.get(source.name), home=home)
    changed = set_keys(config_path(), {"context.engine": name})
    _say(f"{source}: {'is used from now on' if changed else 'was in use already'}")


class _NoSummaries:
    """In a trial nothing is summarised."""

    name = "none"

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        raise SummaryError(f"nobody summarises the {len(request.messages)} messages of a trial")


def _trial(config: Config) -> Services:
    """Enough to make an engine and see that it can be made."""
    window = config.model.context_length or 128_000
    return Services(_NoSummaries(), TokenCounter(config.model.default), Budget.for_window(window), time.monotonic)


def _problem(active: str, home: Path) -> str:
    try:
        registry.find_engine(active, home=home)
    except EngineError as error:
        return str(error)
    return ""


def _say(text: str) -> None:
    console.print(Text(visible(text)), soft_wrap=True)
