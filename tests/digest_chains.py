"""The digest of every prefix of a history, computed message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from everthread.core.fingerprints import (
    byte_form,
    byte_form_text,
    chain_digest,
    message_fingerprint,
)


def canonical_chain(messages: Iterable[Any]) -> list[str]:
    """The identity of every prefix: the digest after each message."""
    return _chain(messages, message_fingerprint)


def byte_chain(messages: Iterable[Any]) -> list[str]:
    """Return the digests by which a prefix cache knows every prefix."""
    return _chain(messages, byte_fingerprint)


def byte_fingerprint(message: Any) -> str:
    """Return the digest by which a prefix cache knows one message."""
    return byte_form_text(byte_form(message))


def _chain(messages: Iterable[Any], fingerprint: Callable[[Any], str]) -> list[str]:
    return list(accumulate(map(fingerprint, messages), chain_digest, initial=""))[1:]
