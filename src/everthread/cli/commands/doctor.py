"""`everthread doctor`: check what works here; `everthread init`: write the first configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
import typer

from everthread.cli.commands.models import price_provider
from everthread.cli.options import AsJson
from everthread.cli.output import indent_further_lines, print_json, print_text
from everthread.cli.summary_writer import describe_client_writer, describe_own_writer
from everthread.compaction import registry
from everthread.config import Config, config_path, home_directory, load_config
from everthread.config.file import set_keys
from everthread.core.messages import count_noun
from everthread.core.prices import price_source, prices_for
from everthread.errors import (
    ConfigError,
    EverthreadError,
    InputError,
    MissingPackageError,
    NoStoreError,
)
from everthread.factory import open_store, store_file, store_url
from everthread.factory.model_setup import check_choice, load_window
from everthread.factory.prices import apply_prices
from everthread.providers.catalog import endpoint_headers, models_url
from everthread.providers.clients import require_sdk
from everthread.providers.local import SMOLLM2, find_model, is_intact, pull
from everthread.providers.resolve import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    OPENROUTER,
    OTHERS,
    Choice,
)
from everthread.providers.resolve import ProviderEntry as Served
from everthread.store.records import StoreHealth
from everthread.store.store import Store

State = Literal["good", "note", "broken"]
STATE_MARKS: dict[State, tuple[str, str]] = {
    "good": ("✓", "green"),
    "note": ("·", "dim"),
    "broken": ("✗", "bold red"),
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. A `note` is neither good nor bad; `advice` says what to do."""

    what: str
    state: State
    text: str
    advice: str = ""


PROBE_SECONDS = 5.0


async def run_checks() -> list[CheckResult]:
    """Run every check, each after those it depends on."""
    results = [check_home()]
    try:
        config = load_config()
    except ConfigError as error:
        advice = "correct the file; `everthread config check` looks again"
        broken = CheckResult("configuration", "broken", str(error), advice)
        return [*results, broken, check_keys(None), check_local_model(None)]
    text = f"{config_path()}{'' if config_path().exists() else ' is not there: using defaults'}"
    results += [CheckResult("configuration", "good", text), check_keys(config)]
    choice, model = check_model(config)
    results += [model, *check_summaries(config)]
    if choice is not None and choice.provider != "local":
        results.append(await check_endpoint(choice))
    results += [*await check_store(config, choice), check_engine(config)]
    return [
        *results,
        CheckResult(
            "gateway",
            "good",
            f"summaries for its clients: written by {describe_client_writer(config)}",
        ),
        check_local_model(choice),
    ]


def check_home() -> CheckResult:
    folder = home_directory()
    if blocked := _find_unwritable(folder):
        advice = "make it writable, or set EVERTHREAD_HOME to a directory of yours"
        return CheckResult(
            "home", "broken", f"{folder}: {blocked} cannot be written", advice
        )
    is_new = " (created on first use)" if not folder.exists() else ""
    return CheckResult("home", "good", f"{folder}{is_new}")


def _find_unwritable(folder: Path) -> Path | None:
    """Return the folder, or its nearest parent that exists, if nothing can be created in it."""
    nearest = next(
        path for path in (folder, *folder.absolute().parents) if path.exists()
    )
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    return nearest


def check_keys(config: Config | None) -> CheckResult:
    """Which variables with keys are set: their names, never their values."""
    variables = [
        provider.key_env
        for provider in (ANTHROPIC, OPENAI, OPENROUTER, GEMINI, *OTHERS)
    ]
    if config is not None:
        configured = (
            config.model.api_key_env,
            config.auxiliary.compression.api_key_env,
        )
        variables += [name for name in configured if name and name not in variables]
    present = [name for name in variables if os.environ.get(name, "").strip()]
    return CheckResult(
        "keys",
        "good" if present else "note",
        ", ".join(present) or "none in the environment",
    )


def check_model(config: Config) -> tuple[Choice | None, CheckResult]:
    """Which model would be used, and whether its key is set."""
    choice, trouble = check_choice(config.model)
    if choice is None:
        return None, CheckResult("model", "broken", trouble, "everthread init")
    text = f"{choice.model}, {choice.provider}, {choice.api}"
    if trouble:
        return choice, CheckResult(
            "model", "broken", f"{text}: {trouble}", f"export {choice.key_env}=…"
        )
    if missing := find_missing_package(choice):
        return choice, CheckResult(
            "model",
            "broken",
            f"{text}: {missing.package} is not installed",
            missing.command,
        )
    return choice, CheckResult(
        "model",
        "good",
        text + (f", key from {choice.key_env}" if choice.key_env else ""),
    )


