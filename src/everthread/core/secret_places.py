"""Places that hold secrets in any form: header schemes, password files, manifests, traces of a shell.

Each function yields the start and the end of the text to remove. Every pattern is bounded or possessive, so that a scan
is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from everthread.core.credentials import (
    NameHint,
    is_issued,
    is_passphrase,
    is_placeholder,
    says,
)
from everthread.core.randomness import is_random

Span = tuple[int, int]

MAX_HEADER_CHARS = 2_000
_AUTHORIZATION = re.compile(
    r"""authorization["'\]\\)]{0,3}+[ \t]{0,3}+[:=,]{1,2}+[ \t]{0,4}+\\?(["'`]?)[a-z][a-z0-9.-]{1,40}+[ \t=]"""
)
_CREDENTIAL = re.compile(r"[\w+/~.%-]{8,}+={0,2}+", re.A)


def find_header_credentials(text: str, lowered: str) -> Iterator[Span]:
    """Yield the credentials after any scheme of an `Authorization` header: `Digest`, `AWS4-HMAC-SHA256`, `Hawk` …"""
    if "authorization" not in lowered:
        return
    for match in _AUTHORIZATION.finditer(lowered):
        before = text[match.start() - 1 : match.start()]
        end = _header_end(
            text, match.end(), match[1] or (before if before in ("'", '"') else "")
        )
        for piece in _CREDENTIAL.finditer(text, match.end(), end):
            value = (
                piece[0].rpartition("=")[2] if "=" in piece[0].rstrip("=") else piece[0]
            )
            if is_random(value) and not is_placeholder(value):
                yield piece.end() - len(value), piece.end()


def _header_end(text: str, start: int, quote: str) -> int:
    """Return where the value of a header ends: at the quote it began with, else at the end of the line."""
    limit = min(len(text), start + MAX_HEADER_CHARS)
    line_end = text.find("\n", start, limit)
    limit = limit if line_end < 0 else line_end
    at = text.find(quote, start, limit) if quote else -1
    while at > 0 and text[at - 1] == "\\":
        at = text.find(quote, at + 1, limit)
    return limit if at < 0 else at


_PORT = re.compile(r":(?:[0-9]{4,5}|\*):")
_PGPASS = re.compile(
    r"(?:[\w.*-]{1,255}|\[[0-9a-fA-F:]{2,45}\]):(?:\d{4,5}|\*):(?!\d++:)[^:\s]{1,64}:[^:\s]{1,64}:(\S{3,256})(?!\S)"
)
"""host:port:database:user:password"""
MAX_HOST_CHARS = 256
_NETRC = re.compile(
    r"login[ \t\n]{1,3}+\S{1,128}+[ \t\n]{1,3}+password[ \t\n]{1,3}+(\S{3,256}+)"
)


def find_password_file_entries(text: str) -> Iterator[Span]:
    """Yield the passwords in lines of `.pgpass` and `.netrc` files."""
    for port in _PORT.finditer(text):
        line_start = (
            text.rfind("\n", max(0, port.start() - MAX_HOST_CHARS), port.start()) + 1
        )
        entry = _PGPASS.match(text, line_start)
        if entry is not None and is_issued(entry[1], NameHint.PASSWORD, quoted=False):
            yield entry.span(1)
    for entry in (
        _NETRC.finditer(text) if "login" in text and "password" in text else ()
    ):
        if is_issued(entry[1], NameHint.PASSWORD, quoted=False):
            yield entry.span(1)


MAX_MANIFEST_CHARS = 100_000
_SECRET_KIND = re.compile(r"""kind["']?[ \t]{0,8}+:[ \t]{0,8}+["']?secret\b(?!\w)""")
_JSON_DATA = re.compile(
    r'"(?:string)?data"\s{0,40}+:\s{0,40}+\{([^{}]{0,90000}+)\}', re.I
)
_JSON_VALUE = re.compile(r':\s{0,40}+"([^"\\]{1,65536}+)"')
_YAML_DATA = re.compile(
    r"^([ ]{0,20}+)(?:string)?data:[ \t]{0,20}+\n((?:\1[ ]++[^\n]*+(?:\n|$))+)",
    re.I | re.M,
)
_YAML_VALUE = re.compile(
    r"""^[ ]++(?:["']?[\w./-]{1,253}+["']?:[ \t]*+)?["']?([^\s"'|>{}][^\n]*+)""", re.M
)


def find_manifest_values(text: str, lowered: str) -> Iterator[Span]:
    """Yield the values of `data` and `stringData` in Kubernetes manifests of the kind `Secret`, as YAML or JSON."""
    seen = 0
    for kind in _SECRET_KIND.finditer(lowered) if "kind" in lowered else ():
        if kind.start() < seen:
            continue
        start = max(
            lowered.rfind("\n---", seen, kind.start()) + 1,
            kind.start() - MAX_MANIFEST_CHARS,
            0,
        )
        following = lowered.find("\n---", kind.end(), kind.end() + MAX_MANIFEST_CHARS)
        seen = (
            following
            if following >= 0
            else min(len(text), kind.end() + MAX_MANIFEST_CHARS)
        )
        for pattern, group, value in (
            (_JSON_DATA, 1, _JSON_VALUE),
            (_YAML_DATA, 2, _YAML_VALUE),
        ):
            for data in pattern.finditer(text, start, seen):
                for match in value.finditer(text, *data.span(group)):
                    shown = match[1].rstrip(" \t\"'")
                    if not is_placeholder(shown):
                        yield match.start(1), match.start(1) + len(shown)


_TRACES = (
    "+ '",
    "+ export '",
    "+ readonly '",
    "+ local '",
    "+ declare -x '",
    "+ typeset -x '",
)
_TRACED = re.compile(
    r"^\++ (?:(?:export|readonly|local|declare -x|typeset -x) )?'([A-Za-z_]\w{0,60}+)=([^'\n]{4,300}+)'",
    re.M,
)
_INTO_LOGIN = re.compile(r"-stdin|chpasswd")
_PIPED = re.compile(
    r"(?:echo|printf)(?: -\w{1,3}+| '?%s(?:\\n)?'?)*+ [\"']?([^\s\"'|$-][^\s\"'|]{3,200}+)[\"']?"
    r"(?= \||\n\+)[^\n]{0,200}+"
    r"(?:\n\+[^\n]{0,200}+){0,2}+\Z"
)
"""Match up to the end of the text before such a login: in the same line, or one of the two before it."""
MAX_PIPE_CHARS = 600


def find_traced_values(text: str) -> Iterator[Span]:
    """Yield secrets that a shell shows under `set -x`: quoted assignments, and texts piped into a login."""
    if "+ " in text and any(sign in text for sign in _TRACES):
        for match in _TRACED.finditer(text):
            level = says(match[1])
            if is_passphrase(match[2], level) or is_issued(
                match[2], level, quoted=True
            ):
                yield match.span(2)
    for login in (
        _INTO_LOGIN.finditer(text) if "-stdin" in text or "chpasswd" in text else ()
    ):
        start = max(0, login.start() - MAX_PIPE_CHARS)
        piped = _PIPED.search(text[start : login.start()])
        if piped is not None and not is_placeholder(piped[1]):
            yield start + piped.start(1), start + piped.end(1)
