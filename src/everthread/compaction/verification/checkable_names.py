"""Find the names in a text that are either right or made up: URLs, paths, hashes, identifiers, quoted errors.

A text is cut into chunks, which are runs of the characters that such names are made of. Chunks often repeat, so the
classification of each is cached.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

URL_KIND = "url"
PATH_KIND = "path"
HASH_KIND = "hash"
IDENTIFIER_KIND = "identifier"
VALUE_KIND = "value"
ERROR_KIND = "error"
CHECKABLE_KINDS = frozenset({URL_KIND, PATH_KIND, HASH_KIND, IDENTIFIER_KIND, ERROR_KIND})
"""Kinds of names that are either right or made up; a number or a word of prose is neither."""
_URL_PATTERN = re.compile(
    r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s<>\"'`|\\^{}\[\]，。；、）】」』》\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]+"
)
_CHUNK_PATTERN = re.compile(r"[A-Za-z0-9_$@~./\\#%+=&?:*À-ɏ-]{3,}(?:\(\))?")
_QUOTED_PATH_PATTERN = re.compile(
    r"([\"'])((?:/|~/|[A-Za-z]:\\)[^\"'\n]{1,400}\.[A-Za-z0-9]{1,6})\1"
)
# Matched in pairs from the left, so that text between two quotations does not count as quoted.
_QUOTATION_PATTERN = re.compile(
    r"`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|“([^”\n]{1,400})”|«([^»\n]{1,400})»|「([^」\n]{1,400})」"
)
_ERROR_WORD_PATTERN = re.compile(
    r"[Ee]rror\b|Exception\b|\b(?:failed|denied|not found|No such|cannot|refused)\b"
)
_QUOTED_IDENTIFIER_PATTERN = re.compile(
    r"[A-Za-z_][\w-]{2,60}(?:[.:]{1,2}[A-Za-z_][\w-]{1,60}){0,6}"
)
_KEY_PATTERN = re.compile(r"-{0,2}[A-Za-z_][\w.-]{0,60}")
_LINE_NUMBER_PATTERN = re.compile(r"(?<=\w)(?:(?::\d+){1,3}|:L?\d+-L?\d+|#L\d+(?:-L?\d+)?)$")
_HEX_DIGEST_PATTERN = re.compile(
    r"(?:sha\d{1,3}:)?(?:[0-9a-f]{7,16}|[0-9a-f]{24}|[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{56}|[0-9a-f]{64}|[0-9a-f]{96}|"
    r"[0-9a-f]{128})"
)
_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VALUE_SHAPE_PATTERN = re.compile(
    r"v?\d{1,5}\.\d{1,5}(?:\.\d{1,7}){0,3}(?:[-+.]?(?:a|b|rc|alpha|beta|dev|post)[\w.+-]{0,20})?"  # a version
    r"|#[0-9a-fA-F]{6}(?:[0-9a-fA-F]{2})?"  # a colour
    r"|(?:localhost|[\w-]{1,60}(?:\.[\w-]{1,60}){1,5}|\d{1,3}(?:\.\d{1,3}){3}):\d{2,5}"  # host and port
    r"|\d{4}-\d\d-\d\d(?:T[\d:.+Z-]{4,30})?"  # a date
)
_DRIVE_PATTERN = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_ROOT_PATTERN = re.compile(r"~?/|\.{1,2}/")
_PATH_PATTERN = re.compile(r"[\w.@~+%À-ɏ\\/-]+")
_SUFFIX_PATTERN = re.compile(r"(?<=[^.])\.([A-Za-z][A-Za-z0-9]{0,10})$")
_SNAKE_CASE_PATTERN = re.compile(
    r"[$@]?_{0,2}[A-Za-z][A-Za-z0-9$]*(?:_+[A-Za-z0-9$]+)+_{0,2}(?:\(\))?|__\w+__(?:\(\))?"
)
_CAMEL_CASE_PATTERN = re.compile(r"[$@]?[A-Za-z][A-Za-z0-9]{2,60}(?:\(\))?")
_CASE_CHANGES_PATTERN = re.compile(r"[a-z0-9][A-Z][a-z]|[a-z]{2}[A-Z]{2}|[A-Z]{2}[a-z]{2}")
_FUNCTION_CALL_PATTERN = re.compile(r"[A-Za-z_$][\w$]*(?:(?:\.|::)[A-Za-z_$][\w$]*)*\(\)")
_SCOPED_NAME_PATTERN = re.compile(r"[A-Za-z_][\w]*(?:::[A-Za-z_~][\w]*)+(?:\(\))?")
_DOTTED_NAME_PATTERN = re.compile(r"[A-Za-z_$@][\w$]*(?:\.[A-Za-z_$][\w$]*)+(?:\(\))?")
_TICKET_ID_PATTERN = re.compile(r"([A-Z][A-Z0-9]{1,9})-\d{1,6}|CVE-\d{4}-\d{3,7}|#\d{2,6}")
_UPPERCASE_CODE_PATTERN = re.compile(r"(?=[A-Z0-9]{0,20}\d)(?=[A-Z0-9]{0,20}[A-Z])[A-Z0-9]{5,20}")
_IDENTIFIER_FORMS_PATTERN = re.compile(
    r"--[a-z][\w-]{1,60}"  # a flag
    r"|(?=[a-z-]{1,60}\d)[a-z][a-z0-9]{0,20}(?:-[a-z0-9]{1,20}){2,6}"  # a host, a service
    r"|\$[A-Za-z_]\w{1,60}"  # a variable
    r"|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,63})+"  # an address
    r"|@[\w-]{1,60}/[\w.-]{1,60}"  # a scoped package
    r"|E(?:NOENT|ACCES|CONN\w+|ADDRINUSE|PERM|EXIST|PIPE|TIMEDOUT|ISDIR|NOTDIR|INVAL|MFILE|NOSPC|AGAIN)"
)


@dataclass(frozen=True, slots=True)
class CheckableName:
    """A name in a text, with its kind and span."""

    kind: str
    value: str
    start: int
    end: int


def find_checkable_names(text: str) -> list[CheckableName]:
    """Return the URLs, paths, hashes, identifiers and quoted errors of a text, in order.

    Names do not overlap: a path inside a URL is skipped. A path has a root or a file extension.
    """
    if not isinstance(text, str):
        return []
    names: list[CheckableName] = []
    names_end = 0
    for name in sorted(_find_names(text), key=lambda name: (name.start, -name.end)):
        if name.start >= names_end and name.kind in CHECKABLE_KINDS:
            names.append(name)
            names_end = name.end
    return names


def _find_names(text: str) -> Iterator[CheckableName]:
    """Yield all names of a text, in any order; they may overlap."""
    for match in _URL_PATTERN.finditer(text):
        url = _trim_url(match[0])
        yield CheckableName(URL_KIND, url, match.start(), match.start() + len(url))
    for match in _QUOTED_PATH_PATTERN.finditer(text):
        yield CheckableName(PATH_KIND, match[2], *match.span(2))
    for match in _CHUNK_PATTERN.finditer(text):
        for kind, value, offset in _classify_chunk(match[0]):
            start = match.start() + offset
            yield CheckableName(kind, value, start, start + len(value))
    for match in _QUOTATION_PATTERN.finditer(text):
        start = match.start() + 1
        end = match.end() - 1
        quotation = text[start:end]
        name = quotation.removesuffix("()")
        if " " in quotation and _ERROR_WORD_PATTERN.search(quotation):
            yield CheckableName(ERROR_KIND, quotation, start, end)
        elif match[1] and _QUOTED_IDENTIFIER_PATTERN.fullmatch(name):
            yield CheckableName(IDENTIFIER_KIND, name, start, start + len(name))


def _trim_url(url: str) -> str:
    """Return a URL without the punctuation of the sentence around it."""
    unopened = url.count(")") - url.count("(")
    end = len(url)
    while url[end - 1] in ".,:;!?*_~'" or (url[end - 1] == ")" and unopened > 0):
        unopened -= url[end - 1] == ")"
        end -= 1
    return url[:end]


@functools.lru_cache(maxsize=1 << 16)
def _classify_chunk(chunk: str) -> tuple[tuple[str, str, int], ...]:
    """Return the names in a chunk as (kind, value, offset). A function's name is returned without parentheses."""
    if len(chunk) > 300 or "://" in chunk:
        return ()
    value = chunk.lstrip("*=+&?:%").rstrip(".:!?*=+&\\-%#@")
    offset = chunk.find(value)
    key, equals, value_text = value.partition("=")
    if equals and "=" not in value_text and "&" not in value and _KEY_PATTERN.fullmatch(key):
        value_names = [
            (kind, name, offset + position + len(key) + 1)
            for kind, name, position in _classify_chunk(value_text)
        ]
        key_kind = _find_kind(key)
        return (*([(key_kind, key, offset)] if key_kind else []), *value_names)
    path = _LINE_NUMBER_PATTERN.sub("", value)
    if path != value and _find_kind(path) == PATH_KIND:
        return ((PATH_KIND, path, offset),)
    kind = _find_kind(value)
    return ((kind, value.removesuffix("()"), offset),) if kind else ()


