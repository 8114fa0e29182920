"""Writes docs/configuration.md from the configuration's schema: `python docs/generate.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from everthread.config import Config

TARGET = Path(__file__).with_name("configuration.md")
INTRO = """# Configuration

*Generated from the schema by `docs/generate.py`.*

One file, `config.yaml`, in the Everthread home: `EVERTHREAD_HOME`, or where the platform keeps a user's data
(`everthread config path` prints it). Every key is optional. Unknown keys and values out of range are refused, with the
key's full path, the value and what is allowed. Secrets never stand in the file: `api_key_env` names the environment
variable that holds one.

    everthread config check        # is the file right?
    everthread config show         # every setting in force
    everthread config show --changed
    everthread config set compression.threshold 0.4   # keeps comments
    everthread config check --fix  # takes out keys that this version no longer has
"""


def reference() -> str:
    """The page."""
    return "\n".join([INTRO, *_sections(Config, "")])


def _sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    rows, nested = [], []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            nested.append((f"{prefix}{name}", field.annotation))
        else:
            rows.append(f"| `{prefix}{name}` | `{_default(field)}` | {_allowed(model, name)} | {field.description} |")
    if rows:
        if prefix:
            yield f"## {prefix.rstrip('.')}\n\n{model.__doc__}\n"
        yield "\n".join(["| key | default | allowed | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"
    for path, section in nested:
        yield from _sections(section, f"{path}.")


def _default(field: FieldInfo) -> str:
    return json.dumps(field.get_default(call_default_factory=True))


def _allowed(model: type[BaseModel], name: str) -> str:
    schema: dict[str, Any] = model.model_json_schema()["properties"][name]
    options = schema.get("anyOf", [schema])
    return " or ".join(_words(option) for option in options)


def _words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = f" {low} to {high}" if high is not None else f" ≥ {low}" if low is not None else ""
    return f"{schema.get('type', 'any')}{bounds}"


if __name__ == "__main__":
    TARGET.write_text(reference(), "utf-8")
