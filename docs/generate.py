"""Writes the pages of settings and commands from the schema and the command line: `python docs/generate.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from everthread.cli.main import GROUPS, load_command
from everthread.config import Config

REFERENCE = Path(__file__).parent / "reference"
INTRO = """# Configuration

*Generated from the schema by `docs/generate.py`.*

All settings are in one file, `config.yaml`, in the Everthread home: the folder `EVERTHREAD_HOME`, or the platform's
folder for a user's data (`everthread config path` prints it). Every key is optional. Everthread refuses unknown keys
and values that are not allowed, and names the key, the value and what is allowed. Secrets are never in the file:
`api_key_env` names the environment variable that has one.

    everthread config check        # check the file, and what would fail at start
    everthread config show         # print all settings
    everthread config show --changed
    everthread config set compression.threshold 0.4   # keeps comments
"""


COMMANDS_INTRO = """# Commands

*Generated from the command line by `docs/generate.py`.*

Every command has `--help`. Exit codes: 0 done, 1 failed, 2 bad input. `--json` prints one JSON object for programs;
`run` and `lab provider` print one per line.
"""


def settings_page() -> str:
    """Every setting: key, default, what is allowed, meaning."""
    return "\n".join([INTRO, *_sections(Config, "")])


def _sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    rows = []
    nested = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(
            field.annotation, BaseModel
        ):
            nested.append((f"{prefix}{name}", field.annotation))
        else:
            rows.append(
                f"| `{prefix}{name}` | `{_default(field)}` | {_allowed(model, name)} | {field.description} |"
            )
    if rows:
        if prefix:
            yield f"## {prefix.rstrip('.')}\n\n{model.__doc__}\n"
        yield (
            "\n".join(
                [
                    "| key | default | allowed | meaning |",
                    "| --- | --- | --- | --- |",
                    *rows,
                ]
            )
            + "\n"
        )
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
    low = schema.get("minimum")
    high = schema.get("maximum")
    bounds = (
        f" {low} to {high}"
        if high is not None
        else f" ≥ {low}"
        if low is not None
        else ""
    )
    return f"{schema.get('type', 'any')}{bounds}"


def commands_page() -> str:
    """Every command with its arguments and options."""
    lines = [COMMANDS_INTRO]
    for title, names in GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _command(load_command(name), name)
    return "\n".join(lines)


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = " ".join(one.metavar or one.name.upper() for one in _arguments(command))
    yield f"### everthread {path}\n"
    yield f"{' '.join((command.help or '').split())}\n"
    if arguments:
        yield f"Takes `{arguments}`.\n"
    options = [
        one
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
    ]
    if options:
        yield "| option | meaning |\n| --- | --- |"
        for one in options:
            names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
            yield f"| {names} | {' '.join((one.help or '').split()).replace('|', chr(92) + '|')} |"
        yield ""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _command(child, f"{path} {name}")


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


PAGES = {
    REFERENCE / "configuration.md": settings_page,
    REFERENCE / "commands.md": commands_page,
}


if __name__ == "__main__":
    for target, page in PAGES.items():
        target.write_text(page(), "utf-8")
