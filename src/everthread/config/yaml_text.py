"""Read and write YAML for the configuration: plain values, no duplicate keys, `on` and `yes` as booleans."""

from __future__ import annotations

import io
import warnings
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError, YAMLWarning

MAX_LINE_CHARS = 4_096
"""Maximum line length; longer texts are wrapped when written."""


def parse_yaml(text: str) -> Any:
    """Return the values in a text; raise `ValueError` if it is not YAML."""
    try:
        with warnings.catch_warnings(action="ignore", category=YAMLWarning):
            return _make_yaml().load(text)
    except DuplicateKeyError as error:
        key = str(error.problem).partition(" with value")[0]
        line = error.problem_mark.line + 1
        raise ValueError(f"line {line}: {key}") from error
    except (YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def format_yaml(value: Any) -> str:
    """Return a value as YAML, in block style, without a line break at the end."""
    writer = _make_yaml()
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.allow_unicode = True
    writer.width = MAX_LINE_CHARS
    buffer = io.StringIO()
    writer.dump(value, buffer)
    text = buffer.getvalue().removeprefix("%YAML 1.1\n---")
    return text.strip().removesuffix("\n...")


def _make_yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)  # knows `on` and `yes`
    return yaml
