"""`everthread doctor`: check the setup and suggest fixes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import httpx2
import typer

from everthread.cli.commands.models import find_price_table_provider
from everthread.cli.output import indent_further_lines, print_json, print_text
from everthread.cli.shared_options import AsJson
from everthread.cli.summary_writer import describe_client_writer, describe_own_writer
from everthread.compaction import registry
from everthread.config import Config, config_path, home_directory, load_config
from everthread.core.costs.prices import describe_price_source, prices_for
from everthread.core.messages import count_noun
from everthread.errors import (
    ConfigError,
    EverthreadError,
    MissingPackageError,
    NoStoreError,
)
from everthread.factory import open_store, store_file, store_url
from everthread.factory.configured_prices import apply_prices
from everthread.factory.model_setup import check_choice, load_window
from everthread.providers.catalog import make_endpoint_headers, make_models_url
from everthread.providers.clients import require_sdk
from everthread.providers.local import find_model_file
from everthread.providers.model_choice import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    OPENROUTER,
    OTHER_PROVIDERS,
    ModelChoice,
)
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

    name: str
    state: State
    text: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        return {
            "what": self.name,
            "state": self.state,
            "text": self.text,
            "advice": self.advice,
        }


PROBE_SECONDS = 5.0


async def run_checks() -> list[CheckResult]:
    """Run every check, each after those it depends on."""
    results = [check_home()]
    try:
        config = load_config()
    except ConfigError as error:
        advice = "correct the file; `everthread config check` looks again"
        broken_config = CheckResult("configuration", "broken", str(error), advice)
        return [*results, broken_config, check_keys(None), check_local_model(None)]
    text = f"{config_path()}{'' if config_path().exists() else ' is not there: using defaults'}"
    results += [CheckResult("configuration", "good", text), check_keys(config)]
    choice, model_check = check_model(config)
    results += [model_check, *check_summaries(config)]
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
    if unwritable_folder := _find_unwritable(folder):
        advice = "make it writable, or set EVERTHREAD_HOME to a directory of yours"
        return CheckResult(
            "home", "broken", f"{folder}: {unwritable_folder} cannot be written", advice
        )
    creation_note = " (created on first use)" if not folder.exists() else ""
    return CheckResult("home", "good", f"{folder}{creation_note}")


def _find_unwritable(folder: Path) -> Path | None:
    """Return the folder, or its nearest parent that exists, if nothing can be created in it."""
    existing_folder = next(
        path for path in (folder, *folder.absolute().parents) if path.exists()
    )
    if existing_folder.is_dir() and os.access(existing_folder, os.W_OK | os.X_OK):
        return None
    return existing_folder


def check_keys(config: Config | None) -> CheckResult:
    """Check which variables with keys are set: their names, never their values."""
    variables = [
        provider.key_env
        for provider in (ANTHROPIC, OPENAI, OPENROUTER, GEMINI, *OTHER_PROVIDERS)
    ]
    if config is not None:
        configured = (
            config.model.api_key_env,
            config.auxiliary.compression.api_key_env,
        )
        variables += [name for name in configured if name and name not in variables]
    present_names = [name for name in variables if os.environ.get(name, "").strip()]
    return CheckResult(
        "keys",
        "good" if present_names else "note",
        ", ".join(present_names) or "none in the environment",
    )


def check_model(config: Config) -> tuple[ModelChoice | None, CheckResult]:
    """Check which model would be used, and whether its key is set."""
    choice, problem = check_choice(config.model)
    if choice is None:
        return None, CheckResult("model", "broken", problem, "everthread init")
    text = f"{choice.model}, {choice.provider}, {choice.api}"
    if problem:
        return choice, CheckResult(
            "model", "broken", f"{text}: {problem}", f"export {choice.key_env}=…"
        )
    if missing_package := find_missing_package(choice):
        return choice, CheckResult(
            "model",
            "broken",
            f"{text}: {missing_package.package} is not installed",
            missing_package.command,
        )
    return choice, CheckResult(
        "model",
        "good",
        text + (f", key from {choice.key_env}" if choice.key_env else ""),
    )


def find_missing_package(choice: ModelChoice) -> MissingPackageError | None:
    """Return the error of a call to the model, if its SDK is not installed."""
    try:
        require_sdk(choice.api)
    except MissingPackageError as error:
        return error
    return None


def check_summaries(config: Config) -> list[CheckResult]:
    """Check who writes the summaries of `chat`, `run` and the library."""
    options = config.auxiliary.compression
    is_unset = (
        options.model is None
        and options.base_url is None
        and options.provider == "auto"
    )
    if options.provider == "main" or is_unset:
        main = check_choice(config.model)[0]
        if main is None:
            return []
        writer = describe_own_writer(config, main.model)
        return [CheckResult("summaries", "good", f"written by {writer}")]
    choice, problem = check_choice(options, options.model or config.model.default)
    if choice is None:
        advice = "`everthread config set auxiliary.compression.model NAME`; until then others write them"
        return [CheckResult("summaries", "note", problem, advice)]
    text = f"{choice.model}, {choice.provider}"
    if problem:
        text = f"{text}: {problem}, so others write them"
        return [CheckResult("summaries", "note", text, f"export {choice.key_env}=…")]
    if missing_package := find_missing_package(choice):
        text = (
            f"{text}: {missing_package.package} is not installed, so others write them"
        )
        return [CheckResult("summaries", "note", text, missing_package.command)]
    text = f"written by {text} ({choice.api}), paid with its own key"
    return [CheckResult("summaries", "good", text)]


async def check_endpoint(choice: ModelChoice) -> CheckResult:
    """Ask for the list of models, which costs nothing. Any answer shows that the server runs."""
    url = make_models_url(choice.base_url, choice.api)
    headers = make_endpoint_headers(
        choice.api, os.environ.get(choice.key_env or "", "").strip() or None
    )
    try:
        async with httpx2.AsyncClient(timeout=PROBE_SECONDS) as client:
            status = (await client.get(url, headers=headers)).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        problem = f"{url}: {type(error).__name__}{f': {error}' if str(error) else ''}"
        advice = "check the network and the server, or `everthread config set model.base_url URL`"
        return CheckResult("endpoint", "broken", problem, advice)
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


async def check_store(config: Config, choice: ModelChoice | None) -> list[CheckResult]:
    """Check the store, and the model's window, which may have been learnt and stored there."""
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
        usable_store = None if result.state == "broken" else store
        results = (
            [] if choice is None else [await check_window(config, choice, usable_store)]
        )
        if choice is not None and choice.provider != "local":
            results.append(check_prices(config, choice))
    finally:
        if store is not None:
            await store.close()
    return [*results, result]


