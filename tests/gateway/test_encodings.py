"""Compressed bodies: decoded to be read, whatever the pieces, never beyond the limit."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.gateway.access import Refused
from everthread.gateway.encodings import decoded, decoder


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


FORMS: dict[str, list[Callable[[bytes], bytes]]] = {
    "gzip": [gzip.compress, lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])],
    "deflate": [zlib.compress, raw_deflate],
    "identity": [bytes],
}


@given(data=st.binary(max_size=3_000), size=st.integers(1, 50))
def test_in_pieces_as_at_once(data: bytes, size: int) -> None:
    for name, forms in FORMS.items():
        for form in forms:
            packed = form(data)
            assert decoded(packed, f" {name.upper()}", len(data)) == data
            reader = decoder(name, len(data))
            assert reader
            if form is not raw_deflate or size > 1:  # one byte cannot tell which of two formats it begins
                pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
                assert b"".join(map(reader.feed, pieces)) == data


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_what_grows_beyond_the_limit_is_refused(pack: object) -> None:
    packed = gzip.compress(bytes(1_000_000)) if pack is gzip.compress else zlib.compress(bytes(1_000_000))
    name = "gzip" if pack is gzip.compress else "deflate"
    assert len(packed) < 2_000
    with pytest.raises(Refused) as refused:
        decoded(packed, name, 999_999)
    assert refused.value.status == 413
    assert decoded(packed, name, 1_000_000) == bytes(1_000_000)


@pytest.mark.parametrize(
    ("body", "name"), [(b"not gzip", "gzip"), (b"\xff\xff", "deflate"), (b"any", "br"), (b"any", "gzip, gzip")]
)
def test_what_cannot_be_read_is_left_alone(body: bytes, name: str) -> None:
    assert decoded(body, name, 1_000) is None
