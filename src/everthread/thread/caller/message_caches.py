"""Identities and sizes of callers' messages. Of a history that comes again, only the new end is worked out.

Both caches are safe to use from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from threading import Lock
from typing import Any, Protocol

from everthread.core.recent_dict import RecentDict
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api
from everthread.thread.history import (
    MAX_CACHED_DIGESTS,
    MessageIdentity,
    identify_message,
)
from everthread.thread.wire_messages import decode_messages

MAX_SIZES = 50_000


class RawMessage(Protocol):
    """A message and its bytes."""

    @property
    def raw(self) -> bytes: ...

    @property
    def value(self) -> Any: ...


class IdentityCache:
    """The identities of the messages seen last."""

    def __init__(self, most: int = MAX_CACHED_DIGESTS) -> None:
        self._identities: RecentDict[bytes, MessageIdentity] = RecentDict(most)
        self._lock = Lock()

    def read(self, api: Api, message: RawMessage) -> MessageIdentity:
        key = blake2b(message.raw, digest_size=20, person=api.encode()[:16]).digest()
        identity = self._identities.get(key)
        if identity is None:
            identity = identify_message(api, message.value, key)
        with self._lock:
            self._identities[key] = identity
        return identity


class SizeCache:
    """Tokens of messages."""

    def __init__(self, most: int = MAX_SIZES) -> None:
        self._tokens: RecentDict[tuple[str, Any], int] = RecentDict(most)
        self._lock = Lock()

    def pieces(
        self,
        api: Api,
        model: str,
        pieces: Sequence[MessageIdentity],
        messages: Sequence[RawMessage],
    ) -> list[int]:
        """Return the tokens of each message."""
        counts = [self._tokens.get((model, piece.key)) for piece in pieces]
        return [
            self.values(api, model, piece.key, [message.value])
            if size is None
            else size
            for piece, message, size in zip(pieces, messages, counts, strict=True)
        ]

    def values(self, api: Api, model: str, key: Any, values: Sequence[Any]) -> int:
        """Return the tokens of messages, cached under the digest of a key: the key may be a long text."""
        if not isinstance(key, bytes) or len(key) > 64:
            key = sha256(repr(key).encode("utf-8", "surrogatepass")).digest()
        return self._count_once(
            (model, key),
            lambda: TokenCounter(model).messages(decode_messages(api, values, model)),
        )

    def text(self, model: str, text: str) -> int:
        """Return the tokens of a text that is a part of a message."""
        return self._count_once((model, text), lambda: TokenCounter(model).text(text))

    def _count_once(self, key: tuple[str, Any], count: Callable[[], int]) -> int:
        tokens = self._tokens.get(key)
        if tokens is None:
            tokens = count()
        with self._lock:
            self._tokens[key] = tokens
        return tokens