def _describe_missing_store(url: str) -> CheckResult:
    """Check whether the first use can create the store."""
    file = store_file(url)
    unwritable_folder = None if file is None else _find_unwritable(file.parent)
    if unwritable_folder is not None:
        text = f"cannot be created at {file}: {unwritable_folder} cannot be written"
        advice = f"make {unwritable_folder} writable, or name another place with EVERTHREAD_HOME or store.url"
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
    """Return the URL without its user and password."""
    credentials, separator, address = url.rpartition("@")
    return f"{credentials.split('://')[0]}://…@{address}" if separator else url


async def check_window(
    config: Config, choice: ModelChoice, store: Store | None
) -> CheckResult:
    """Check the window in tokens and its source."""
    window = await load_window(choice, config.model.context_length, store)
    if window.source == "default":
        return CheckResult(
            "window",
            "note",
            window.sentence,
            "everthread config set model.context_length TOKENS",
        )
    return CheckResult("window", "good", window.sentence)


def check_prices(config: Config, choice: ModelChoice) -> CheckResult:
    """Check that the model's prices are known, and name their source."""
    apply_prices(config)
    now = datetime.now(UTC)
    provider = find_price_table_provider(choice)
    source = describe_price_source(choice.model, time=now, provider=provider)
    prices = prices_for(choice.model, time=now, provider=provider)
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


def check_local_model(choice: ModelChoice | None) -> CheckResult:
    """Check the local model. It is needed only if it is the configured one."""
    name = choice.model if choice is not None and choice.provider == "local" else None
    try:
        path = find_model_file(name, home_directory())
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
                "findings": [result.as_json() for result in results],
            }
        )
    else:
        width = max(len(result.name) for result in results)
        for result in results:
            advice = (
                f"\n  → {indent_further_lines(result.advice, indent=4)}"
                if result.advice
                else ""
            )
            text = f" {result.name:<{width}}  {indent_further_lines(result.text, indent=width + 4)}"
            print_text(STATE_MARKS[result.state], text, (advice, "bold"))
        broken_names = [result.name for result in results if result.state == "broken"]
        print_text(
            f"\nNeeds attention: {', '.join(broken_names)}."
            if broken_names
            else "\nEverything needed is in order."
        )
    if not healthy:
        raise typer.Exit(1)
