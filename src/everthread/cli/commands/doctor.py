"""`everthread doctor`: what works here, what does not, what to do; `everthread init`: the first configuration."""

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

from everthread.cli.commands.serve import writer_text
from everthread.cli.options import AsJson
from everthread.cli.output import console, print_json, visible
from everthread.compaction import registry
from everthread.config import Config, config_path, home_directory, load_config
from everthread.config.file import set_keys
from everthread.errors import ConfigError, EverthreadError, InputError, NoStoreError
from everthread.factory import open_store, store_url
from everthread.factory.models import choice_of, endpoint_of, lacks_key
from everthread.providers.catalog import LearntLimit, resolve_window
from everthread.providers.local import DEFAULT_WINDOW, find_model
from everthread.providers.resolve import ANTHROPIC, OPENAI, OPENROUTER, OTHERS, Choice
from everthread.providers.resolve import ProviderEntry as Served
from everthread.store.models import StoreHealth
from everthread.store.store import Store

State = Literal["good", "note", "broken"]
MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "note": ("·", "dim"), "broken": ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at. A `note` is neither good nor bad; `advice` says what to do."""

    what: str
    state: State
    text: str
    advice: str = ""


SECONDS = 5.0


async def reach(choice: Choice, env: Mapping[str, str]) -> CheckResult:
    """Ask for the list of models, which costs nothing. Any answer shows that somebody is there."""
    key = env.get(choice.key_env or "", "").strip()
    base = choice.base_url.rstrip("/")
    url = f"{base}/v1/models" if choice.api == "anthropic" else f"{base}/models"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if choice.api == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    try:
        async with httpx2.AsyncClient(timeout=SECONDS) as client:
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


async def checkup(environment: Mapping[str, str] | None = None) -> list[CheckResult]:
    """Everything, in the order in which it depends on each other."""
    env = os.environ if environment is None else environment
    found = [home()]
    try:
        config = load_config()
    except ConfigError as error:
        told = CheckResult(
            "configuration", "broken", str(error), "correct the file; `everthread config check` looks again"
        )
        return [*found, told, keys(None, env), local_file(None)]
    there = config_path().exists()
    text = f"{config_path()}{'' if there else ' is absent: every default is in force'}"
    found += [CheckResult("configuration", "good", text), keys(config, env)]
    choice, model = chosen(config, env)
    found += [model, *summaries(config, env)]
    if choice is not None and choice.provider != "local":
        found.append(await reach(choice, env))
    store, limit = await kept(config, choice)
    if choice is not None:
        found.append(await window(config, choice, env, limit))
    gateway = CheckResult("gateway", "good", writer_text(config))
    return [*found, store, engine(config), gateway, local_file(choice)]


def home() -> CheckResult:
    folder = home_directory()
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return CheckResult("home", "good", f"{folder}{'' if nearest == folder else ' (made when it is first needed)'}")
    advice = "make it writable, or set EVERTHREAD_HOME to a directory of yours"
    return CheckResult("home", "broken", f"{folder}: {nearest} cannot be written", advice)


def keys(config: Config | None, env: Mapping[str, str]) -> CheckResult:
    """Which variables with keys are set: their names, never what they hold."""
    known = [provider.key_env for provider in (ANTHROPIC, OPENAI, OPENROUTER, *OTHERS)]
    if config is not None:
        named = (config.model.api_key_env, config.auxiliary.compression.api_key_env)
        known += [name for name in named if name and name not in known]
    there = [name for name in known if env.get(name, "").strip()]
    return CheckResult("keys", "good" if there else "note", ", ".join(there) or "none in the environment")


def chosen(config: Config, env: Mapping[str, str]) -> tuple[Choice | None, CheckResult]:
    """Which model would be talked to, and whether its key is there."""
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


def summaries(config: Config, env: Mapping[str, str]) -> list[CheckResult]:
    """The model that is named for summaries, where one is. Without it others write them: nothing needed is broken."""
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


async def kept(config: Config, choice: Choice | None) -> tuple[CheckResult, LearntLimit | None]:
    """The store, and the limit it knows for the model."""
    url = store_url(config)
    try:
        store = open_store(url, create=False)
    except NoStoreError:
        return CheckResult("store", "good", f"none yet at {_public(url)}; it is made with the first conversation"), None
    except EverthreadError as error:
        advice = "free or repair it, or name another place with store.url; `everthread db check` looks again"
        return CheckResult("store", "broken", str(error), advice), None
    try:
        health, limit = await store.check(), await _limit(store, choice)
    except EverthreadError as error:
        return CheckResult("store", "broken", str(error), "`everthread db check` looks again"), None
    finally:
        await store.close()
    return _of_health(health), limit


def _of_health(health: StoreHealth) -> CheckResult:
    size = f"{health.sessions:,} sessions, {health.messages:,} messages"
    if health.problems:
        text = f"{health.location}: {'; '.join(health.problems)}"
        return CheckResult("store", "broken", text, "restore a backup, or export what can be read")
    return CheckResult("store", "good", f"{health.backend}, {health.location}, schema {health.schema}, {size}")


async def _limit(store: Store, choice: Choice | None) -> LearntLimit | None:
    known = None if choice is None else await store.limit_for(choice.base_url, choice.model)
    return None if known is None else LearntLimit(known.limit, known.source)


def _public(url: str) -> str:
    """The place without a password."""
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at else url


async def window(config: Config, choice: Choice, env: Mapping[str, str], limit: LearntLimit | None) -> CheckResult:
    """The window in tokens and where it is known from."""
    if choice.provider == "local":
        size = config.model.context_length or DEFAULT_WINDOW
        return CheckResult("window", "good", f"{size:,} tokens, as the model is started here")
    ask = endpoint_of(choice, env)
    known = await resolve_window(choice.model, setting=config.model.context_length, learnt=limit, ask=ask)
    if known.source == "default":
        return CheckResult("window", "note", known.sentence, "set model.context_length")
    return CheckResult("window", "good", known.sentence)


def engine(config: Config) -> CheckResult:
    name = config.context.engine
    try:
        source = registry.find_engine(name, home=home_directory())
        source.load()
    except EverthreadError as error:
        return CheckResult(
            "engine", "broken", str(error), "`everthread plugins` lists engines, `plugins use NAME` switches"
        )
    return CheckResult("engine", "good", f"{source.name} ({source.source}: {source.location})")


def local_file(choice: Choice | None) -> CheckResult:
    """The model on this machine: needed only where it is the one that is used."""
    needed = choice is not None and choice.provider == "local"
    try:
        path = find_model(choice.model if needed and choice is not None else None, home_directory())
    except EverthreadError as error:
        found = CheckResult("local model", "broken", str(error), "everthread models pull")
    else:
        found = _runtime(path)
    if not needed and found.state == "broken":
        return replace(found, state="note", text="not there, and not needed", advice="")
    return found


def _runtime(path: Path) -> CheckResult:
    if find_spec("xllamacpp") is None:
        advice = "pip install 'everthread[local]'"
        return CheckResult("local model", "broken", f"{path} is there; what runs it (xllamacpp) is not", advice)
    return CheckResult("local model", "good", str(path))


def doctor(
    as_json: AsJson = False,
) -> None:
    """Say what works here and what does not, and what to do about it. Exit code 1 if something needed is broken."""
    found = asyncio.run(checkup())
    healthy = all(finding.state != "broken" for finding in found)
    if as_json:
        print_json({"healthy": healthy, "findings": [dataclasses.asdict(finding) for finding in found]})
    else:
        width = max(len(finding.what) for finding in found)
        for finding in found:
            console.print(_line(finding, width), soft_wrap=True)
        broken = [finding.what for finding in found if finding.state == "broken"]
        console.print(Text(f"\nNot in order: {', '.join(broken)}." if broken else "\nEverything needed is in order."))
    if not healthy:
        raise typer.Exit(1)


def _line(finding: CheckResult, width: int) -> Text:
    mark, style = MARKS[finding.state]
    line = Text.assemble((mark, style), f" {finding.what:<{width}}  ", visible(finding.text).replace("\n", "\n    "))
    if finding.advice:
        line.append(f"\n  {'':<{width}}  → {visible(finding.advice)}", "bold")
    return line


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
    set_keys(config_path(), _settings(name, model, base_url, api_key_env, served, gateway=gateway))
    load_config()
    typer.echo(visible(f"{config_path()}: written; {name} serves {model}"))
    if gateway:
        typer.echo("Start the gateway with `everthread serve`; it prints the address to give to other programs.")
    if check:
        typer.echo("")
        doctor()


def _settings(
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
