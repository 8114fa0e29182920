"""The configuration: one `config.yaml` in the Everthread home, every key optional.

Unknown keys and values out of range are refused at load, with the key's full path, the value and what is allowed;
nothing is clamped. A key that an earlier version had is accepted for one release, with one warning that names its
successor. Secrets come from the environment: the file names the variable (`api_key_env`).
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import platformdirs
import yaml
from pydantic import Field, ValidationError

from everthread.config.sections import (
    AgentOptions,
    AuxiliaryOptions,
    CompressionOptions,
    EngineOptions,
    GatewayOptions,
    ModelOptions,
    Options,
    PromptCachingOptions,
    RecallSettings,
    StoreOptions,
    ToolOutputOptions,
)
from everthread.core.redaction import redact
from everthread.errors import ConfigError

__all__ = ["Config", "config_path", "home_directory", "load_config", "parse_config"]

_LOG = logging.getLogger("everthread.config")
_warned: set[tuple[str, str]] = set()
"""Files and keys that this process has warned about."""


class Config(Options):
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
    engines: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Options of single engines, by the engine's name; the engine checks them."
    )


def home_directory() -> Path:
    """The Everthread home: `EVERTHREAD_HOME`, else where the platform keeps a user's data."""
    path = os.environ.get("EVERTHREAD_HOME")
    return Path(path).expanduser() if path else platformdirs.user_data_path("everthread", appauthor=False)


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
    try:
        # A subclass of SafeLoader: it builds plain values only.
        data = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506  # nosec B506
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{source}: is not valid YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return Config()
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must hold keys and values, not a {type(data).__name__}")
    for key in drop_removed(data):
        if (source, key) not in _warned:
            _warned.add((source, key))
            fix = "`everthread config check --fix` removes it."
            _LOG.warning("%s: %s is no longer used: %s. %s", source, key, REMOVED[key], fix)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _describe_problems(error))
        raise ConfigError(f"{source}: {error.error_count()} setting(s) cannot be used:\n{problems}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a duplicate key; plain YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        keys: set[str] = set()
        for key, _ in node.value:
            if key.value in keys and isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: the key {key.value!r} occurs twice")
            keys.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def _describe_problems(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        path = [str(step) for step in detail["loc"]]
        key = ".".join(path)
        if detail["type"] == "extra_forbidden":
            yield f"{key}: unknown key{_suggest_key(path)}"
        else:
            is_section = detail["type"] == "model_type"
            allowed = "must hold keys and values" if is_section else detail["msg"].removeprefix("Value error, ")
            value = "" if isinstance(detail["input"], dict) else f" = {_format_value(detail['input'])}"
            yield f"{key}{value}: {allowed[:1].lower()}{allowed[1:]}"


def _suggest_key(path: list[str]) -> str:
    """The key that was probably meant, from the keys of that section."""
    if path[-1] in ("api_key", "key", "token", "password"):
        return "; secrets stay out of the file: name an environment variable with api_key_env"
    section: Any = Config
    for step in path[:-1]:
        if step.isdecimal():  # an item of a list
            section = next(iter(get_args(section)), None)
            continue
        field = section.model_fields.get(step) if hasattr(section, "model_fields") else None
        section = field.annotation if field else None
    names = sorted(section.model_fields) if hasattr(section, "model_fields") else []
    close = difflib.get_close_matches(path[-1], names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(names)}"


def _format_value(value: Any) -> str:
    text = redact(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


REMOVED = {
    "compression.keep_important": "compression.user_words says how much of the user's words is kept",
    "gateway.adapters": "examples/telegram_bot.py and examples/webhook.py connect chats to threads over the API",
    "recall.embeddings": "recall ranks by full text alone, set with recall.closeness",
}
"""Keys of an earlier version, and what completes the sentence "… is no longer used:"."""


def drop_removed(values: Any) -> list[str]:
    """Remove the keys that this version no longer has from a parsed configuration; return their full paths."""
    return [key for key in REMOVED if remove_key(values, key)]


def remove_key(values: Any, key: str) -> bool:
    """Remove a key by its full path, in place; False where it is not there."""
    *sections, last = key.split(".")
    for section in sections:
        values = values.get(section) if isinstance(values, dict) else None
    if not isinstance(values, dict) or last not in values:
        return False
    del values[last]
    return True
