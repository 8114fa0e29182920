"""Find secrets by their context: URLs, headers, cookies, command lines, password files, manifests, traces of a shell.

Every pattern is bounded or possessive, so that a scan is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from everthread.core.secrets.randomness import is_random
from everthread.core.secrets.secret_rules import (
    NameHint,
    Secret,
    find_name_hint,
    is_passphrase,
    is_placeholder,
    is_secret_value,
)

MAX_HEADER_CHARS = 2_000
_AUTHORIZATION_PATTERN = re.compile(
    r"""authorization["'\]\\)]{0,3}+[ \t]{0,3}+[:=,]{1,2}+[ \t]{0,4}+\\?(["'`]?)[a-z][a-z0-9.-]{1,40}+[ \t=]"""
)
_CREDENTIAL_PATTERN = re.compile(r"[\w+/~.%-]{8,}+={0,2}+", re.A)


def find_header_credentials(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the credentials after any scheme of an `Authorization` header: `Digest`, `AWS4-HMAC-SHA256`, `Hawk` …"""
    for match in _AUTHORIZATION_PATTERN.finditer(lower_text):
        char_before = text[match.start() - 1 : match.start()]
        end = _find_header_end(
            text,
            match.end(),
            match[1] or (char_before if char_before in ("'", '"') else ""),
        )
        for piece in _CREDENTIAL_PATTERN.finditer(text, match.end(), end):
            value = piece[0].rpartition("=")[2] if "=" in piece[0].rstrip("=") else piece[0]
            if is_random(value) and not is_placeholder(value):
                yield Secret(piece.end() - len(value), piece.end(), "header")


def _find_header_end(text: str, start: int, quote: str) -> int:
    """Return where the value of a header ends: at the quote it began with, else at the end of the line."""
    limit = min(len(text), start + MAX_HEADER_CHARS)
    line_end = text.find("\n", start, limit)
    limit = limit if line_end < 0 else line_end
    position = text.find(quote, start, limit) if quote else -1
    while position > 0 and text[position - 1] == "\\":
        position = text.find(quote, position + 1, limit)
    return limit if position < 0 else position


_PORT_PATTERN = re.compile(r":(?:[0-9]{4,5}|\*):")
_PGPASS_PATTERN = re.compile(
    r"(?:[\w.*-]{1,255}|\[[0-9a-fA-F:]{2,45}\]):(?:\d{4,5}|\*):(?!\d++:)[^:\s]{1,64}:[^:\s]{1,64}:(\S{3,256})(?!\S)"
)
"""host:port:database:user:password"""
MAX_HOST_CHARS = 256
_NETRC_PATTERN = re.compile(
    r"login[ \t\n]{1,3}+\S{1,128}+[ \t\n]{1,3}+password[ \t\n]{1,3}+(\S{3,256}+)"
)


def find_password_file_entries(text: str) -> Iterator[Secret]:
    """Yield the passwords in lines of `.pgpass` and `.netrc` files."""
    for port in _PORT_PATTERN.finditer(text):
        line_start = text.rfind("\n", max(0, port.start() - MAX_HOST_CHARS), port.start()) + 1
        entry = _PGPASS_PATTERN.match(text, line_start)
        if entry is not None and is_secret_value(entry[1], NameHint.PASSWORD, is_quoted=False):
            yield Secret(entry.start(1), entry.end(1), "password-file")
    for entry in _NETRC_PATTERN.finditer(text) if "login" in text and "password" in text else ():
        if is_secret_value(entry[1], NameHint.PASSWORD, is_quoted=False):
            yield Secret(entry.start(1), entry.end(1), "password-file")


MAX_MANIFEST_CHARS = 100_000
_SECRET_KIND_PATTERN = re.compile(r"""kind["']?[ \t]{0,8}+:[ \t]{0,8}+["']?secret\b(?!\w)""")
_JSON_DATA_PATTERN = re.compile(r'"(?:string)?data"\s{0,40}+:\s{0,40}+\{([^{}]{0,90000}+)\}', re.I)
_JSON_VALUE_PATTERN = re.compile(r':\s{0,40}+"([^"\\]{1,65536}+)"')
_YAML_DATA_PATTERN = re.compile(
    r"^([ ]{0,20}+)(?:string)?data:[ \t]{0,20}+\n((?:\1[ ]++[^\n]*+(?:\n|$))+)",
    re.I | re.M,
)
_YAML_VALUE_PATTERN = re.compile(
    r"""^[ ]++(?:["']?[\w./-]{1,253}+["']?:[ \t]*+)?["']?([^\s"'|>{}][^\n]*+)""", re.M
)


def find_manifest_values(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the values of `data` and `stringData` in Kubernetes manifests of the kind `Secret`, as YAML or JSON."""
    manifest_end = 0
    for kind_match in _SECRET_KIND_PATTERN.finditer(lower_text):
        if kind_match.start() < manifest_end:
            continue
        start = max(
            lower_text.rfind("\n---", manifest_end, kind_match.start()) + 1,
            kind_match.start() - MAX_MANIFEST_CHARS,
            0,
        )
        following_text = lower_text[kind_match.end() : kind_match.end() + MAX_MANIFEST_CHARS]
        rest_of_manifest = following_text.partition("\n---")[0]
        manifest_end = kind_match.end() + len(rest_of_manifest)
        yield from _find_values_in_manifest(text, start, manifest_end)


def _find_values_in_manifest(text: str, start: int, end: int) -> Iterator[Secret]:
    """Yield the values of the `data` objects in one manifest."""
    for pattern, group, value in (
        (_JSON_DATA_PATTERN, 1, _JSON_VALUE_PATTERN),
        (_YAML_DATA_PATTERN, 2, _YAML_VALUE_PATTERN),
    ):
        for data in pattern.finditer(text, start, end):
            for match in value.finditer(text, *data.span(group)):
                secret_value = match[1].rstrip(" \t\"'")
                if not is_placeholder(secret_value):
                    yield Secret(match.start(1), match.start(1) + len(secret_value), "manifest")


_TRACE_PREFIXES = (
    "+ '",
    "+ export '",
    "+ readonly '",
    "+ local '",
    "+ declare -x '",
    "+ typeset -x '",
)
_TRACED_ASSIGNMENT_PATTERN = re.compile(
    r"^\++ (?:(?:export|readonly|local|declare -x|typeset -x) )?'([A-Za-z_]\w{0,60}+)=([^'\n]{4,300}+)'",
    re.M,
)
_PASSWORD_FROM_STDIN_PATTERN = re.compile(r"-stdin|chpasswd")
_PIPED_PATTERN = re.compile(
    r"(?:echo|printf)(?: -\w{1,3}+| '?%s(?:\\n)?'?)*+ [\"']?([^\s\"'|$-][^\s\"'|]{3,200}+)[\"']?"
    r"(?= \||\n\+)[^\n]{0,200}+"
    r"(?:\n\+[^\n]{0,200}+){0,2}+\Z"
)
"""A text that is piped into a login. The match ends directly before the login, in its line or two lines earlier."""
MAX_CHARS_BEFORE_LOGIN = 600


def find_shell_trace_secrets(text: str) -> Iterator[Secret]:
    """Yield secrets that a shell shows under `set -x`: quoted assignments, and texts piped into a login."""
    if "+ " in text and any(prefix in text for prefix in _TRACE_PREFIXES):
        for match in _TRACED_ASSIGNMENT_PATTERN.finditer(text):
            hint = find_name_hint(match[1])
            if is_passphrase(match[2], hint) or is_secret_value(match[2], hint, is_quoted=True):
                yield Secret(match.start(2), match.end(2), "trace")
    for login in (
        _PASSWORD_FROM_STDIN_PATTERN.finditer(text)
        if "-stdin" in text or "chpasswd" in text
        else ()
    ):
        start = max(0, login.start() - MAX_CHARS_BEFORE_LOGIN)
        piped = _PIPED_PATTERN.search(text[start : login.start()])
        if piped is not None and not is_placeholder(piped[1]):
            yield Secret(start + piped.start(1), start + piped.end(1), "trace")


_USERINFO_PATTERN = re.compile(
    r"""://(?:[^\s/?#@:"'<>`]{0,128}+:([^\s/"'<>`]{1,256})|([\w-]{20,256}+))@(?=[\w.\[%$-])""",
    re.A,
)
_SIGNATURE_PATTERN = re.compile(r"[?&][\w-]{0,20}?sig(?:nature)?=([\w%+/=.~-]{16,}+)", re.A)


def find_url_secrets(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the password in `scheme://user:password@host`, a token alone before the `@`, a signature in the query."""
    for match in _USERINFO_PATTERN.finditer(text):
        group = 1 if match[1] else 2
        if not is_placeholder(match[group]) and (group == 1 or is_random(match[group])):
            yield Secret(match.start(group), match.end(group), "url")
    if "sig=" not in lower_text and "signature=" not in lower_text:
        return
    for match in _SIGNATURE_PATTERN.finditer(lower_text):
        if text[match.start()] in "?&" and is_random(match[1]):
            yield Secret(match.start(1), match.end(1), "url")


_HEADER_PATTERN = re.compile(
    r"""
    (?: authorization ["'\]\\)]{0,3}+ [ \t]{0,3}+ [:=,]{1,2}+ [ \t"'`\\]{0,4}+
        (?:(basic|bearer|token|api-?token|api-?key|key|digest|jwt|oauth|bot)[ \t]{1,5}+)?
      | bearer[ \t]{1,5}+ )
    ([\w=~@.+/%-]{8,}+)
    """,
    re.A | re.X,
)


def find_bearer_tokens(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the token after the scheme of an `Authorization` header, and after `Bearer` anywhere."""
    if "authorization" not in lower_text and "bearer" not in lower_text:
        return
    for match in _HEADER_PATTERN.finditer(lower_text):
        value = text[match.start(2) : match.end(2)]
        is_generated = is_random(value) or (match[1] == "basic" and not value.islower())
        if is_generated and not is_placeholder(value):
            yield Secret(match.start(2), match.end(2), "header")


_COOKIE_PATTERN = re.compile(
    r"cookie[\"'\\]{0,2}+[ \t]{0,2}+[:=,][ \t\"'`\\]{0,4}+[^\n\"'`\\]{16,4096}+"
)
_COOKIE_VALUE_PATTERN = re.compile(r"=([^\s;=\"'`\\]{16,}+)")


def find_cookies(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the random values in a `Cookie` or `Set-Cookie` header."""
    for header_match in _COOKIE_PATTERN.finditer(lower_text):
        for value_match in _COOKIE_VALUE_PATTERN.finditer(
            text, header_match.start(), header_match.end()
        ):
            if is_random(value_match[1]):
                yield Secret(value_match.start(1), value_match.end(1), "cookie")


_CURL_USER_PATTERN = re.compile(
    r"""-(?<!\S-)(?:u|-user|-proxy-user)(?:=|[ \t]{0,5}+)
        (?:"([^"\n:]{0,100}+):([^"\n]{0,300}+)"|'([^'\n:]{0,100}+):([^'\n]{0,300}+)'
          |([^\s"':]{1,100}+):(?:"([^"\n]{3,300}+)"|'([^'\n]{3,300}+)'|([^\s"']{3,300}+)))""",
    re.X,
)


def find_curl_passwords(text: str, lower_text: str) -> Iterator[Secret]:  # noqa: ARG001 - as the other finders
    """Yield the password in `curl -u user:password`; before an empty password, the user if it is random."""
    for match in _CURL_USER_PATTERN.finditer(text):
        password_group = next(group for group in (2, 4, 6, 7, 8) if match[group] is not None)
        user_group = next(group for group in (1, 3, 5) if match[group] is not None)
        if "curl" not in text[max(0, match.start() - 1000) : match.start()]:
            continue
        if len(match[password_group]) >= 3 and not is_placeholder(match[password_group]):
            yield Secret(match.start(password_group), match.end(password_group), "curl")
        elif not match[password_group] and is_random(match[user_group]):
            yield Secret(match.start(user_group), match.end(user_group), "curl")
