"""Bodies as they are compressed: decoded to be read, never beyond a limit."""

from __future__ import annotations

import zlib
from typing import Protocol

from everthread.gateway.access import Refused


class Decoder(Protocol):
    """Decodes piece by piece."""

    def feed(self, data: bytes) -> bytes: ...


class _Plain:
    def feed(self, data: bytes) -> bytes:
        return data


class _Zipped:
    """gzip, also of several members, or deflate with or without its header. At most `limit` bytes come out at all."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._gzip = encoding in ("gzip", "x-gzip")
        self._left = limit
        self._zip = zlib.decompressobj(31 if self._gzip else 15)
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        found: list[bytes] = []
        while data:
            if self._zip.eof:
                if not self._gzip:
                    break
                self._zip = zlib.decompressobj(31)
            piece = self._piece(data)
            self._left -= len(piece)
            if self._left < 0:
                raise too_large()
            found.append(piece)
            data = self._zip.unused_data
        return b"".join(found)

    def _piece(self, data: bytes) -> bytes:
        begun, self._begun = self._begun, True
        try:
            return self._zip.decompress(data, self._left + 1)
        except zlib.error:
            if self._gzip or begun:
                raise
            self._zip = zlib.decompressobj(-15)
            return self._zip.decompress(data, self._left + 1)


def decoder(encoding: str, limit: int) -> Decoder | None:
    """What decodes a `content-encoding`; None where it is not known here."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _Plain()
    return _Zipped(name, limit) if name in ("gzip", "x-gzip", "deflate") else None


def decoded(body: bytes, encoding: str, limit: int) -> bytes | None:
    """The body to be read; None where it is broken or in an encoding that is not known here.

    `Refused` when it is larger than the limit once decoded.
    """
    reader = decoder(encoding, limit)
    if reader is None:
        return None
    try:
        return reader.feed(body)
    except zlib.error:
        return None


def too_large() -> Refused:
    return Refused(413, "request_too_large", "The request is larger than this gateway accepts; see gateway.limits.")
