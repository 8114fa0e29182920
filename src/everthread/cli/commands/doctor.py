"""`everthread doctor`: check what works here; `everthread init`: write the first configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
import typer
from rich.text import Text

from everthread.cli.commands.serve import describe_writer
from everthread.cli.options import AsJson
from everthread.cli.output import console, hang, print_json, print_text, visible
from everthread.compaction import registry
from everthread.config import Config, config_path, home_directory, load_config
from everthread.config.file import set_keys
from everthread.errors import ConfigError, EverthreadError, InputError, NoStoreError
from everthread.factory import open_store, store_url
from everthread.factory.models import choice_of, endpoint_of, lacks_key
from everthread.providers.catalog import LearntLimit, endpoint_headers, models_url, resolve_window
from everthread.providers.local import DEFAULT_WINDOW, SMOLLM2, find_model
from everthread.providers.resolve import ANTHROPIC, OPENAI, OPENROUTER, OTHERS, Choice
from everthread.providers.resolve import ProviderEntry as Served
from everthread.store.models import StoreHealth
from everthread.store.store import Store

State = Literal["good", "note", "broken"]
MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "note": ("·", "dim"), "broken": ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. A `note` is neither good nor bad; `advice` says what to do."""

    what: str
    state: State
    text: str
    advice: str = ""


PROBE_SECONDS = 5.0


async def check_endpoint(choice: Choice, env: Mapping[str, str]) -> CheckResult:
    """Ask for the list of models, which costs nothing. Any answer shows that the server runs."""
    url = models_url(choice.base_url, choice.api)
    headers = endpoint_headers(choice.api, env.get(choice.key_env or "", "").strip() or None)
    try:
        async with httpx2.AsyncClient(timeout=PROBE_SECONDS) as client:
            status = (await client.get(url, headers=headers)).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        why = f"{url}: {type(error).__name__}{f': {error}' if str(error) else ''}"
        return CheckResult("endpoint", "broken", why, "check model.base_url, the network and whether the server runs")
    if status in (401, 403):
        advice = f"check the key in {choice.key_env}" if choice.key_env else "name its variable in model.api_key_env"
        return CheckResult("endpoint", "broken", f"{url}: answers, and refuses the key ({status})", advice)
    if status >= 500:
        return CheckResult("endpoint", "broken", f"{url}: answers with an error ({status})", "try again later")
    return CheckResult("endpoint", "good", f"{url}: answers ({status})")


CONFIGURE = (
    "set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENROUTER_API_KEY and model.default in {path}; "
    "or use the small model on this machine: `everthread models pull`, then model.provider: local"
)


async def run_checks(environment: Mapping[str, str] | None = None) -> list[CheckResult]:
    """Run every check, each after those it depends on."""
    env = os.environ if environment is None else environment
    results = [check_home()]
    try:
        config = load_config()
    except ConfigError as error:
        broken = CheckResult(
            "configuration", "broken", str(error), "correct the file; `everthread config check` looks again"
        )
        return [*results, broken, check_keys(None, env), check_local_model(None)]
    exists = config_path().exists()
    text = f"{config_path()}{'' if exists else ' is absent: every default is in force'}"
    results += [CheckResult("configuration", "good", text), check_keys(config, env)]
    choice, model = check_model(config, env)
    results += [model, *check_summaries(config, env)]
    if choice is not None and choice.provider != "local":
        results.append(await check_endpoint(choice, env))
    store, limit = await check_store(config, choice)
    if choice is not None:
        results.append(await check_window(config, choice, env, limit))
    gateway = CheckResult("gateway", "good", describe_writer(config))
    return [*results, store, check_engine(config), gateway, check_local_model(choice)]


def check_home() -> CheckResult:
    folder = home_directory()
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return CheckResult("home", "good", f"{folder}{'' if nearest == folder else ' (made when it is first needed)'}")
    advice = "make it writable, or set EVERTHREAD_HOME to a directory of yours"
    return CheckResult("home", "broken", f"{folder}: {nearest} cannot be written", advice)


def check_keys(config: Config | None, env: Mapping[str, str]) -> CheckResult:
    """Which variables with keys are set: their names, never their values."""
    variables = [provider.key_env for provider in (ANTHROPIC, OPENAI, OPENROUTER, *OTHERS)]
    if config is not None:
        configured = (config.model.api_key_env, config.auxiliary.compression.api_key_env)
        variables += [name for name in configured if name and name not in variables]
    present = [name for name in variables if env.get(name, "").strip()]
    return CheckResult("keys", "good" if present else "note", ", ".join(present) or "none in the environment")