def find_missing_package(choice: Choice) -> MissingPackageError | None:
    """Return the error of a call to the model, if its SDK is not installed."""
    try:
        require_sdk(choice.api)
    except MissingPackageError as error:
        return error
    return None


def check_summaries(config: Config) -> list[CheckResult]:
    """Check who writes the summaries of `chat`, `run` and the library."""
    options = config.auxiliary.compression
    is_absent = (
        options.model is None
        and options.base_url is None
        and options.provider == "auto"
    )
    if options.provider == "main" or is_absent:
        main = check_choice(config.model)[0]
        if main is None:
            return []
        writer = describe_own_writer(config, main.model)
        return [CheckResult("summaries", "good", f"written by {writer}")]
    choice, trouble = check_choice(options, options.model or config.model.default)
    if choice is None:
        advice = "`everthread config set auxiliary.compression.model NAME`; until then others write them"
        return [CheckResult("summaries", "note", trouble, advice)]
    text = f"{choice.model}, {choice.provider}"
    if trouble:
        text = f"{text}: {trouble}, so others write them"
        return [CheckResult("summaries", "note", text, f"export {choice.key_env}=…")]
    if missing := find_missing_package(choice):
        text = f"{text}: {missing.package} is not installed, so others write them"
        return [CheckResult("summaries", "note", text, missing.command)]
    text = f"written by {text} ({choice.api}), paid with its own key"
    return [CheckResult("summaries", "good", text)]


async def check_endpoint(choice: Choice) -> CheckResult:
    """Ask for the list of models, which costs nothing. Any answer shows that the server runs."""
    url = models_url(choice.base_url, choice.api)
    headers = endpoint_headers(
        choice.api, os.environ.get(choice.key_env or "", "").strip() or None
    )
    try:
        async with httpx2.AsyncClient(timeout=PROBE_SECONDS) as client:
            status = (await client.get(url, headers=headers)).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        why = f"{url}: {type(error).__name__}{f': {error}' if str(error) else ''}"
        advice = "check the network and the server, or `everthread config set model.base_url URL`"
        return CheckResult("endpoint", "broken", why, advice)
    if status in (401, 403):
        advice = "everthread config set model.api_key_env NAME"
        advice = (
            f"export {choice.key_env}=… with a key that is valid there"
            if choice.key_env
            else advice
        )
        return CheckResult(
            "endpoint",
            "broken",
            f"{url}: answers, and refuses the key ({status})",
            advice,
        )
    if status >= 500:
        return CheckResult(
            "endpoint",
            "broken",
            f"{url}: answers with an error ({status})",
            "try again later",
        )
    return CheckResult("endpoint", "good", f"{url}: answers ({status})")


async def check_store(config: Config, choice: Choice | None) -> list[CheckResult]:
    """The store, and the model's window, which may be one that was learnt and stored."""
    url = store_url(config)
    store: Store | None = None
    try:
        store = open_store(url, create=False)
        result = _describe_health(await store.check())
    except NoStoreError:
        result = _describe_missing_store(url)
    except EverthreadError as error:
        advice = "free or repair it, or name another place with store.url; `everthread db check` looks again"
        result = CheckResult("store", "broken", str(error), advice)
    try:
        usable = None if result.state == "broken" else store
        window = [] if choice is None else [await check_window(config, choice, usable)]
        if choice is not None and choice.provider != "local":
            window.append(check_prices(config, choice))
    finally:
        if store is not None:
            await store.close()
    return [*window, result]


def _describe_missing_store(url: str) -> CheckResult:
    """Say whether the first use can create the store."""
    file = store_file(url)
    blocked = None if file is None else _find_unwritable(file.parent)
    if blocked is not None:
        text = f"cannot be created at {file}: {blocked} cannot be written"
        advice = f"make {blocked} writable, or name another place with EVERTHREAD_HOME or store.url"
        return CheckResult("store", "broken", text, advice)
    text = f"none yet at {_hide_password(url)}; created on first use"
    return CheckResult("store", "good", text)


