"""Changes to `config.yaml` that keep its comments and its order.

What is written must read as the old configuration with the change and nothing else, or nothing is written.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from everthread.config import find_removed, parse_config, without_removed
from everthread.errors import ConfigError

_BOM = "\ufeff"


def set_keys(path: Path, values: Mapping[str, Any]) -> bool:
    """Set keys by their full path, such as `context.engine`; the file need not exist. False: it said so already."""
    old = _read(path)
    before = parse_config(old, source=str(path)).model_dump()
    document = _load(old, path)
    for key, value in values.items():
        _put(document, key.split("."), value, path)
    new = _dump(document, old)
    try:
        after = parse_config(new, source=str(path)).model_dump()
    except ConfigError as error:
        lines = str(error).splitlines()[1:]
        raise ConfigError("\n".join(line.strip() for line in lines) or str(error)) from error
    if after == before and old:
        return False
    for key in values:
        _without(before, key.split("."))
        _without(after, key.split("."))
    if before != after or not _keeps_comments(old, new):
        raise ConfigError(f"{path}: is written in a way that cannot be changed safely; edit {', '.join(values)} there")
    _replace(path, new)
    return True


def drop_removed_keys(path: Path) -> list[str]:
    """Take out the keys that this version no longer has; their full paths."""
    old = _read(path)
    try:
        values = yaml.safe_load(old) or {}
    except yaml.YAMLError:
        return []  # who loads it says what is wrong
    found = [removed.key for removed in find_removed(values)]
    if not found:
        return []
    document = _load(old, path)
    for key in found:
        _without(document, key.split("."))
    new = _dump(document, old)
    if yaml.safe_load(new) != without_removed(values):
        raise ConfigError(f"{path}: is written in a way that cannot be changed safely; take {', '.join(found)} out")
    _replace(path, new)
    return found


def _keeps_comments(old: str, new: str) -> bool:
    return all(comment.strip() in new for comment in re.findall(r"(?:^|\s)#[^\r\n]*", old, re.MULTILINE))


def _put(document: Any, steps: list[str], value: Any, path: Path) -> None:
    for step in steps[:-1]:
        if document.get(step) is None:
            document[step] = {}
        document = document[step]
        if not isinstance(document, dict):
            raise ConfigError(f"{path}: {'.'.join(steps)} cannot be set: {step} is no section there")
    if isinstance(value, str) and yaml.safe_load(value) != value:
        value = DoubleQuotedScalarString(value)  # a plain one would be read as something else
    document[steps[-1]] = value


def _without(values: Any, steps: Iterable[str]) -> None:
    *sections, last = steps
    for step in sections:
        values = values.get(step) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(last, None)


def _round_trip() -> YAML:
    yaml_file = YAML()
    yaml_file.preserve_quotes = True
    yaml_file.width = 4_096
    return yaml_file


def _load(text: str, path: Path) -> Any:
    try:
        document = _round_trip().load(text.removeprefix(_BOM))
    except YAMLError as error:
        raise ConfigError(f"{path}: cannot be changed: {' '.join(str(error).split())}") from error
    return {} if document is None else document


def _dump(document: Any, old: str) -> str:
    """The text of a document; what had no values but comments keeps them."""
    written = io.StringIO()
    _round_trip().dump(document, written)
    text = written.getvalue()
    if type(document) is dict and old.strip():
        text = old.rstrip("\r\n") + "\n" + text
    if old.startswith(_BOM) and not text.startswith(_BOM):
        text = _BOM + text
    return text.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in old else text


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error


def _replace(path: Path, text: str) -> None:
    """The whole file or the old one, whatever happens. A link stays a link, the mode stays the mode."""
    target = path.resolve()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error
    made = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, made)
        made.replace(target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error
    finally:
        made.unlink(missing_ok=True)
