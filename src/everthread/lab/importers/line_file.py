"""Files of JSON lines, parsed again on each pass, so that a log of 100 MB is never in memory as a whole."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from everthread.errors import TranscriptError

GZIP_HEADER = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineFile:
    """A file of JSON lines. Iterate over it, more than once if needed, for each line's number and object."""

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source
        self.bad_line_numbers: set[int] = set()
        """Numbers of the lines that are not JSON objects, complete after the first pass."""

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line_bytes in self._read_lines():
            line_object = _parse_object(line_bytes)
            if line_object is None:
                self.bad_line_numbers.add(number)
            else:
                yield number, line_object

    @property
    def first_object(self) -> dict[str, Any]:
        """Return the file's first object; raise `StopIteration` if there is none."""
        return next(line_object for _, line_object in self)

    def begins_with_objects(self) -> bool:
        """Return whether the file has at least two lines and the first is a JSON object, as in every log."""
        lines = self._read_lines()
        first_line = next(lines, None)
        return (
            first_line is not None
            and _parse_object(first_line[1]) is not None
            and next(lines, None) is not None
        )

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank."""
        with self._open_bytes() as file:
            try:
                for number, line in enumerate(file, 1):
                    content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                    if not content.isspace():
                        yield number, content
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise TranscriptError(f"{self._source}: cannot be unpacked: {error}") from error

    def _open_bytes(self) -> IO[bytes]:
        with self._path.open("rb") as file:
            is_packed = file.read(len(GZIP_HEADER)) == GZIP_HEADER
        opener = gzip.open if is_packed else open
        return cast("IO[bytes]", opener(self._path, "rb"))


def _parse_object(line: bytes) -> dict[str, Any] | None:
    value: Any = None
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        # Stricter than the standard library: broken UTF-8, NaN and lone surrogates are read below.
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line.decode("utf-8", "replace"))
    return value if isinstance(value, dict) else None
