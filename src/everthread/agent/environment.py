"""What child processes see of the environment: no credentials, neither their own copy nor this process's."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from everthread.core.redaction import redact

PLAIN = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONUNBUFFERED": "1",
}
"""Set for children: nobody sits at a terminal, and what they print is read as text."""
_ALWAYS = frozenset({"PATH", "HOME", "PWD", "OLDPWD", "LANG", "SHELL", "USER", "LOGNAME", "TZ", "TMPDIR", "TERM"})
_WORDS = re.compile(
    r"(?:^|_)(?:API_?)?(?:KEYS?|KEYFILE|PASS|PWD|PAT|JWT|COOKIES?|BEARER|DSN|CREDS?)(?:_|$)|CREDENTIAL|PASSWORD|PASSWD"
    r"|PASSPHRASE|SECRET|APIKEY|TOKEN(?!IZER|S)|ACCESS_?KEY|PRIVATE_?KEY|_AUTH$|^AUTH$|AUTHORIZATION"
)
_IN_URL = re.compile(r"\w://[^/\s:@]*:[^/\s@]+@")
_SHORTEST = 8
"""Characters of a key's value that are looked for in other variables; shorter ones occur by chance."""


def child_environment(source: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """The variables a child process is given. `secrets` names those that hold configured keys.

    Left out: those, whatever repeats their value, names that announce a credential, and values that are one.
    """
    named = {name.upper() for name in secrets}
    values = {value for name, value in source.items() if name.upper() in named and len(value) >= _SHORTEST}
    kept = {
        name: value
        for name, value in source.items()
        if name.upper() not in named
        and not any(secret in value for secret in values)
        and (name in _ALWAYS or not is_secret(name, value))
    }
    return kept | PLAIN


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a credential, told from its name or its value."""
    if _WORDS.search(name.upper()) or _IN_URL.search(value):
        return True
    text = f"{name}={value}"
    return redact(text) != text


def seal(kept: Container[str]) -> int:
    """Take every variable but these out of what the system shows of this process to others; how many.

    `/proc/<pid>/environ` is the memory in which this process was given its environment, and its children may read it.
    The variables themselves stay: they are set again, elsewhere, before that memory is cleared. Linux only; where the
    memory cannot be found nothing happens.
    """
    start, end = _given() if sys.platform == "linux" else (0, 0)
    if not start < end:
        return 0
    sealed, place = 0, start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, given, value = entry.partition(b"=")
        decoded = os.fsdecode(name)
        if given and value.strip(b"\0") and decoded not in kept:
            if decoded in os.environ:
                os.putenv(decoded, os.environ[decoded])
            ctypes.memset(place + len(name) + 1, 0, len(value))
            sealed += 1
        place += len(entry) + 1
    return sealed


def _given() -> tuple[int, int]:
    """Where the environment this process was started with lies in its memory."""
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return int(fields[47]), int(fields[48])
    except (OSError, ValueError, IndexError):
        return 0, 0
