"""Writes the pages of settings and commands from the schema and the command line: `python docs/generate.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from everthread.cli.main import COMMAND_GROUPS, load_command
from everthread.config import Config

REFERENCE = Path(__file__).parent / "reference"
INTRO = """# Configuration

*Generated from the schema by `docs/generate.py`.*

All settings are in one file, `config.yaml`, in the Everthread home: the folder `EVERTHREAD_HOME`, or the platform's
folder for user data. Every key is optional. An unknown key or value is refused with the reason. Secrets are never in
the file: `api_key_env` names the environment variable that holds one.

    everthread config path         # where the file is
    everthread config check        # check the file, and what would fail at start
    everthread config show --changed
    everthread config set compression.threshold 0.4   # keeps comments
"""


COMMANDS_INTRO = """# Commands

*Generated from the command line by `docs/generate.py`.*

Exit codes: 0 done, 1 failed, 2 bad input. These options mean the same everywhere, and are not repeated below:

- `--help`: Show the arguments and options.
- `--json`: Print JSON for programs: one object, or one per line (`run`, `lab provider`).
- `--store`: Another store: a URL or a SQLite file. Default: the configured one.
- `--tenant`: Only the threads of this tenant.
"""


def settings_page() -> str:
    """Every setting: key, default, meaning with the allowed values."""
    return "\n".join([INTRO, *_sections(Config, "")])


def _sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    rows = []
    nested = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            nested.append((f"{prefix}{name}", field.annotation))
        else:
            rows.append(f"| `{prefix}{name}` | `{_default(field)}` | {_meaning(model, name)} |")
    if rows:
        if prefix:
            yield f"## {prefix.rstrip('.')}\n\n{model.__doc__}\n"
        yield (
            "\n".join(
                [
                    "| key | default | meaning |",
                    "| --- | --- | --- |",
                    *rows,
                ]
            )
            + "\n"
        )
    for path, section in nested:
        yield from _sections(section, f"{path}.")


def _default(field: FieldInfo) -> str:
    return json.dumps(field.get_default(call_default_factory=True))


def _meaning(model: type[BaseModel], name: str) -> str:
    """Return the description, with the values that are allowed if they are limited."""
    schema: dict[str, Any] = model.model_json_schema()["properties"][name]
    options = schema.get("anyOf", [schema])
    limits = [words for option in options if (words := _limits(option))]
    description = model.model_fields[name].description or ""
    return f"{description} Allowed: {', '.join(limits)}." if limits else description


def _limits(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    low = schema.get("minimum")
    high = schema.get("maximum")
    if high is not None:
        return f"{low} to {high}"
    return "" if low is None else f"{low} or more"


def commands_page() -> str:
    """Every command with its arguments and options."""
    lines = [COMMANDS_INTRO]
    for title, names in COMMAND_GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _command(load_command(name), name)
    return "\n".join(lines)


def _command(command: Any, path: str) -> Iterator[str]:
    children = sorted(getattr(command, "commands", {}).items())
    arguments = " ".join(map(_argument, _arguments(command)))
    summary = " ".join((command.help or "").split())
    if " " in path:
        yield f"**`{f'everthread {path} {arguments}'.strip()}`** {summary}\n"
    else:
        takes = f" Takes `{arguments}`." if arguments else ""
        yield f"### everthread {path}\n\n{summary}{takes}\n"
    options = [_option(one) for one in command.params if _is_special(one)]
    if options:
        yield "\n".join([*options, ""])
    for name, child in children:
        yield from _command(child, f"{path} {name}")


def _is_special(parameter: Any) -> bool:
    """Return whether this is an option that the page must explain here."""
    if parameter.param_type_name != "option" or parameter.hidden:
        return False
    return "--json" not in parameter.opts and _option(parameter) not in COMMANDS_INTRO


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"- {names}: {' '.join((option.help or '').split())}"


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs == -1 and not name.endswith("..."):
        name = f"{name}..."
    return name if argument.required else f"[{name.strip('[]')}]"


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


PAGES = {
    REFERENCE / "configuration.md": settings_page,
    REFERENCE / "commands.md": commands_page,
}


if __name__ == "__main__":
    for target, page in PAGES.items():
        target.write_text(page(), "utf-8")
