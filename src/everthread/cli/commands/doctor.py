"""`everthread doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import httpx2
import typer
from rich.text import Text

from everthread.cli.options import AsJson
from everthread.cli.output import console, print_json, visible
from everthread.compaction import registry
from everthread.config import Config, config_path, home_directory, load_config
from everthread.errors import ConfigError, EverthreadError, NoStoreError
from everthread.factory import open_store, store_url
from everthread.factory.models import choice_of, lacks_key
from everthread.providers.catalog import EndpointReport, LearntLimit, ask_endpoint, resolve_window
from everthread.providers.local import DEFAULT_WINDOW, find_model
from everthread.providers.resolve import ANTHROPIC, OPENAI, OPENROUTER, OTHERS, Choice
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
    return [*found, store, engine(config), local_file(choice)]


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
    key = env.get(choice.key_env or "", "").strip() or None

    async def ask() -> EndpointReport:
        return await ask_endpoint(choice.base_url, choice.model, api=choice.api, api_key=key)

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
