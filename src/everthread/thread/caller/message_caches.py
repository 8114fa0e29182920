"""Cache the identities and sizes of callers' messages, so that only the new end of a repeated history is computed.

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
from everthread.thread.matching.history import (
    MAX_CACHED_DIGESTS,
    MessageIdentity,
    identify_message,
)
from everthread.thread.wire_messages import decode_messages

MAX_CACHED_SIZES = 50_000


class RawMessage(Protocol):
    """A message and its bytes."""

    @property
    def raw(self) -> bytes: ...

    @property
    def value(self) -> Any: ...


class IdentityCache:
    """The identities of the messages seen last."""

    def __init__(self) -> None:
        self._identities: RecentDict[bytes, MessageIdentity] = RecentDict(MAX_CACHED_DIGESTS)
        self._lock = Lock()

    def read_identity(self, api: Api, message: RawMessage) -> MessageIdentity:
        """Return the identity of a message, computed once."""
        key = blake2b(message.raw, digest_size=20, person=api.encode()[:16]).digest()
        identity = self._identities.get(key)
        if identity is None:
            identity = identify_message(api, message.value, key)
        with self._lock:
            self._identities[key] = identity
        return identity


class SizeCache:
    """The tokens of the messages seen last."""

    def __init__(self) -> None:
        self._tokens: RecentDict[tuple[str, Any], int] = RecentDict(MAX_CACHED_SIZES)
        self._lock = Lock()

    def count_messages(
        self,
        api: Api,
        model: str,
        identities: Sequence[MessageIdentity],
        messages: Sequence[RawMessage],
    ) -> list[int]:
        """Return the tokens of each message."""
        counts = [self._tokens.get((model, identity.key)) for identity in identities]
        return [
            self.count_together(api, model, identity.key, [message.value]) if size is None else size
            for identity, message, size in zip(identities, messages, counts, strict=True)
        ]

    def count_together(self, api: Api, model: str, key: Any, wire_messages: Sequence[Any]) -> int:
        """Return the tokens of these messages together, and cache them under a digest of `key`."""
        if not isinstance(key, bytes) or len(key) > 64:
            key = sha256(repr(key).encode("utf-8", "surrogatepass")).digest()
        return self._count_once(
            (model, key),
            lambda: TokenCounter(model).messages(decode_messages(api, wire_messages, model)),
        )

    def count_text(self, model: str, text: str) -> int:
        """Return the tokens of a text that is a part of a message."""
        return self._count_once((model, text), lambda: TokenCounter(model).text(text))

    def _count_once(self, key: tuple[str, Any], count: Callable[[], int]) -> int:
        """Return the tokens cached under a key; count them if they are not known."""
        tokens = self._tokens.get(key)
        if tokens is None:
            tokens = count()
        with self._lock:
            self._tokens[key] = tokens
        return tokens
