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

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from everthread.config import parse_config
from everthread.config.yaml_text import MAX_LINE_CHARS, parse_yaml
from everthread.errors import ConfigError, EverthreadError

_BOM = "\ufeff"


KeyPath = str | tuple[str, ...]
"""The full path of a key, such as `context.engine`; a tuple if a part contains a dot."""


def set_keys(path: Path, values: Mapping[str, Any] | Mapping[tuple[str, ...], Any]) -> bool:
    """Set keys by their full path; the file need not exist. Return False if nothing changed."""
    old_text = _read_text(path)
    old_values = parse_config(old_text, source=str(path)).model_dump()
    document = _load_document(old_text, path)
    for key, value in values.items():
        _set_value(document, _split_key(key), value, path)
    new_text = _dump_document(document, old_text)
    try:
        new_values = parse_config(new_text, source=str(path)).model_dump()
    except ConfigError as error:
        lines = str(error).splitlines()[1:]
        raise ConfigError("\n".join(line.strip() for line in lines) or str(error)) from error
    if new_values == old_values and old_text:
        return False
    for key in values:
        _remove_key(old_values, key)
        _remove_key(new_values, key)
    if old_values != new_values or not _keeps_comments(old_text, new_text):
        names = ", ".join(".".join(_split_key(key)) for key in values)
        raise ConfigError(
            f"{path}: is written in a way that cannot be changed safely; edit {names} there"
        )
    _replace_file(path, new_text)
    return True


def _split_key(key: KeyPath) -> list[str]:
    return key.split(".") if isinstance(key, str) else list(key)


def _remove_key(values: Any, key: KeyPath) -> None:
    """Remove a key by its full path, in place, if it is there."""
    *sections, name = _split_key(key)
    for section in sections:
        values = values.get(section) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(name, None)


def _keeps_comments(old_text: str, new_text: str) -> bool:
    return all(
        comment.strip() in new_text
        for comment in re.findall(r"(?:^|\s)#[^\r\n]*", old_text, re.MULTILINE)
    )


def _set_value(document: Any, steps: list[str], value: Any, path: Path) -> None:
    for step in steps[:-1]:
        if document.get(step) is None:
            document[step] = {}
        document = document[step]
        if not isinstance(document, dict):
            raise ConfigError(
                f"{path}: {'.'.join(steps)} cannot be set: {step} is not a section there"
            )
    if isinstance(value, str) and _needs_quotes(value):
        value = DoubleQuotedScalarString(value)
    document[steps[-1]] = value


def _needs_quotes(value: str) -> bool:
    """Return whether a text without quotes would be read as another value."""
    try:
        return bool(parse_yaml(value) != value)
    except ValueError:
        return True


def _make_yaml() -> YAML:
    yaml_file = YAML()
    yaml_file.preserve_quotes = True
    yaml_file.width = MAX_LINE_CHARS
    return yaml_file


def _load_document(text: str, path: Path) -> Any:
    try:
        document = _make_yaml().load(text.removeprefix(_BOM))
    except YAMLError as error:
        raise ConfigError(f"{path}: cannot be changed: {' '.join(str(error).split())}") from error
    return {} if document is None else document


def _dump_document(document: Any, old_text: str) -> str:
    """Return the text of a document. If the file had nothing but comments, keep them before it."""
    buffer = io.StringIO()
    _make_yaml().dump(document, buffer)
    text = buffer.getvalue()
    if type(document) is dict and old_text.strip():
        text = old_text.rstrip("\r\n") + "\n" + text
    if old_text.startswith(_BOM) and not text.startswith(_BOM):
        text = _BOM + text
    return text.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in old_text else text


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error


def _replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, keeping a symbolic link and the file mode."""
    target = path.resolve()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise EverthreadError(f"{path}: cannot be written: {error.strerror or error}") from error
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
        raise EverthreadError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
