"""Keys over any SQL database: the part of `SqlStore` that is about them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from everthread.store.database import Tx
from everthread.store.keys import KeyUse, NewKey, StoredKey
from everthread.store.operations import keys

T = TypeVar("T")


class SqlKeys(ABC):
    """`KeyStore` over a database."""

    _clock: Callable[[], float]

    @abstractmethod
    async def _write(self, work: Callable[[Tx], T], *, session: str | None = None) -> T: ...

    @abstractmethod
    async def _read(self, work: Callable[[Tx], T]) -> T: ...

    async def create_key(self, new: NewKey) -> None:
        now = self._clock()
        await self._write(lambda tx: keys.create(tx, new, now))

    async def find_key(self, digest: str, day: str) -> StoredKey | None:
        return await self._read(lambda tx: keys.find(tx, digest, day))

    async def list_keys(self, day: str, *, tenant: str | None = None) -> list[StoredKey]:
        return await self._read(lambda tx: keys.listed(tx, day, tenant))

    async def revoke_key(self, key_id: str) -> float:
        now = self._clock()
        return await self._write(lambda tx: keys.revoke(tx, key_id, now))

    async def count_use(self, day: str, uses: Mapping[str, KeyUse]) -> dict[str, KeyUse]:
        now = self._clock()
        return await self._write(lambda tx: keys.count(tx, day, uses, now))

    async def shared_secret(self, name: str) -> bytes:
        fresh = secrets.token_bytes(32)
        return await self._write(lambda tx: keys.secret(tx, name, fresh))
