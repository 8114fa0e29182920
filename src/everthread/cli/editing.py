"""One change in `config.yaml`: the engine's name. Everything else in the file, comments too, stays as it was written.

The parser tells where in the text the value stands; only that is replaced. What comes out must read as the old
configuration with the new name, else nothing is written.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import yaml

from everthread.config import Config, parse_config
from everthread.errors import ConfigError


def use_engine(path: Path, name: str) -> bool:
    """Set `context.engine` in the file, which need not exist. False: it says so already."""
    try:
        old = path.read_bytes().decode("utf-8") if path.exists() else ""
        config = parse_config(old, source=str(path))
        if config.context.engine == name:
            return False
        new = with_engine(old, name)
        _check(new, config, name, path)
        _replace(path, new)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be changed: {error}") from error
    return True


def with_engine(text: str, name: str) -> str:
    """The text of a configuration, with this engine."""
    value = name if yaml.safe_load(name) == name else json.dumps(name)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    context = _value(root, "context")
    engine = _value(context, "engine")
    if engine is not None:
        return f"{text[: engine.start_mark.index]}{value}{text[engine.end_mark.index :]}"
    if context is not None:
        return _first_in_braces(text, context, f"engine: {value}")
    if root is not None and root.flow_style:
        return _first_in_braces(text, root, f"context: {{engine: {value}}}")
    end = "\r\n" if "\r\n" in text else "\n"
    before = text if not text or text.endswith("\n") else text + end
    indent = " " * (root.start_mark.column if root is not None else 0)
    return f"{before}{indent}context:{end}{indent}  engine: {value}{end}"


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _first_in_braces(text: str, mapping: yaml.Node, entry: str) -> str:
    brace = text.find("{", mapping.start_mark.index, mapping.end_mark.index) + 1
    rest = ", " if mapping.value else ""
    return f"{text[:brace]}{entry}{rest}{text[brace:]}"


def _check(text: str, config: Config, name: str, path: Path) -> None:
    wanted = config.model_copy(update={"context": config.context.model_copy(update={"engine": name})})
    try:
        right = parse_config(text) == wanted
    except ConfigError:
        right = False
    if not right:
        raise ConfigError(
            f"{path}: is written in a way that cannot be changed safely; set context.engine: {name} there"
        )


def _replace(path: Path, text: str) -> None:
    """The whole file or the old one, whatever happens. A link stays a link, the mode stays the mode."""
    target = path.resolve()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    made = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, made)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)
