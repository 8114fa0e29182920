"""`everthread init`: ask for the model, its key and the gateway, and write the first configuration."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from everthread.cli.commands.doctor.doctor_command import doctor
from everthread.cli.output import indent_further_lines, print_text
from everthread.cli.summary_writer import describe_own_writer
from everthread.config import config_path, home_directory, load_config
from everthread.config.file_edits import set_keys
from everthread.errors import InputError
from everthread.providers.local import SMOLLM2, download_model, is_intact
from everthread.providers.model_choice import ANTHROPIC, GEMINI, OPENAI, OPENROUTER, ProviderEntry

PROVIDERS_BY_NAME = {
    provider.name: provider for provider in (OPENAI, ANTHROPIC, OPENROUTER, GEMINI)
}


MODEL_HINTS = {
    name: f"{entry.default_model}, or another of its models"
    for name, entry in PROVIDERS_BY_NAME.items()
} | {
    "local": f"a small model on this machine: no key, {SMOLLM2.size // 1_000_000} MB, for trying out only",
    "custom": "a server of your own, such as Ollama, vLLM or llama.cpp",
}


NO_KEY = "none"
ProviderOption = Annotated[
    str | None,
    typer.Option(help="openai, anthropic, openrouter, gemini, local, or custom (with --base-url)."),
]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="The model's name there.")]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help="The environment variable that holds the key.",
    ),
]
BaseUrlOption = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Address of its API.")
]
GatewayOption = Annotated[
    bool | None,
    typer.Option(
        "--gateway/--no-gateway",
        help="Also put the gateway (`everthread serve`) in front of it.",
    ),
]
CheckOption = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Run `everthread doctor` afterwards."),
]


def init(
    provider: ProviderOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    base_url: BaseUrlOption = None,
    gateway: GatewayOption = None,
    check: CheckOption = True,
) -> None:
    """Set up the model, its key and the gateway. Missing options are asked for.

    Writes config.yaml, keeping its other settings; the key itself stays in the environment.
    """
    can_ask = sys.stdin.isatty()
    name = _choose_provider(provider, base_url, can_ask=can_ask)
    entry = PROVIDERS_BY_NAME.get(name)
    if name == "custom" and not base_url:
        question = "What is the address of its API (such as http://localhost:8000/v1)?"
        base_url = _ask(question, None, can_ask=can_ask, flag="--base-url")
    if name == "local":
        model = model or SMOLLM2.name
    elif not model:
        default_model = entry.default_model if entry else None
        model = _ask("Which model?", default_model, can_ask=can_ask, flag="--model")
    if api_key_env is None and can_ask and name != "local":
        api_key_env = _ask_key_variable(entry.key_env if entry else NO_KEY)
    if gateway is None:
        question = "Let other programs use it through `everthread serve`?"
        gateway = name != "local" and can_ask and typer.confirm(question, prompt_suffix=" ")
    settings = _make_settings(
        name,
        model,
        base_url=base_url,
        api_key_env=api_key_env,
        entry=entry,
        with_gateway=gateway,
    )
    set_keys(config_path(), settings)
    writer = describe_own_writer(load_config(), model)
    routes = {"custom": f"at {base_url}", "local": "on this machine"}
    route = routes.get(name, f"through {name}")
    print_text(
        f"Written: {config_path()}\n{model} is reached {route}.\nSummaries: written by {writer}."
    )
    if name == "local" and can_ask and find_spec("xllamacpp") is not None:
        _offer_download()
    if gateway:
        print_text(
            "Start the gateway with `everthread serve`; it prints the address to give to other programs."
        )
    if check:
        typer.echo("")
        doctor()
        print_text("Next: `everthread chat`.")


def _ask_key_variable(default: str) -> str | None:
    """Ask for the environment variable that holds the key; None if the provider needs no key."""
    question = "Which environment variable holds its key?"
    reply = str(typer.prompt(question, default=default, prompt_suffix=" ")).strip()
    return None if reply == NO_KEY else reply


def _offer_download() -> None:
    """Download the small model if it is missing and the user wants it."""
    home = home_directory()
    if is_intact(SMOLLM2.path(home)):
        return
    question = f"Download it now, about {SMOLLM2.size // 1_000_000} MB?"
    if typer.confirm(question, default=True, prompt_suffix=" "):
        download_model(home, report=lambda words: print_text((words, "dim")))


def _make_settings(
    name: str,
    model: str,
    *,
    base_url: str | None,
    api_key_env: str | None,
    entry: ProviderEntry | None,
    with_gateway: bool,
) -> dict[str, Any]:
    """Return the settings to write. Settings of the previous model, such as its address, are cleared."""
    config = load_config()
    is_usual_key = entry is not None and api_key_env == entry.key_env
    values: dict[str, Any] = {
        "default": model,
        "provider": name,
        "base_url": base_url,
        "api_key_env": None if is_usual_key else api_key_env,
    }
    if (config.model.default, config.model.provider) != (model, name):
        values |= {"context_length": None, "max_tokens": None}
    settings = {
        f"model.{key}": value
        for key, value in values.items()
        if value is not None or getattr(config.model, key) is not None
    }
    url = base_url or (entry.base_url if entry else None)
    upstreams = config.gateway.upstreams
    if with_gateway and url and name not in [upstream.name for upstream in upstreams]:
        upstream_values = [
            upstream.model_dump(mode="json", exclude_defaults=True) for upstream in upstreams
        ]
        settings["gateway.upstreams"] = [*upstream_values, {"name": name, "url": url}]
    return settings


def _choose_provider(option: str | None, base_url: str | None, *, can_ask: bool) -> str:
    """Return the given provider, or else guess it from the address and the keys in the environment, or ask."""
    if option is not None:
        if option not in MODEL_HINTS:
            raise InputError(
                f"--provider {option!r} is unknown; use one of: {', '.join(MODEL_HINTS)}"
            )
        return option
    guess = "custom" if base_url else _find_provider_with_key()
    if not can_ask:
        if guess is None:
            raise InputError(
                f"--provider is needed without a terminal: one of {', '.join(MODEL_HINTS)}"
            )
        return guess
    print_text("Who serves the model?")
    for name, text in MODEL_HINTS.items():
        print_text(f"  {name:<12}{indent_further_lines(text, indent=14)}")
    while True:
        reply = str(typer.prompt("Provider", default=guess or "openai")).strip()
        if reply in MODEL_HINTS:
            return reply
        typer.echo(f"Answer with one of {', '.join(MODEL_HINTS)}.")


def _find_provider_with_key() -> str | None:
    """Return the first provider whose key is in the environment."""
    for name, entry in PROVIDERS_BY_NAME.items():
        if os.environ.get(entry.key_env, "").strip():
            return name
    return None


def _ask(question: str, default: str | None, *, can_ask: bool, flag: str) -> str:
    if can_ask:
        return str(typer.prompt(question, default=default, prompt_suffix=" ")).strip()
    if default is None:
        raise InputError(f"{flag} is needed without a terminal")
    return default
