"""`everthread init`: the first configuration, by questions or by flags, and a look at whether it works."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from everthread.cli.commands.doctor import doctor
from everthread.cli.output import visible
from everthread.config import config_path, load_config
from everthread.config.file import set_keys
from everthread.errors import InputError
from everthread.providers.resolve import ANTHROPIC, OPENAI, OPENROUTER
from everthread.providers.resolve import ProviderEntry as Served

KNOWN = {provider.name: provider for provider in (OPENAI, ANTHROPIC, OPENROUTER)}
CHOICES = (*KNOWN, "local", "custom")


def init(
    provider: Annotated[
        str | None, typer.Option(help="openai, anthropic, openrouter, local, or custom (with --base-url).")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model's name there.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the key.")
    ] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", metavar="URL", help="Where its API is.")] = None,
    gateway: Annotated[
        bool | None,
        typer.Option("--gateway/--no-gateway", help="Also put the gateway (`everthread serve`) in front of it."),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Run `everthread doctor` afterwards.")] = True,
) -> None:
    """Set up: which model, under which key, and what the gateway stands in front of. What is not given is asked for.

    Writes config.yaml, keeping what stands there; the key itself stays in the environment.
    """
    ask = sys.stdin.isatty()
    name = _provider(provider, base_url, ask=ask)
    served = KNOWN.get(name)
    if name == "custom" and not base_url:
        base_url = _asked("Where is its API (such as http://localhost:8000/v1)?", None, ask=ask, flag="--base-url")
    model = model or _asked("Which model?", _default_model(name, served), ask=ask, flag="--model")
    if api_key_env is None and ask and name != "local":
        usual = served.key_env if served else ""
        api_key_env = typer.prompt("Which environment variable holds its key?", default=usual) or None
    if gateway is None:
        gateway = name != "local" and ask and typer.confirm("Put the gateway in front of it, for other programs?")
    set_keys(config_path(), _keys(name, model, base_url, api_key_env, served, gateway=gateway))
    load_config()
    typer.echo(visible(f"{config_path()}: written; {name} serves {model}"))
    if gateway:
        typer.echo("Start the gateway with `everthread serve`; it prints the address to give to other programs.")
    if check:
        typer.echo("")
        doctor()


def _keys(
    name: str, model: str, base_url: str | None, api_key_env: str | None, served: Served | None, *, gateway: bool
) -> dict[str, Any]:
    keys: dict[str, Any] = {"model.default": model, "model.provider": name}
    if base_url:
        keys["model.base_url"] = base_url
    if api_key_env and (served is None or api_key_env != served.key_env):
        keys["model.api_key_env"] = api_key_env
    url = base_url or (served.base_url if served else None)
    known = [upstream.name for upstream in load_config().gateway.upstreams]
    if gateway and url and name not in known:
        given: list[dict[str, Any]] = [one.model_dump(exclude_defaults=True) for one in load_config().gateway.upstreams]
        keys["gateway.upstreams"] = [*map(_plain, given), {"name": name, "url": url}]
    return keys


def _plain(upstream: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in upstream.items()}


def _provider(given: str | None, base_url: str | None, *, ask: bool) -> str:
    """The one that is named; else `custom` for an address, else the first whose key is there, else the question."""
    if given is not None:
        if given not in CHOICES:
            raise InputError(f"--provider {given!r} is not known; known are {', '.join(CHOICES)}")
        return given
    present = next((name for name, one in KNOWN.items() if os.environ.get(one.key_env, "").strip()), None)
    likely = "custom" if base_url else present
    if not ask:
        if likely is None:
            raise InputError(f"--provider is needed where nobody can be asked: one of {', '.join(CHOICES)}")
        return likely
    while True:
        typed = str(typer.prompt(f"Who serves the model ({', '.join(CHOICES)})?", default=likely or "openai")).strip()
        if typed in CHOICES:
            return typed
        typer.echo(f"One of {', '.join(CHOICES)}, please.")


def _default_model(name: str, served: Served | None) -> str | None:
    from everthread.providers.local import SMOLLM2

    return SMOLLM2.name if name == "local" else served.default if served else None


def _asked(question: str, default: str | None, *, ask: bool, flag: str) -> str:
    if ask:
        return str(typer.prompt(question, default=default)).strip()
    if default is None:
        raise InputError(f"{flag} is needed where nobody can be asked")
    return default
