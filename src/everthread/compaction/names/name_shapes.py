"""Find names in a text by their shape: files, identifiers, hashes, ids and addresses, in any language.

Plain words are not names. A path is read as its end: the last folder and the name of the file.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib import resources
from itertools import chain
from typing import NamedTuple

MAX_NAME_CHARS = 120
MAX_SHOWN_PATH_PARTS = 2
"""Maximum parts of a path to show: its last folder and the name of the file."""

_ESCAPED_SPACE_PATTERN = re.compile(r"\\(?:[nrt]|u00[0-9a-f]{2})")
"""Escaped white space and signs, as in a JSON text inside a text."""
_WINDOWS_PATH_PATTERN = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\")
_SEGMENT_PATTERN = re.compile(r"[A-Za-z0-9_$@~./:+-]{3,199}[A-Za-z0-9_]")
"""Adjacent characters that names are made of."""
_SEPARATORS_PATTERN = re.compile(r"[.:/+@$~]+")
_LETTER_PATTERN = re.compile("[A-Za-z]")
_CASE_CHANGE_PATTERN = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_EDGE_CHARS = ".-+@$~/"
_ABSOLUTE_PATH_PATTERN = re.compile(r"~?(?:/[\w.@+-]+){3,}")
"""An absolute path; whether it is a file or a folder cannot be seen from its shape."""
_EXTENSION_PATTERN = re.compile(r"[a-z][a-z0-9]{0,6}")
"""The form of an extension of a file in a folder. Without a folder, only known extensions count."""
_HEX_PATTERN = re.compile(r"[0-9a-f]{7,64}|[0-9A-F]{7,64}")
_SHORT_LIVED_PATTERN = re.compile(r"[A-Za-z_]{1,9}|[0-9a-f]{7,64}|[0-9A-F]{7,64}")
_NOT_IN_FILE_NAMES_PATTERN = re.compile("[ @:]")
_UPPERCASE_ID_PATTERN = re.compile(r"[A-Z]{2,}-?\d{2,}|[A-Z0-9]{5,}")
"""Ids in capitals and digits: tickets, reservations, orders."""
_ADDRESS_PATTERN = re.compile(r"[\w.+-]++@[\w-]++(?:\.[\w-]++)+")
_HOST_WITH_PORT_PATTERN = re.compile(
    r"(?=[\d._-]*+[A-Za-z])[\w-]++(?:(?:\.[\w-]++)+:\d{2,5}|:\d{4,5})"
)
_DATE_PATTERN = re.compile(r"\d{4}-?\d\d-?\d\d(?:T|$)|\d{3,6}Z$")
"""A date, or the end of a time."""
_VERSION_PATTERN = re.compile(r"v?\d+(?:\.\d+)+")


def read_names(text: str, *, is_typed: bool = False) -> list[str]:
    """Return the names in a text, each once.

    `is_typed`: whether the text is a command or a single word, so that hyphens join parts of names, not words.
    """
    segments = dict.fromkeys(_SEGMENT_PATTERN.findall(_without_escapes(text)))
    names = map(_read_typed_segment, segments) if is_typed else map(_read_prose_segment, segments)
    return list(dict.fromkeys(chain.from_iterable(names)))


def read_file_names(text: str) -> list[str]:
    """Return the files in a text, each once. This takes a third of the time of `read_names`."""
    segments = (
        segment
        for segment in dict.fromkeys(_SEGMENT_PATTERN.findall(_without_escapes(text)))
        if "." in segment
    )
    names = chain.from_iterable(map(_read_prose_segment, segments))
    return [name for name in dict.fromkeys(names) if is_file(name)]


def read_names_by_line(text: str) -> set[str]:
    """Return the names in a typed text. Lines are cached, because most lines of a summary were in the one before."""
    lines = _without_escapes(text).split("\n")
    return set(chain.from_iterable(map(_read_typed_line, lines)))


@lru_cache(maxsize=1 << 12)
def _read_typed_line(line: str) -> tuple[str, ...]:
    """Return the names in one line, read as typed."""
    return tuple(chain.from_iterable(map(_read_typed_segment, _SEGMENT_PATTERN.findall(line))))


def _without_escapes(text: str) -> str:
    """Return a text with spaces for escaped white space, unless the text has a Windows path."""
    if "\\" not in text or (":\\" in text and _WINDOWS_PATH_PATTERN.search(text)):
        return text
    return _ESCAPED_SPACE_PATTERN.sub(" ", text)


def is_path(name: str) -> bool:
    """Return whether a name is a path with a folder, not an address or a command."""
    return "/" in name and " " not in name and "://" not in name


def is_file(name: str) -> bool:
    """Return whether a name is a path or a file's name."""
    if "/" in name:
        return is_path(name)
    return "." in name and _NOT_IN_FILE_NAMES_PATTERN.search(name) is None


def is_folder(name: str) -> bool:
    """Return whether a name is a path that ends with a folder: the last part has no extension."""
    last_part = find_file_name(name)
    return is_path(name) and "." not in last_part and last_part not in _load_table().files


def is_short_lived(name: str) -> bool:
    """Return whether a name is a short identifier, like most local variables, or a hash."""
    return _SHORT_LIVED_PATTERN.fullmatch(name) is not None


