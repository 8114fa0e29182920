"""`everthread config show|get|set|check|path`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from everthread.cli.output import print_json
from everthread.cli.shared_options import JsonOption
from everthread.config import Config, config_path, home_directory, load_config
from everthread.config.yaml_text import format_yaml, parse_yaml
from everthread.errors import ConfigError, EverthreadError, InputError

app = typer.Typer(help="The configuration: show, change and check it.", no_args_is_help=True)

FileArgument = Annotated[
    str | None,
    typer.Argument(help="A configuration file. Default: the one in the home."),
]


@app.command()
def show(
    file: FileArgument = None,
    as_json: JsonOption = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what differs from the defaults.")
    ] = False,
) -> None:
    """Print every setting in force."""
    values: dict[str, Any] = load_config(file).model_dump(mode="json", exclude_defaults=changed)
    if as_json:
        print_json(values)
    else:
        typer.echo(format_yaml(values))


@app.command("get")
def get_value(
    key: Annotated[str, typer.Argument(help="Its full path, such as `compression.threshold`.")],
    as_json: JsonOption = False,
) -> None:
    """Print the value of one key that is in force."""
    value: Any = load_config().model_dump(mode="json")
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            known_keys = f"; known here: {', '.join(value)}" if isinstance(value, dict) else ""
            raise InputError(f"{key}: there is no such key{known_keys}")
        value = value[part]
    if as_json:
        print_json(value)
    else:
        typer.echo(format_yaml(value))


@app.command("set")
def set_value(
    key: Annotated[str, typer.Argument(help="Its full path, such as `compression.threshold`.")],
    value: Annotated[str, typer.Argument(help="Its value in YAML; `null`: the default.")],
) -> None:
    """Set one key in config.yaml. Everything else in the file stays, comments too."""
    from everthread.compaction.registry import find_engine
    from everthread.config.file_edits import set_keys

    try:
        parsed_value = parse_yaml(value)
    except ValueError:
        parsed_value = value
    if key == "context.engine" and isinstance(parsed_value, str):
        find_engine(parsed_value, home=home_directory())
    known_problems = set(find_start_problems(load_config()))
    is_changed = set_keys(config_path(), {key: parsed_value})
    typer.echo(f"{config_path()}: {key} {'is' if is_changed else 'was already'} {value}")
    for problem in find_start_problems(load_config()):
        if problem not in known_problems:
            typer.echo(f"Needs attention: {problem}", err=True)


@app.command()
def check(file: FileArgument = None) -> None:
    """Check a configuration; list what would fail at start, and exit with 2 if anything would."""
    problems = list(find_start_problems(load_config(file)))
    path = file or str(config_path())
    if problems:
        raise ConfigError(
            "\n".join(
                [
                    f"{path}: can be read, but would fail at start:",
                    *(f"  {problem}" for problem in problems),
                ]
            )
        )
    typer.echo(
        f"{path}: fine" if file or config_path().exists() else f"{path}: not there, using defaults"
    )


def find_start_problems(config: Config) -> Iterator[str]:
    """Yield each problem that would fail at start: engine, auxiliary model, the gateway's address and upstreams."""
    from everthread.compaction.registry import find_engine
    from everthread.factory.model_setup import check_choice
    from everthread.factory.upstreams import add_keys, list_upstreams
    from everthread.gateway.site_policy import is_loopback

    try:
        find_engine(config.context.engine, home=home_directory())
    except EverthreadError as error:
        yield f"context.engine: {error}"
    writer = config.auxiliary.compression
    if writer.model and writer.provider != "main":
        choice, problem = check_choice(writer)
        if problem:
            needs_key = f"{writer.model} needs a key, and " if choice else ""
            yield f"auxiliary.compression: {needs_key}{problem}"
    gateway = config.gateway
    if gateway.auth == "none" and not is_loopback(gateway.host):
        yield (
            f"gateway.host: {gateway.host} can be reached from outside, and gateway.auth is none; "
            "set gateway.auth to keys or passthrough"
        )
    for upstream in gateway.upstreams:
        if upstream.api_key_env and not os.environ.get(upstream.api_key_env, "").strip():
            yield f"gateway.upstreams: {upstream.name} needs a key, and {upstream.api_key_env} is not set"
            return
    try:
        add_keys(list_upstreams(config), gateway.auth)
    except EverthreadError as error:
        yield f"gateway.upstreams: {error}"


@app.command()
def path() -> None:
    """Print the path of the configuration file."""
    typer.echo(str(config_path()))
