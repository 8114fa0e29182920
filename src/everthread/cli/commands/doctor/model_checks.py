"""Checks of the configured model, its key, package, server, window and prices, and of the local model."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.util import find_spec

import httpx2

from everthread.cli.commands.doctor.check_result import CheckResult
from everthread.cli.commands.models import find_price_table_provider
from everthread.cli.summary_writer import describe_own_writer
from everthread.config import Config, home_directory
from everthread.core.costs.prices import describe_price_source, prices_for
from everthread.errors import EverthreadError, MissingPackageError
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
from everthread.store.store import Store

PROBE_TIMEOUT_SECONDS = 5.0


def check_keys(config: Config | None) -> CheckResult:
    """Check which variables with keys are set. Name them, but never show their values."""
    variables = [
        provider.key_env for provider in (ANTHROPIC, OPENAI, OPENROUTER, GEMINI, *OTHER_PROVIDERS)
    ]
    if config is not None:
        configured = (config.model.api_key_env, config.auxiliary.compression.api_key_env)
        variables += [name for name in configured if name and name not in variables]
    present_names = [name for name in variables if os.environ.get(name, "").strip()]
    if not present_names:
        return CheckResult("keys", "note", "none in the environment")
    return CheckResult("keys", "good", ", ".join(present_names))


def check_model(config: Config) -> tuple[ModelChoice | None, CheckResult]:
    """Check which model would be used, and whether its key is set."""
    choice, problem = check_choice(config.model)
    if choice is None:
        return None, CheckResult("model", "broken", problem, "everthread init")
    text = f"{choice.model}, {choice.provider}, {choice.api}"
    if problem:
        advice = f"export {choice.key_env}=…"
        return choice, CheckResult("model", "broken", f"{text}: {problem}", advice)
    if missing_package := find_missing_package(choice):
        text += f": {missing_package.package} is not installed"
        return choice, CheckResult("model", "broken", text, missing_package.command)
    if choice.key_env:
        text += f", key from {choice.key_env}"
    return choice, CheckResult("model", "good", text)


def find_missing_package(choice: ModelChoice) -> MissingPackageError | None:
    """Return the error that a call to the model would raise because its SDK is not installed; None if it is."""
    try:
        require_sdk(choice.api)
    except MissingPackageError as error:
        return error
    return None


def check_summaries(config: Config) -> list[CheckResult]:
    """Check who writes the summaries of `chat`, `run` and the library."""
    options = config.auxiliary.compression
    is_unset = options.model is None and options.base_url is None and options.provider == "auto"
    if options.provider == "main" or is_unset:
        main = check_choice(config.model)[0]
        if main is None:
            return []
        writer = describe_own_writer(config, main.model)
        return [CheckResult("summaries", "good", f"written by {writer}")]
    choice, problem = check_choice(options, options.model or config.model.default)
    if choice is None:
        command = "`everthread config set auxiliary.compression.model NAME`"
        advice = f"{command}; until then the main model or the journal writes them"
        return [CheckResult("summaries", "note", problem, advice)]
    text = f"{choice.model}, {choice.provider}"
    if problem:
        text = f"{text}: {problem}, so the main model or the journal writes them"
        return [CheckResult("summaries", "note", text, f"export {choice.key_env}=…")]
    if missing_package := find_missing_package(choice):
        text = f"{text}: {missing_package.package} is not installed, so the main model or the journal writes them"
        return [CheckResult("summaries", "note", text, missing_package.command)]
    text = f"written by {text} ({choice.api}), paid with its own key"
    return [CheckResult("summaries", "good", text)]


async def check_endpoint(choice: ModelChoice) -> CheckResult:
    """Ask for the list of models, which costs nothing. Any answer shows that the server runs."""
    url = make_models_url(choice.base_url, choice.api)
    key = os.environ.get(choice.key_env or "", "").strip()
    headers = make_endpoint_headers(choice.api, key or None)
    try:
        async with httpx2.AsyncClient(timeout=PROBE_TIMEOUT_SECONDS) as client:
            status = (await client.get(url, headers=headers)).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        problem = f"{url}: {type(error).__name__}{f': {error}' if str(error) else ''}"
        advice = "check the network and the server, or `everthread config set model.base_url URL`"
        return CheckResult("endpoint", "broken", problem, advice)
    if status in (401, 403):
        advice = "everthread config set model.api_key_env NAME"
        if choice.key_env:
            advice = f"export {choice.key_env}=… with a key that is valid there"
        problem = f"{url}: answers, and refuses the key ({status})"
        return CheckResult("endpoint", "broken", problem, advice)
    if status >= 500:
        problem = f"{url}: answers with an error ({status})"
        return CheckResult("endpoint", "broken", problem, "try again later")
    return CheckResult("endpoint", "good", f"{url}: answers ({status})")


async def check_window(config: Config, choice: ModelChoice, store: Store | None) -> CheckResult:
    """Check the window in tokens and its source."""
    window = await load_window(choice, config.model.context_length, store)
    if window.source == "default":
        advice = "everthread config set model.context_length TOKENS"
        return CheckResult("window", "note", window.sentence, advice)
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
        advice = f"everthread config set prices.{choice.model}.input DOLLARS_PER_MILLION"
        return CheckResult("prices", "note", text, advice)
    text = f"${prices.input} in, ${prices.output} out per million tokens ({source})"
    return CheckResult("prices", "good", text)


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