def find_file_name(path: str) -> str:
    """Return a path without its folders."""
    return path.rpartition("/")[2]


@lru_cache(maxsize=1 << 14)
def shorten_path(name: str) -> str:
    """Return the end of a path, or any other name unchanged."""
    parts = name.split("/") if is_path(name) else ()
    is_short = len(parts) <= MAX_SHOWN_PATH_PARTS + name.startswith(("/", "~"))
    return name if is_short else "/".join(parts[-MAX_SHOWN_PATH_PARTS:])


@lru_cache(maxsize=1 << 15)
def _read_prose_segment(segment: str) -> tuple[str, ...]:
    """Return the names in a segment of prose."""
    return _read_segment(segment, is_typed=False)


@lru_cache(maxsize=1 << 15)
def _read_typed_segment(segment: str) -> tuple[str, ...]:
    """Return the names in a typed segment. Only hyphens and absolute paths are read otherwise than in prose."""
    if "-" in segment or segment[0] in "/~":
        return _read_segment(segment, is_typed=True)
    return _read_prose_segment(segment)


def _read_segment(segment: str, *, is_typed: bool) -> tuple[str, ...]:
    """Return the names in a segment of name characters."""
    if segment.isalpha():
        return (segment,) if _changes_case(segment) else ()
    if _SEPARATORS_PATTERN.search(segment) is None:
        word = segment.strip("-")
        return (word,) if _is_name(word, is_typed) else ()
    if "://" in segment or _ADDRESS_PATTERN.fullmatch(segment):
        return (segment,) if len(segment) <= MAX_NAME_CHARS else ()
    if ":" in segment:
        return _read_colon_parts(segment, is_typed=is_typed)
    path = segment.lstrip("+-").removeprefix("./")
    if path.count("/") == 1:
        path = path.removeprefix("/")
    is_folder = is_typed and _ABSOLUTE_PATH_PATTERN.fullmatch(path) is not None
    if len(path) <= MAX_NAME_CHARS and (is_folder or _is_file_path(path)):
        return (shorten_path(path),)
    parts = (part.strip("-") for part in _SEPARATORS_PATTERN.split(segment))
    return tuple(dict.fromkeys(part for part in parts if _is_name(part, is_typed)))


def _read_colon_parts(segment: str, *, is_typed: bool) -> tuple[str, ...]:
    """Return the names between colons, such as a file before a line number. A host with its port stays whole."""
    if _HOST_WITH_PORT_PATTERN.fullmatch(segment) and not _is_file_path(segment.partition(":")[0]):
        return (segment,)
    parts = (part.rstrip(_EDGE_CHARS) for part in segment.split(":"))
    names = (_read_segment(piece, is_typed=is_typed) for piece in parts if len(piece) >= 4)
    return tuple(dict.fromkeys(chain.from_iterable(names)))


def _is_file_path(segment: str) -> bool:
    """Return whether a segment is a path to a file, or a file's name."""
    folder, slash, base = segment.rpartition("/")
    stem, dot, ending = base.rpartition(".")
    table = _load_table()
    if base in table.files:
        return bool(slash) or base[0] == "."
    if not dot:
        return False
    if slash:
        is_extension = _EXTENSION_PATTERN.fullmatch(ending) is not None
        return bool(folder) and (is_extension or ending.lower() in table.extensions)
    if not stem.strip(".") or ending.lower() not in table.extensions:
        return False
    is_plain = stem.isalpha() or "." in stem
    return not (is_plain and ending.lower() in table.methods) and not _VERSION_PATTERN.fullmatch(
        base
    )


def _changes_case(word: str) -> bool:
    """Return whether a word has a capital after a small letter, or a small letter after two capitals."""
    return not word[1:].islower() and _CASE_CHANGE_PATTERN.search(word) is not None


def _is_name(part: str, is_typed: bool) -> bool:  # noqa: FBT001 - called in a loop
    """Return whether a part of a segment is a name.

    A name has an underscore, a change of case, or letters with digits. In typed text, a hyphen also makes a name.
    """
    core = part.strip("_-")
    if len(core) < 4:
        return False
    if core.isalpha():
        return _changes_case(core)
    if core[0].isdigit() and (core.isdigit() or _DATE_PATTERN.match(core)):
        return False
    if "_" in core or _CASE_CHANGE_PATTERN.search(core):
        return _LETTER_PATTERN.search(core) is not None
    has_hyphen = "-" in core
    if not core.replace("-", "").isalpha() and _LETTER_PATTERN.search(core):
        return bool(
            _HEX_PATTERN.fullmatch(core)
            or _UPPERCASE_ID_PATTERN.fullmatch(core)
            or (len(core) >= 8 and not has_hyphen)
        )
    return is_typed and has_hyphen and core[0].isalpha() and len(core) >= 8


class _NameTable(NamedTuple):
    """Words that decide whether a shape is a file: extensions, methods, and files without an extension."""

    extensions: frozenset[str]
    methods: frozenset[str]
    files: frozenset[str]


@cache
def _load_table() -> _NameTable:
    """Load the table from `data/names.toml`, once."""
    data = tomllib.loads(
        resources.files("everthread.compaction").joinpath("data/names.toml").read_text("utf-8")
    )
    return _NameTable(
        *(frozenset(data[name].split()) for name in ("extensions", "methods", "files"))
    )
