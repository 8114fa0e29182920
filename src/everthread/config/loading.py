"""Load the configuration: find the file, read it, and name every key that cannot be used."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import platformdirs
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from everthread.config.sections import (
    AgentOptions,
    AuxiliaryOptions,
    CompressionOptions,
    ConfigSection,
    EngineOptions,
    GatewayOptions,
    ModelOptions,
    ModelPrices,
    PromptCachingOptions,
    RecallSettings,
    StoreOptions,
    ToolOutputOptions,
)
from everthread.core.secrets.redaction import redact
from everthread.core.text import count_noun
from everthread.errors import ConfigError


class Config(ConfigSection):
    """Everything that can be configured."""

    model: ModelOptions = ModelOptions()
    context: EngineOptions = EngineOptions()
    compression: CompressionOptions = CompressionOptions()
    auxiliary: AuxiliaryOptions = AuxiliaryOptions()
    prompt_caching: PromptCachingOptions = PromptCachingOptions()
    tool_output: ToolOutputOptions = ToolOutputOptions()
    agent: AgentOptions = AgentOptions()
    recall: RecallSettings = RecallSettings()
    store: StoreOptions = StoreOptions()
    gateway: GatewayOptions = GatewayOptions()
    prices: dict[str, ModelPrices] = Field(
        default_factory=dict,
        description="Prices of models that the tables lack, by name or glob, in dollars per million tokens: "
        "`input`, `output`, `cache_read`, `cache_write`.",
    )
    engines: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Options of single engines, by the engine's name; the engine checks them.",
    )


def home_directory() -> Path:
    """Return the Everthread home: `EVERTHREAD_HOME` if set, or the platform's folder for user data."""
    if path := os.environ.get("EVERTHREAD_HOME"):
        return Path(path).expanduser()
    return platformdirs.user_data_path("everthread", appauthor=False)


def config_path() -> Path:
    return home_directory() / "config.yaml"


def load_config(path: str | Path | None = None) -> Config:
    """Load the configuration from `path`, or from the home. No file means every default."""
    source = Path(path) if path is not None else config_path()
    try:
        text = source.read_text("utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"{source}: there is no such file") from None
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from error
    return parse_config(text, source=str(source))


def parse_config(text: str, *, source: str = "config.yaml") -> Config:
    """Parse the configuration in a YAML text; `ConfigError` names every bad key."""
    from everthread.config.yaml_text import parse_yaml  # noqa: PLC0415 - most homes have no file

    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{source}: is not valid YAML: {error}") from error
    if data is None:
        return Config()
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must hold keys and values, not a {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _describe_problems(error))
        settings = count_noun(error.error_count(), "setting")
        raise ConfigError(f"{source}: {settings} cannot be used:\n{problems}") from error


def _describe_problems(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        key_path = [str(step) for step in detail["loc"]]
        key = ".".join(key_path)
        if detail["type"] == "extra_forbidden":
            yield f"{key}: unknown key{_suggest_key(key_path)}"
        else:
            allowed = _describe_allowed(detail, key_path)
            value = (
                "" if isinstance(detail["input"], dict) else f" = {_format_value(detail['input'])}"
            )
            yield f"{key}{value}: {allowed[:1].lower()}{allowed[1:]}"


def _describe_allowed(detail: ErrorDetails, key_path: list[str]) -> str:
    """Describe the allowed values of a setting. For a value out of range, describe both bounds."""
    if detail["type"] == "model_type":
        return "must hold keys and values"
    bounds = detail.get("ctx") or {}
    if bounds.keys() & {"ge", "le"}:
        bounds = {**_collect_bounds(_find_field(key_path)), **bounds}
        minimum, maximum = (_format_bound(bounds.get(name)) for name in ("ge", "le"))
        if minimum and maximum:
            return f"must be from {minimum} to {maximum}"
        return f"must be {minimum} or more" if minimum else f"must be {maximum} or less"
    message = detail["msg"].removeprefix("Value error, ")
    return message.replace("Input should be", "must be", 1)


def _format_bound(bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:,}"


def _collect_bounds(field: Any) -> dict[str, float]:
    """Return the bounds of a field (`ge`, `le`). A field that may be null holds them in its inner type."""
    bounds: dict[str, float] = {}
    for constraint in getattr(field, "metadata", None) or ():
        bounds |= {
            name: getattr(constraint, name) for name in ("ge", "le") if hasattr(constraint, name)
        }
    for part in get_args(getattr(field, "annotation", None)):
        for constraint in getattr(part, "__metadata__", ()):
            bounds |= _collect_bounds(constraint)
    return bounds


def _suggest_key(key_path: list[str]) -> str:
    """Return the end of a message about an unknown key: the key that was probably meant, or all keys of the section."""
    if key_path[-1] in ("api_key", "key", "token", "password"):
        return "; secrets stay out of the file: name an environment variable with api_key_env"
    section = _find_section(key_path)
    names = sorted(section.model_fields) if hasattr(section, "model_fields") else []
    matches = difflib.get_close_matches(key_path[-1], names, n=1)
    return f"; did you mean {matches[0]}?" if matches else f"; known here: {', '.join(names)}"


def _find_section(key_path: list[str]) -> Any:
    """Return the type of the section that holds a key, or None if it is unknown."""
    section: Any = Config
    for step in key_path[:-1]:
        if not hasattr(section, "model_fields"):  # an item of a list or of a mapping
            items = (
                candidate for candidate in get_args(section) if hasattr(candidate, "model_fields")
            )
            section = next(items, None)
            continue
        field = _get_field(section, step)
        section = field.annotation if field else None
    return section


def _find_field(key_path: list[str]) -> Any:
    """Return the field of a key, or None if it is unknown."""
    return _get_field(_find_section(key_path), key_path[-1])


def _get_field(section: Any, name: str) -> Any:
    fields = getattr(section, "model_fields", None)
    return fields.get(name) if fields else None


def _format_value(value: Any) -> str:
    text = redact(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