def _describe_health(health: StoreHealth) -> CheckResult:
    if health.problems:
        text = f"{health.location}: {'; '.join(health.problems)}"
        advice = "restore a backup, or save what can be read with `everthread sessions export`"
        return CheckResult("store", "broken", text, advice)
    size = f"{count_noun(health.sessions, 'session')}, {count_noun(health.messages, 'message')}"
    return CheckResult(
        "store",
        "good",
        f"{health.backend}, {health.location}, schema {health.schema}, {size}",
    )


def _hide_password(url: str) -> str:
    """The URL without its user and password."""
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at else url


async def check_window(
    config: Config, choice: Choice, store: Store | None
) -> CheckResult:
    """The window in tokens and its source."""
    window = await load_window(choice, config.model.context_length, store)
    if window.source == "default":
        return CheckResult(
            "window",
            "note",
            window.sentence,
            "everthread config set model.context_length TOKENS",
        )
    return CheckResult("window", "good", window.sentence)


def check_prices(config: Config, choice: Choice) -> CheckResult:
    """Check that the model's prices are known, and name their source."""
    apply_prices(config)
    now = datetime.now(UTC)
    provider = price_provider(choice)
    source = price_source(choice.model, at=now, provider=provider)
    prices = prices_for(choice.model, at=now, provider=provider)
    if prices is None:
        text = f"no price is known for {choice.model}; costs are not shown"
        advice = (
            f"everthread config set prices.{choice.model}.input DOLLARS_PER_MILLION"
        )
        return CheckResult("prices", "note", text, advice)
    text = f"${prices.input} in, ${prices.output} out per million tokens ({source})"
    return CheckResult("prices", "good", text)


def check_engine(config: Config) -> CheckResult:
    try:
        source = registry.find_engine(config.context.engine, home=home_directory())
        source.load()
    except EverthreadError as error:
        advice = "`everthread plugins` lists engines, `plugins use NAME` switches"
        return CheckResult("engine", "broken", str(error), advice)
    return CheckResult(
        "engine", "good", f"{source.name} ({source.source}: {source.location})"
    )


def check_local_model(choice: Choice | None) -> CheckResult:
    """Check the local model. It is needed only if it is the configured one."""
    name = choice.model if choice is not None and choice.provider == "local" else None
    try:
        path = find_model(name, home_directory())
    except EverthreadError as error:
        text = str(error)
        advice = "everthread models pull"
        if find_spec("xllamacpp") is None:
            advice = f"pip install 'everthread[local]', then {advice}"
    else:
        if find_spec("xllamacpp") is not None:
            return CheckResult("local model", "good", str(path))
        text = f"{path} is there; xllamacpp, which runs it, is not"
        advice = "pip install 'everthread[local]'"
    if name is None:
        return CheckResult("local model", "note", "not installed (optional)")
    return CheckResult("local model", "broken", text, advice)


def doctor(as_json: AsJson = False) -> None:
    """Diagnose your setup and suggest fixes. Exit code 1 if something needed is broken."""
    results = asyncio.run(run_checks())
    healthy = all(result.state != "broken" for result in results)
    if as_json:
        print_json(
            {
                "healthy": healthy,
                "findings": [dataclasses.asdict(result) for result in results],
            }
        )
    else:
        width = max(len(result.what) for result in results)
        for result in results:
            advice = (
                f"\n  → {indent_further_lines(result.advice, indent=4)}"
                if result.advice
                else ""
            )
            text = f" {result.what:<{width}}  {indent_further_lines(result.text, indent=width + 4)}"
            print_text(STATE_MARKS[result.state], text, (advice, "bold"))
        broken = [result.what for result in results if result.state == "broken"]
        print_text(
            f"\nNeeds attention: {', '.join(broken)}."
            if broken
            else "\nEverything needed is in order."
        )
    if not healthy:
        raise typer.Exit(1)


PROVIDERS_BY_NAME = {
    provider.name: provider for provider in (OPENAI, ANTHROPIC, OPENROUTER, GEMINI)
}
MODEL_HINTS = {
    **{
        name: f"{entry.default}, or another of its models"
        for name, entry in PROVIDERS_BY_NAME.items()
    },
    "local": f"a small model on this machine: no key, {SMOLLM2.size // 1_000_000} MB, for trying out only",
    "custom": "a server of your own, such as Ollama, vLLM or llama.cpp",
}
NO_KEY = "none"