def _find_kind(value: str) -> str:
    """Return the kind of a name, or an empty string if the value is not a name."""
    if len(value) < 3:
        return ""
    if _is_hash(value):
        return HASH_KIND
    if _VALUE_SHAPE_PATTERN.fullmatch(value):
        return VALUE_KIND
    if _is_path(value):
        return PATH_KIND
    return IDENTIFIER_KIND if _is_identifier(value) else ""


def _is_hash(value: str) -> bool:
    """Return whether a value is a UUID or a hexadecimal hash with letters and digits."""
    lowered = value.lower()
    if _UUID_PATTERN.fullmatch(lowered):
        return True
    return (
        _HEX_DIGEST_PATTERN.fullmatch(lowered) is not None
        and any(char.isdigit() for char in value)
        and any(char.isalpha() for char in value)
        and (value.islower() or value.isupper())
    )


def _is_path(value: str) -> bool:
    """Return whether a value is a path: rooted, or with a file extension."""
    drive = _DRIVE_PATTERN.match(value)
    body = value[drive.end() :] if drive else value
    segments = [
        segment for segment in re.split(r"[\\/]", body) if segment not in ("", ".", "..", "~")
    ]
    if (
        not _PATH_PATTERN.fullmatch(body)
        or "//" in body
        or not any(map(str.isalpha, "".join(segments)))
    ):
        return False
    if drive or (value[0] in "~." and _ROOT_PATTERN.match(value)):
        return True
    if value[0] == "/":
        return (
            len(segments) > 1
            or segments[0] in _load_word_lists()["roots"]
            or _has_extension(segments)
        )
    return _has_extension(segments)


