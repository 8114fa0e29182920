"""The environment of child processes, without credentials."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from everthread.core.secrets.redaction import redact

CHILD_VARIABLES = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONUNBUFFERED": "1",
}
"""Set for child processes: they have no terminal, and their output is read as text."""
_ALWAYS_INHERITED = frozenset(
    {
        "PATH",
        "HOME",
        "PWD",
        "OLDPWD",
        "LANG",
        "SHELL",
        "USER",
        "LOGNAME",
        "TZ",
        "TMPDIR",
        "TERM",
    }
)
_SECRET_NAME_PATTERN = re.compile(
    r"(?:^|_)(?:API_?)?(?:KEYS?|KEYFILE|PASS|PWD|PAT|JWT|COOKIES?|BEARER|DSN|CREDS?)(?:_|$)|CREDENTIAL|PASSWORD|PASSWD"
    r"|PASSPHRASE|SECRET|APIKEY|TOKEN(?!IZER|S)|ACCESS_?KEY|PRIVATE_?KEY|_AUTH$|^AUTH$|AUTHORIZATION"
)
_URL_CREDENTIALS_PATTERN = re.compile(r"\w://[^/\s:@]*:[^/\s@]+@")
_MIN_KEY_CHARS = 8
"""Minimum length of a key to search for in other variables; shorter values occur by chance."""


def make_child_environment(
    source: Mapping[str, str], secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables for a child process, without credentials.

    `secrets`: names of variables with configured keys. They are removed, and so is every variable that contains one of
    these keys, or whose name or value looks like a credential.
    """
    secret_names = {name.upper() for name in secrets}
    secret_values = {
        value
        for name, value in source.items()
        if name.upper() in secret_names and len(value) >= _MIN_KEY_CHARS
    }
    variables = {
        name: value
        for name, value in source.items()
        if name.upper() not in secret_names
        and not any(secret in value for secret in secret_values)
        and (name in _ALWAYS_INHERITED or not is_secret(name, value))
    }
    return variables | CHILD_VARIABLES


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a credential, by its name or its value."""
    if _SECRET_NAME_PATTERN.search(name.upper()) or _URL_CREDENTIALS_PATTERN.search(value):
        return True
    text = f"{name}={value}"
    return redact(text) != text


def hide_environment(public_names: Container[str]) -> int:
    """Clear every variable but the public ones from `/proc/<pid>/environ` of this process; return their number.

    Child processes could read that file, which shows the memory of the original environment. The variables stay set:
    they are copied elsewhere before that memory is cleared. Linux only; if the memory cannot be found, do nothing.
    """
    start, end = _find_environment_bounds() if sys.platform == "linux" else (0, 0)
    if not start < end:
        return 0
    cleared_count = 0
    address = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        variable = os.fsdecode(name)
        if equals and value.strip(b"\0") and variable not in public_names:
            if variable in os.environ:
                os.putenv(variable, os.environ[variable])
            ctypes.memset(address + len(name) + 1, 0, len(value))
            cleared_count += 1
        address += len(entry) + 1
    return cleared_count


def _find_environment_bounds() -> tuple[int, int]:
    """Return the memory addresses of the environment with which this process was started."""
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return int(fields[47]), int(fields[48])
    except (OSError, ValueError, IndexError):
        return 0, 0
