"""A body with its time, signed: HMAC-SHA256 over `timestamp.body`, so that neither can be changed nor used later."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from everthread.gateway.errors import Refused

TIMESTAMP, SIGNATURE = "x-everthread-timestamp", "x-everthread-signature"
WINDOW = 300.0
"""Seconds a signature counts, before and after its time."""
_SECONDS = re.compile(r"\d{1,12}")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    made = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"sha256={made.hexdigest()}"


def signed_headers(secret: str, now: float, body: bytes) -> dict[str, str]:
    stamp = str(int(now))
    return {TIMESTAMP: stamp, SIGNATURE: signature(secret, stamp, body)}


def check(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    """`Refused` for a signature that is not ours or too old. The same words for both: who guesses learns nothing."""
    stamp, shown = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
    right = hmac.compare_digest(shown.encode(), signature(secret, stamp, body).encode())
    if not right or not _SECONDS.fullmatch(stamp) or abs(now - int(stamp)) > WINDOW:
        raise Refused(401, "invalid_signature", "The signature or its time is not valid.")
