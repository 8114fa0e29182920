"""Bodies as they are compressed: decoded to be read, never beyond a limit."""

from __future__ import annotations

import sys
import zlib
from typing import Protocol

from everthread.gateway.errors import Refused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UNREADABLE = (zlib.error, zstd.ZstdError)
"""What a decoder raises for a body that is not what its header says."""
_WINDOW_LOG = 23
"""A zstd frame that needs more than 8 MB to be read is none for HTTP (RFC 9659)."""


READABLE = ("gzip", "deflate", "zstd", "identity", "x-gzip")
"""What can be decoded here, by the names of HTTP."""


def readable_encodings(accepted: bytes) -> bytes:
    """Of an `accept-encoding` what is understood here too: an answer that nobody reads is charged to nobody."""
    names = [part.strip() for part in accepted.decode("latin-1").split(",")]
    kept = [name for name in names if name.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept or ["identity"]).encode("latin-1")


class Decoder(Protocol):
    """Decodes piece by piece."""

    @property
    def complete(self) -> bool:
        """Whether what came so far is a whole body."""
        ...

    def feed(self, data: bytes) -> bytes: ...


class _Plain:
    complete = True

    def feed(self, data: bytes) -> bytes:
        return data


class _Zipped:
    """gzip, also of several members, or deflate with or without its header. At most `limit` bytes come out at all."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._gzip = encoding in ("gzip", "x-gzip")
        self._left = limit
        self._zip = zlib.decompressobj(31 if self._gzip else 15)
        self._begun = False

    @property
    def complete(self) -> bool:
        return self._zip.eof

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


class _Zstd:
    """zstd, also of several frames. At most `limit` bytes come out at all."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._frame = self._begin()

    @property
    def complete(self) -> bool:
        return self._frame.eof

    def feed(self, data: bytes) -> bytes:
        found: list[bytes] = []
        while data:
            if self._frame.eof:
                self._frame = self._begin()
            piece = self._frame.decompress(data, self._left + 1)
            self._left -= len(piece)
            if self._left < 0:
                raise too_large()
            found.append(piece)
            data = self._frame.unused_data
        return b"".join(found)

    @staticmethod
    def _begin() -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


def decoder(encoding: str, limit: int) -> Decoder | None:
    """What decodes a `content-encoding`; None where it is not known here."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _Plain()
    if name == "zstd":
        return _Zstd(limit)
    return _Zipped(name, limit) if name in ("gzip", "x-gzip", "deflate") else None


def decoded(body: bytes, encoding: str, limit: int) -> bytes | None:
    """The body to be read; None where it is broken or in an encoding that is not known here.

    `Refused` when it is larger than the limit once decoded.
    """
    reader = decoder(encoding, limit)
    if reader is None:
        return None
    try:
        found = reader.feed(body)
    except UNREADABLE:
        return None
    return found if reader.complete or not body else None


def too_large() -> Refused:
    return Refused(413, "request_too_large", "The request is larger than this gateway accepts; see gateway.limits.")
