"""`store.keys`: keys of the gateway, their use by UTC day (2026-01-31), and secrets that all processes share."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from everthread.store.access import StoreTopic
from everthread.store.key_records import KeyUse, NewKey, StoredKey
from everthread.store.sql import api_keys


class ApiKeyStore(StoreTopic):
    """Keys of the gateway, their use by UTC day (2026-01-31), and secrets that all processes share."""

    async def create_key(self, new: NewKey) -> None:
        await self._access.write(api_keys.create_key, self._access.clock(), new)

    async def find_key(self, digest: str, day: str) -> StoredKey | None:
        """Return the key with this digest and its use on a day, even if it was revoked."""
        return await self._access.read(api_keys.find_key, digest, day)

    async def list_keys(self, day: str, *, tenant: str | None = None) -> list[StoredKey]:
        """Return all keys, also revoked ones, the newest first."""
        return await self._access.read(api_keys.list_keys, day, tenant=tenant)

    async def revoke_key(self, key_id: str) -> float:
        """Revoke a key; return when it was first revoked. Raise `UnknownIdError` if there is no such key."""
        return await self._access.write(api_keys.revoke_key, self._access.clock(), key_id)

    async def add_use(self, day: str, uses: Mapping[str, KeyUse]) -> dict[str, KeyUse]:
        """Add to the use of keys, by their ids; return the day's sums, with the use by other processes."""
        return await self._access.write(api_keys.add_use, self._access.clock(), day, uses)

    async def load_shared_secret(self, name: str) -> bytes:
        """Return the random 256-bit secret of this name, which every process on the store shares."""
        secret = await self._access.read(api_keys.find_secret, name)
        if secret is not None:
            return secret
        return await self._access.write(
            api_keys.load_or_store_secret, name, secrets.token_bytes(32)
        )
