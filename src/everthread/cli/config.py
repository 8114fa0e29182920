"""`everthread config show|check|path`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml

from everthread.cli.output import print_json
from everthread.config import config_path, load_config

app = typer.Typer(
    help="The configuration: what is in force, whether a file is right, where it is.", no_args_is_help=True
)

Source = Annotated[str | None, typer.Argument(help="A configuration file. Default: the one in the home.")]


@app.command()
def show(
    file: Source = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
) -> None:
    """Print every setting in force."""
    values: dict[str, Any] = load_config(file).model_dump(mode="json", exclude_defaults=changed)
    if as_json:
        print_json(values)
    else:
        typer.echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip())


@app.command()
def check(file: Source = None) -> None:
    """Say whether a configuration can be used; exit code 2 and the reasons when not."""
    load_config(file)
    place = file or str(config_path())
    typer.echo(f"{place}: fine" if file or config_path().exists() else f"{place}: absent, every default is in force")


@app.command()
def path() -> None:
    """Print where the configuration is read from."""
    typer.echo(str(config_path()))