def check_model(config: Config, env: Mapping[str, str]) -> tuple[Choice | None, CheckResult]:
    """Which model would be used, and whether its key is set."""
    try:
        choice = choice_of(config.model, environment=env)
    except ConfigError as error:
        return None, CheckResult("model", "broken", str(error), CONFIGURE.format(path=config_path()))
    text = f"{choice.model}, {choice.provider}, {choice.api}"
    if lacks_key(choice, env):
        return choice, CheckResult(
            "model", "broken", f"{text}: {choice.key_env} is not set", f"export {choice.key_env}=…"
        )
    return choice, CheckResult("model", "good", text + (f", key from {choice.key_env}" if choice.key_env else ""))


def check_summaries(config: Config, env: Mapping[str, str]) -> list[CheckResult]:
    """The model for summaries, where one is configured. Its absence breaks nothing: others write them."""
    options = config.auxiliary.compression
    if options.provider == "main" or (
        options.model is None and options.base_url is None and options.provider == "auto"
    ):
        return []
    try:
        choice = choice_of(options, options.model or config.model.default, environment=env)
    except ConfigError as error:
        return [
            CheckResult("summaries", "note", str(error), "correct auxiliary.compression; until then others write them")
        ]
    if lacks_key(choice, env):
        text = f"{choice.model}, {choice.provider}: {choice.key_env} is not set, so others write them"
        return [CheckResult("summaries", "note", text, f"export {choice.key_env}=…")]
    return [CheckResult("summaries", "good", f"{choice.model}, {choice.provider}, {choice.api}")]


async def check_store(config: Config, choice: Choice | None) -> tuple[CheckResult, LearntLimit | None]:
    """The store, and the limit that was learnt for the model."""
    url = store_url(config)
    try:
        store = open_store(url, create=False)
    except NoStoreError:
        return CheckResult(
            "store", "good", f"none yet at {_hide_password(url)}; it is made with the first conversation"
        ), None
    except EverthreadError as error:
        advice = "free or repair it, or name another place with store.url; `everthread db check` looks again"
        return CheckResult("store", "broken", str(error), advice), None
    try:
        health, limit = await store.check(), await _load_limit(store, choice)
    except EverthreadError as error:
        return CheckResult("store", "broken", str(error), "`everthread db check` looks again"), None
    finally:
        await store.close()
    return _describe_health(health), limit


def _describe_health(health: StoreHealth) -> CheckResult:
    size = f"{health.sessions:,} sessions, {health.messages:,} messages"
    if health.problems:
        text = f"{health.location}: {'; '.join(health.problems)}"
        return CheckResult("store", "broken", text, "restore a backup, or export what can be read")
    return CheckResult("store", "good", f"{health.backend}, {health.location}, schema {health.schema}, {size}")


async def _load_limit(store: Store, choice: Choice | None) -> LearntLimit | None:
    stored = None if choice is None else (await store.limits_for(choice.base_url, choice.model)).window
    return None if stored is None else LearntLimit(stored.limit, stored.source)


def _hide_password(url: str) -> str:
    """The URL without its user and password."""
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at else url


async def check_window(
    config: Config, choice: Choice, env: Mapping[str, str], limit: LearntLimit | None
) -> CheckResult:
    """The window in tokens and its source."""
    if choice.provider == "local":
        size = config.model.context_length or DEFAULT_WINDOW
        return CheckResult("window", "good", f"{size:,} tokens, as the model is started here")
    ask = endpoint_of(choice, env)
    resolved = await resolve_window(choice.model, setting=config.model.context_length, learnt=limit, ask=ask)
    if resolved.source == "default":
        return CheckResult("window", "note", resolved.sentence, "set model.context_length")
    return CheckResult("window", "good", resolved.sentence)


def check_engine(config: Config) -> CheckResult:
    name = config.context.engine
    try:
        source = registry.find_engine(name, home=home_directory())
        source.load()
    except EverthreadError as error:
        return CheckResult(
            "engine", "broken", str(error), "`everthread plugins` lists engines, `plugins use NAME` switches"
        )
    return CheckResult("engine", "good", f"{source.name} ({source.source}: {source.location})")


def check_local_model(choice: Choice | None) -> CheckResult:
    """The model on this machine. It is needed only where it is the one that is used."""
    needed = choice is not None and choice.provider == "local"
    try:
        path = find_model(choice.model if needed and choice is not None else None, home_directory())
    except EverthreadError as error:
        result = CheckResult("local model", "broken", str(error), "everthread models pull")
    else:
        result = _check_runtime(path)
    if not needed and result.state == "broken":
        return replace(result, state="note", text="not there, and not needed", advice="")
    return result


