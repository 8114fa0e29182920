"""Identities of messages by their text: of a history that comes again, only the new end is read."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from threading import Lock

from everthread.core.types import Api
from everthread.gateway.json_slices import Element
from everthread.thread.history import MAX_KNOWN, MessageIdentity, identify


class IdentityCache:
    """The identities of the messages seen last; safe to use from several threads."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._identities: OrderedDict[bytes, MessageIdentity] = OrderedDict()
        self._most = most
        self._lock = Lock()

    def read(self, api: Api, element: Element) -> MessageIdentity:
        key = blake2b(element.raw, digest_size=20, person=api.encode()[:16]).digest()
        identity = self._identities.get(key)
        if identity is None:
            identity = identify(api, element.value, key)
        with self._lock:
            self._identities[key] = identity
            self._identities.move_to_end(key)
            if len(self._identities) > self._most:
                self._identities.popitem(last=False)
        return identity
