"""From settings and environment to a model.

A named provider is used. `auto` decides by the address, then by the model's name and the keys that are present; if no
model is named, the first provider whose key is present supplies one. `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL` are the
addresses of these two. A key comes from the variable the settings name, else from the provider's usual one; keys are
never settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from everthread.core.types import Api, StreamingModel
from everthread.errors import ConfigError
from everthread.providers.catalog import find_catalogue_window
from everthread.providers.clients import (
    ANTHROPIC_URL,
    CLIENTS,
    OPENAI_URL,
    is_reasoning_model,
)
from everthread.providers.local import DEFAULT_WINDOW as LOCAL_WINDOW
from everthread.providers.local import SMOLLM2, LocalModel, find_model_file

OPENROUTER_URL = "https://openrouter.ai/api/v1"
OPENROUTER_HEADERS = {"X-Title": "Everthread"}


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """A provider: its address, the variable of its key, and how the names of its models begin."""

    name: str
    base_url: str
    key_env: str
    name_pattern: str = "$^"
    api: Api = "openai_chat"
    url_env: str = ""
    """The environment variable that usually overrides the address, such as `OPENAI_BASE_URL`."""
    default_model: str = ""
    """The model to use if none is named."""


OPENAI = ProviderEntry(
    "openai",
    OPENAI_URL,
    "OPENAI_API_KEY",
    r"gpt-|chatgpt-|o\d|codex-",
    url_env="OPENAI_BASE_URL",
    default_model="gpt-5",
)
ANTHROPIC = ProviderEntry(
    "anthropic",
    ANTHROPIC_URL,
    key_env="ANTHROPIC_API_KEY",
    name_pattern=r"claude",
    api="anthropic",
    url_env="ANTHROPIC_BASE_URL",
    default_model="claude-sonnet-4-5",
)
OPENROUTER = ProviderEntry(
    "openrouter",
    OPENROUTER_URL,
    "OPENROUTER_API_KEY",
    default_model="anthropic/claude-sonnet-4.5",
)
GEMINI = ProviderEntry(
    "gemini",
    "https://generativelanguage.googleapis.com/v1beta/openai",
    "GEMINI_API_KEY",
    r"gemini|gemma",
    default_model="gemini-2.5-pro",
)
OTHER_PROVIDERS = (
    ProviderEntry("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", r"deepseek"),
    ProviderEntry("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", r"\w*stral-|open-mi"),
    ProviderEntry("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", r"kimi|moonshot"),
    ProviderEntry(
        "qwen",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        r"qwen|qwq",
    ),
    ProviderEntry("xai", "https://api.x.ai/v1", "XAI_API_KEY", r"grok"),
    ProviderEntry("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY", r"glm"),
)
"""Providers that `auto` uses if their key is present. To name one of them, use `custom` with its base_url."""
_PROVIDERS_WITH_DEFAULT = (OPENAI, ANTHROPIC, OPENROUTER, GEMINI)
_PROVIDER_BY_NAME = {provider.name: provider for provider in _PROVIDERS_WITH_DEFAULT}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A resolved model: its provider, its name there, its protocol. Nothing is opened yet."""

    provider: str
    model: str
    base_url: str
    api: Api
    key_env: str | None
    """The variable that must hold a key, or None if no key is needed."""
    reason: str = ""
    """Why this model was chosen, if none was named."""


def create_model(
    choice: ModelChoice,
    *,
    environment: Mapping[str, str],
    home: Path,
    context_length: int | None = None,
    max_tokens: int | None = None,
) -> StreamingModel:
    """Return the chosen model, its window from the setting or the catalogue. Nothing is opened or asked yet."""
    if choice.provider == "local":
        path = find_model_file(choice.model, home)
        window = context_length or LOCAL_WINDOW
        return LocalModel(
            path,
            name=choice.model,
            window=window,
            api=choice.api,
            max_tokens=max_tokens,
        )
    key = environment.get(choice.key_env, "").strip() if choice.key_env else ""
    if choice.key_env and not key:
        raise ConfigError(
            f"{choice.model} at {choice.base_url} needs a key, and the environment variable {choice.key_env} is not "
            "set. Set it, or name another with api_key_env."
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"The environment variable {choice.key_env} holds characters that no key has. Copy the key once more."
        )
    return CLIENTS[choice.api](
        choice.model,
        window=context_length or find_catalogue_window(choice.model).tokens,
        base_url=choice.base_url,
        api_key=key or None,
        key_env=choice.key_env,
        headers=OPENROUTER_HEADERS if choice.provider == "openrouter" else None,
        max_tokens=max_tokens,
    )