def _has_extension(segments: list[str]) -> bool:
    """Return whether the last segment is a file name. In a path without a folder, only known extensions count."""
    data = _load_word_lists()
    name = segments[-1]
    suffix = _SUFFIX_PATTERN.search(name)
    if name in data["files"] or not suffix:
        return name in data["files"]
    extension = suffix[1].lower()
    stem = name[: suffix.start()].lower()
    if len(segments) > 1 and "." not in segments[0]:
        return len(extension) < 7
    if extension not in data["extensions"] or stem in data["products"]:
        return False
    return extension not in data["methods"] or any(char in "-_0123456789" for char in stem)


def _is_identifier(value: str) -> bool:
    """Return whether a value has the shape of an identifier: in snake case, camel case, dotted, a ticket or a code."""
    data = _load_word_lists()
    if (
        _SNAKE_CASE_PATTERN.fullmatch(value)
        or _IDENTIFIER_FORMS_PATTERN.fullmatch(value)
        or _SCOPED_NAME_PATTERN.fullmatch(value)
        or _FUNCTION_CALL_PATTERN.fullmatch(value)
    ):
        return True
    if _CAMEL_CASE_PATTERN.fullmatch(value):
        return (
            _CASE_CHANGES_PATTERN.search(value) is not None and value not in data["names"]
        ) or _is_reference_code(value)
    if ticket := _TICKET_ID_PATTERN.fullmatch(value):
        return ticket[1] not in data["units"]
    if _DOTTED_NAME_PATTERN.fullmatch(value):
        return any(
            _SNAKE_CASE_PATTERN.fullmatch(part) or _CASE_CHANGES_PATTERN.search(part)
            for part in value.split(".")
        ) and not any(part in data["names"] for part in value.split("."))
    return _is_reference_code(value)


def _is_reference_code(value: str) -> bool:
    """Return whether a value is a code of capitals and digits, such as that of a booking, a flight or an error.

    Units and standards are not.
    """
    if not (_UPPERCASE_CODE_PATTERN.fullmatch(value) or re.fullmatch(r"[A-Z]{1,4}\d{3,5}", value)):
        return False
    letters = value.rstrip("0123456789")
    return letters not in _load_word_lists()["units"] and not re.fullmatch(r"\d+[A-Z]{1,3}", value)


@functools.cache
def _load_word_lists() -> dict[str, frozenset[str]]:
    """Load the word lists of `data/names.toml`, once."""
    text = resources.files("everthread.compaction").joinpath("data/names.toml").read_text("utf-8")
    return {name: frozenset(words.split()) for name, words in tomllib.loads(text).items()}