def _check_runtime(path: Path) -> CheckResult:
    if find_spec("xllamacpp") is None:
        advice = "pip install 'everthread[local]'"
        return CheckResult("local model", "broken", f"{path} is there; xllamacpp, which runs it, is not", advice)
    return CheckResult("local model", "good", str(path))


def doctor(as_json: AsJson = False) -> None:
    """Check what works here, and say how to repair the rest. Exit code 1 if something needed is broken."""
    results = asyncio.run(run_checks())
    healthy = all(result.state != "broken" for result in results)
    if as_json:
        print_json({"healthy": healthy, "findings": [dataclasses.asdict(result) for result in results]})
    else:
        width = max(len(result.what) for result in results)
        for result in results:
            print_text(hang(_format_result(result, width)))
        broken = [result.what for result in results if result.state == "broken"]
        console.print(Text(f"\nNot in order: {', '.join(broken)}." if broken else "\nEverything needed is in order."))
    if not healthy:
        raise typer.Exit(1)


def _format_result(result: CheckResult, width: int) -> Text:
    mark, style = MARKS[result.state]
    line = Text.assemble((mark, style), f" {result.what:<{width}}  ", visible(result.text).replace("\n", "\n    "))
    if result.advice:
        line.append(f"\n  → {visible(result.advice)}", "bold")
    return line


KNOWN = {provider.name: provider for provider in (OPENAI, ANTHROPIC, OPENROUTER)}
CHOICES = (*KNOWN, "local", "custom")


NO_KEY = "none"


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
    """Set up the model, its key and the gateway. Missing options are asked for.

    Writes config.yaml, keeping its other settings; the key itself stays in the environment.
    """
    ask = sys.stdin.isatty()
    name = _choose_provider(provider, base_url, ask=ask)
    served = KNOWN.get(name)
    if name == "custom" and not base_url:
        base_url = _ask("Where is its API (such as http://localhost:8000/v1)?", None, ask=ask, flag="--base-url")
    model = model or _ask("Which model?", _default_model(name, served), ask=ask, flag="--model")
    if api_key_env is None and ask and name != "local":
        usual = served.key_env if served else NO_KEY
        typed = str(typer.prompt("Which environment variable holds its key?", default=usual)).strip()
        api_key_env = None if typed == NO_KEY else typed
    if gateway is None:
        gateway = name != "local" and ask and typer.confirm("Put the gateway in front of it, for other programs?")
    set_keys(config_path(), _make_settings(name, model, base_url, api_key_env, served, gateway=gateway))
    load_config()
    print_text(f"Written: {config_path()}\n{model} is reached through {name}.")
    if gateway:
        print_text("Start the gateway with `everthread serve`; it prints the address to give to other programs.")
    if check:
        typer.echo("")
        doctor()


def _make_settings(
    name: str, model: str, base_url: str | None, api_key_env: str | None, served: Served | None, *, gateway: bool
) -> dict[str, Any]:
    settings: dict[str, Any] = {"model.default": model, "model.provider": name}
    if base_url:
        settings["model.base_url"] = base_url
    if api_key_env and (served is None or api_key_env != served.key_env):
        settings["model.api_key_env"] = api_key_env
    url = base_url or (served.base_url if served else None)
    upstreams = load_config().gateway.upstreams
    if gateway and url and name not in [upstream.name for upstream in upstreams]:
        written = [upstream.model_dump(mode="json", exclude_defaults=True) for upstream in upstreams]
        settings["gateway.upstreams"] = [*written, {"name": name, "url": url}]
    return settings


def _choose_provider(option: str | None, base_url: str | None, *, ask: bool) -> str:
    """The provider of the option; else `custom` for an address, else the first whose key is set, else ask."""
    if option is not None:
        if option not in CHOICES:
            raise InputError(f"--provider {option!r} is unknown; use one of: {', '.join(CHOICES)}")
        return option
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
        typer.echo(f"Answer with one of {', '.join(CHOICES)}.")


def _default_model(name: str, served: Served | None) -> str | None:
    return SMOLLM2.name if name == "local" else served.default if served else None


def _ask(question: str, default: str | None, *, ask: bool, flag: str) -> str:
    if ask:
        return str(typer.prompt(question, default=default)).strip()
    if default is None:
        raise InputError(f"{flag} is needed where nobody can be asked")
    return default
