"""Changes to `config.yaml` that keep its comments and its order.

The new file must parse as the old configuration with the change and nothing else; otherwise nothing is written.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from everthread.config import drop_removed, parse_config, remove_key
from everthread.errors import ConfigError

_BOM = "\ufeff"


def set_keys(path: Path, values: Mapping[str, Any]) -> bool:
    """Set keys by their full path, such as `context.engine`; the file need not exist. False: nothing changed."""
    old = _read_text(path)
    before = parse_config(old, source=str(path)).model_dump()
    document = _load(old, path)
    for key, value in values.items():
        _set_value(document, key.split("."), value, path)
    new = _dump(document, old)
    try:
        after = parse_config(new, source=str(path)).model_dump()
    except ConfigError as error:
        lines = str(error).splitlines()[1:]
        raise ConfigError("\n".join(line.strip() for line in lines) or str(error)) from error
    if after == before and old:
        return False
    for key in values:
        remove_key(before, key)
        remove_key(after, key)
    if before != after or not _keeps_comments(old, new):
        raise ConfigError(f"{path}: is written in a way that cannot be changed safely; edit {', '.join(values)} there")
    _replace_file(path, new)
    return True


def drop_removed_keys(path: Path) -> list[str]:
    """Remove the keys that this version no longer has; return their full paths."""
    old = _read_text(path)
    try:
        values = yaml.safe_load(old) or {}
    except yaml.YAMLError:
        return []  # loading the file reports the error
    keys = drop_removed(values)
    if not keys:
        return []
    document = _load(old, path)
    drop_removed(document)
    new = _dump(document, old)
    if yaml.safe_load(new) != values:
        raise ConfigError(f"{path}: is written in a way that cannot be changed safely; take {', '.join(keys)} out")
    _replace_file(path, new)
    return keys


def _keeps_comments(old: str, new: str) -> bool:
    return all(comment.strip() in new for comment in re.findall(r"(?:^|\s)#[^\r\n]*", old, re.MULTILINE))


def _set_value(document: Any, steps: list[str], value: Any, path: Path) -> None:
    for step in steps[:-1]:
        if document.get(step) is None:
            document[step] = {}
        document = document[step]
        if not isinstance(document, dict):
            raise ConfigError(f"{path}: {'.'.join(steps)} cannot be set: {step} is not a section there")
    if isinstance(value, str) and yaml.safe_load(value) != value:
        value = DoubleQuotedScalarString(value)  # unquoted it would be read as another type
    document[steps[-1]] = value


def _make_yaml() -> YAML:
    yaml_file = YAML()
    yaml_file.preserve_quotes = True
    yaml_file.width = 4_096
    return yaml_file


def _load(text: str, path: Path) -> Any:
    try:
        document = _make_yaml().load(text.removeprefix(_BOM))
    except YAMLError as error:
        raise ConfigError(f"{path}: cannot be changed: {' '.join(str(error).split())}") from error
    return {} if document is None else document


def _dump(document: Any, old: str) -> str:
    """The text of a document; a file with comments alone keeps them."""
    written = io.StringIO()
    _make_yaml().dump(document, written)
    text = written.getvalue()
    if type(document) is dict and old.strip():
        text = old.rstrip("\r\n") + "\n" + text
    if old.startswith(_BOM) and not text.startswith(_BOM):
        text = _BOM + text
    return text.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in old else text


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error


def _replace_file(path: Path, text: str) -> None:
    """Replace a file atomically. A link stays a link, the mode stays the mode."""
    target = path.resolve()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
