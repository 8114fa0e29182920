"""Compressed bodies: decoded to be read, whatever the pieces, never beyond the limit."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.encoding import decode_body, make_decoder

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


FORMS: dict[str, list[Callable[[bytes], bytes]]] = {
    "gzip": [
        gzip.compress,
        lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:]),
    ],
    "deflate": [zlib.compress, raw_deflate],
    "zstd": [
        zstd.compress,
        lambda data: zstd.compress(data[:5]) + zstd.compress(data[5:]),
    ],
    "identity": [bytes],
}


@given(data=st.binary(max_size=3_000), size=st.integers(1, 50))
def test_decodes_in_pieces_as_in_one_call(data: bytes, size: int) -> None:
    for name, forms in FORMS.items():
        for form in forms:
            packed = form(data)
            assert decode_body(packed, f" {name.upper()}", len(data)) == data
            reader = make_decoder(name, len(data))
            assert reader
            # One byte does not identify which of two formats it begins.
            if form is not raw_deflate or size > 1:
                pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
                assert b"".join(map(reader.feed, pieces)) == data


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstd.compress),
    ],
)
def test_refuses_a_body_that_decompresses_over_the_limit(
    name: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(bytes(1_000_000))
    assert len(packed) < 2_000
    with pytest.raises(RequestRefused) as refused:
        decode_body(packed, name, 999_999)
    assert refused.value.status == 413
    assert decode_body(packed, name, 1_000_000) == bytes(1_000_000)


def test_does_not_decode_a_frame_with_a_huge_window() -> None:
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    packer = zstd.ZstdCompressor(options=options)
    packed = packer.compress(b"x") + packer.flush()
    assert decode_body(packed, "zstd", 1_000) is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"not gzip", "gzip"),
        (b"\xff\xff", "deflate"),
        (b"not zstd", "zstd"),
        (zstd.compress(b"half")[:-2], "zstd"),
        (gzip.compress(b"half", mtime=0)[:-2], "gzip"),
        (b"any", "br"),
        (b"any", "gzip, gzip"),
    ],
)
def test_does_not_decode_broken_bodies_or_unknown_encodings(body: bytes, name: str) -> None:
    assert decode_body(body, name, 1_000) is None


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("zstd", zstd.compress),
    ],
)
def test_does_not_decode_a_body_of_too_many_members(
    name: str, pack: Callable[[bytes], bytes]
) -> None:
    """Empty members are skipped in linear time."""
    assert decode_body(pack(b"") * 3_000 + pack(b"{}"), name, 100) == b"{}"
    assert decode_body(pack(b"") * 5_000, name, 100) is None