ProviderOption = Annotated[
    str | None,
    typer.Option(
        help="openai, anthropic, openrouter, gemini, local, or custom (with --base-url)."
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The model's name there.")
]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help="The environment variable that holds the key.",
    ),
]
BaseUrlOption = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Where its API is.")
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
    ask = sys.stdin.isatty()
    name = _choose_provider(provider, base_url, ask=ask)
    served = PROVIDERS_BY_NAME.get(name)
    if name == "custom" and not base_url:
        base_url = _ask(
            "Where is its API (such as http://localhost:8000/v1)?",
            None,
            ask=ask,
            flag="--base-url",
        )
    usual_model = (
        SMOLLM2.name if name == "local" else served.default if served else None
    )
    model = model or (usual_model if name == "local" else None)
    model = model or _ask("Which model?", usual_model, ask=ask, flag="--model")
    if api_key_env is None and ask and name != "local":
        api_key_env = _ask_key_variable(served.key_env if served else NO_KEY)
    if gateway is None:
        gateway = (
            name != "local"
            and ask
            and typer.confirm(
                "Let other programs use it through `everthread serve`?",
                prompt_suffix=" ",
            )
        )
    set_keys(
        config_path(),
        _make_settings(name, model, base_url, api_key_env, served, gateway=gateway),
    )
    writer = describe_own_writer(load_config(), model)
    routes = {"custom": f"at {base_url}", "local": "on this machine"}
    route = routes.get(name, f"through {name}")
    print_text(
        f"Written: {config_path()}\n{model} is reached {route}.\nSummaries: written by {writer}."
    )
    if name == "local" and ask and find_spec("xllamacpp") is not None:
        _offer_download()
    if gateway:
        print_text(
            "Start the gateway with `everthread serve`; it prints the address to give to other programs."
        )
    if check:
        typer.echo("")
        doctor()
        print_text("Next: `everthread chat`.")


def _ask_key_variable(usual: str) -> str | None:
    """Ask for the environment variable that holds the key; None if the provider needs no key."""
    question = "Which environment variable holds its key?"
    typed = str(typer.prompt(question, default=usual, prompt_suffix=" ")).strip()
    return None if typed == NO_KEY else typed


def _offer_download() -> None:
    """Fetch the file of the small model, if it is missing and the person wants it."""
    home = home_directory()
    if is_intact(SMOLLM2.path(home)):
        return
    question = f"Download it now, about {SMOLLM2.size // 1_000_000} MB?"
    if typer.confirm(question, default=True, prompt_suffix=" "):
        pull(home, say=lambda words: print_text((words, "dim")))


def _make_settings(
    name: str,
    model: str,
    base_url: str | None,
    api_key_env: str | None,
    served: Served | None,
    *,
    gateway: bool,
) -> dict[str, Any]:
    """Return the keys to write. Those of another model, such as its address, are cleared."""
    config = load_config()
    is_usual_key = served is not None and api_key_env == served.key_env
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
    url = base_url or (served.base_url if served else None)
    upstreams = config.gateway.upstreams
    if gateway and url and name not in [upstream.name for upstream in upstreams]:
        written = [
            upstream.model_dump(mode="json", exclude_defaults=True)
            for upstream in upstreams
        ]
        settings["gateway.upstreams"] = [*written, {"name": name, "url": url}]
    return settings


def _choose_provider(option: str | None, base_url: str | None, *, ask: bool) -> str:
    """The provider of the option; else `custom` for an address, else the first whose key is set, else ask."""
    if option is not None:
        if option not in MODEL_HINTS:
            raise InputError(
                f"--provider {option!r} is unknown; use one of: {', '.join(MODEL_HINTS)}"
            )
        return option
    present = next(
        (
            name
            for name, one in PROVIDERS_BY_NAME.items()
            if os.environ.get(one.key_env, "").strip()
        ),
        None,
    )
    likely = "custom" if base_url else present
    if not ask:
        if likely is None:
            raise InputError(
                f"--provider is needed where nobody can be asked: one of {', '.join(MODEL_HINTS)}"
            )
        return likely
    print_text("Who serves the model?")
    for name, text in MODEL_HINTS.items():
        print_text(f"  {name:<12}{indent_further_lines(text, indent=14)}")
    while True:
        typed = str(typer.prompt("Provider", default=likely or "openai")).strip()
        if typed in MODEL_HINTS:
            return typed
        typer.echo(f"Answer with one of {', '.join(MODEL_HINTS)}.")


def _ask(question: str, default: str | None, *, ask: bool, flag: str) -> str:
    if ask:
        return str(typer.prompt(question, default=default, prompt_suffix=" ")).strip()
    if default is None:
        raise InputError(f"{flag} is needed where nobody can be asked")
    return default