def choose_model(  # noqa: PLR0913 - the settings of a model, one by one
    name: str | None,
    *,
    environment: Mapping[str, str],
    provider: str = "auto",
    base_url: str | None = None,
    api_key_env: str | None = None,
    api: Api | None = None,
) -> ModelChoice:
    """Choose the provider for the model of this name."""
    if provider == "local" or (provider == "auto" and base_url is None and _is_local(name or "")):
        local_name = name.removeprefix("local/") if name else SMOLLM2.name
        return ModelChoice("local", local_name, "", api or "openai_chat", None)
    if not name:
        return _choose_default(environment, provider, base_url, api_key_env, api)
    if provider == "custom" or (provider == "auto" and base_url is not None):
        if base_url is None:
            raise ConfigError("provider `custom` needs a base_url")
        return _choose_custom(name, base_url, api_key_env, api)
    entry, model = _find_provider(name, provider, environment)
    configured_url = base_url or environment.get(entry.url_env, "").strip()
    url = (
        _normalize_base_url(configured_url, api or entry.api) if configured_url else entry.base_url
    )
    # OpenAI keeps a model's reasoning between calls only in its responses.
    is_reasoning = entry is OPENAI and not configured_url and is_reasoning_model(model)
    chosen_api = api or ("openai_responses" if is_reasoning else entry.api)
    key_env: str | None = api_key_env or entry.key_env
    if configured_url and not base_url and not api_key_env and not _has_key(entry, environment):
        key_env = None  # a server of the user's own may need none
    return ModelChoice(entry.name, model, url, chosen_api, key_env)


def _choose_default(
    environment: Mapping[str, str],
    provider: str,
    base_url: str | None,
    api_key_env: str | None,
    api: Api | None,
) -> ModelChoice:
    """Return the model of the first provider whose key is present."""
    url_variables: list[str] = []
    for candidate in _PROVIDERS_WITH_DEFAULT if base_url is None else ():
        if provider in ("auto", candidate.name) and _has_key(candidate, environment):
            if environment.get(candidate.url_env, "").strip():
                url_variables.append(candidate.url_env)
                continue  # which models that server has is not known
            choice = choose_model(
                candidate.default_model,
                environment=environment,
                provider=candidate.name,
                api_key_env=api_key_env,
                api=api,
            )
            return replace(choice, reason=f"no model is named, and {candidate.key_env} is set")
    if url_variables:
        raise ConfigError(
            f"no model is named: set model.default or give --model. {' and '.join(url_variables)} "
            f"name{'s' if len(url_variables) == 1 else ''} a server whose models are not known here."
        )
    raise ConfigError("no model is named (model.default), and no key of a provider is set")


def _find_provider(
    name: str, provider: str, environment: Mapping[str, str]
) -> tuple[ProviderEntry, str]:
    if provider in _PROVIDER_BY_NAME:
        return _PROVIDER_BY_NAME[provider], name.removeprefix(f"{provider}/")
    if provider != "auto":
        names = ", ".join(("auto", *_PROVIDER_BY_NAME, "local", "custom"))
        raise ConfigError(f"provider {provider!r} is not known; known are {names}")
    if name.startswith("openrouter/"):
        return OPENROUTER, name.removeprefix("openrouter/")
    vendor, slash, name_without_vendor = name.rpartition("/")
    if slash and (_has_key(OPENROUTER, environment) or vendor not in _PROVIDER_BY_NAME):
        return OPENROUTER, name
    model = name_without_vendor if slash else name
    maker = _find_maker(model)
    if maker in (ANTHROPIC, OPENAI) or (maker and _has_key(maker, environment)):
        return maker, model
    if environment.get(OPENAI.url_env, "").strip():
        return OPENAI, name
    if _has_key(OPENROUTER, environment):
        return OPENROUTER, name
    if maker is not None:
        return maker, model
    raise ConfigError(
        f"{name}: it is not clear who serves this model. Set model.provider (openai, anthropic, "
        "openrouter, gemini, local), or model.base_url for a server of your own."
    )


def _find_maker(model: str) -> ProviderEntry | None:
    """Return the provider whose models have names like this, or None if no provider has."""
    candidates = (ANTHROPIC, OPENAI, GEMINI, *OTHER_PROVIDERS)
    return next(
        (entry for entry in candidates if re.match(entry.name_pattern, model.lower())),
        None,
    )


def find_provider_by_name(model: str) -> str | None:
    """Return the provider that a model's name implies, or None if the name alone does not decide."""
    if _is_local(model):
        return "local"
    vendor, slash, name_without_vendor = model.partition("/")
    if slash and vendor in _PROVIDER_BY_NAME:
        return vendor
    maker = _find_maker(name_without_vendor if slash else model)
    return None if maker is None else maker.name


def _choose_custom(name: str, base_url: str, key_env: str | None, api: Api | None) -> ModelChoice:
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    path = parts.path.rstrip("/")
    if api is None:
        is_anthropic = f".{host}".endswith(".anthropic.com") or path.endswith("/anthropic")
        api = "anthropic" if is_anthropic else "openai_chat"
    provider = "custom"
    usual_key_env = None
    for entry in _PROVIDER_BY_NAME.values():
        if urlsplit(entry.base_url).hostname == host:
            provider = entry.name
            usual_key_env = entry.key_env
            break
    return ModelChoice(
        provider,
        name,
        _normalize_base_url(base_url, api),
        api,
        key_env or usual_key_env,
    )


def _normalize_base_url(base_url: str, api: Api) -> str:
    """Return the address in the form that the protocol's SDK expects.

    An OpenAI address ends in the version, which is added if there is no path at all. An Anthropic one has no version.
    """
    base = base_url.rstrip("/")
    if api == "anthropic":
        return re.sub(r"/v1$", "", base)
    return base if urlsplit(base).path else f"{base}/v1"


def _has_key(provider: ProviderEntry, environment: Mapping[str, str]) -> bool:
    return bool(environment.get(provider.key_env, "").strip())


def _is_local(name: str) -> bool:
    return name == SMOLLM2.name or name.startswith("local/") or name.lower().endswith(".gguf")
