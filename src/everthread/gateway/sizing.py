"""How large a client's messages are; each is counted once for each way of counting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from everthread.core.exchange import Api
from everthread.core.tokens import TokenCounter
from everthread.gateway.base import decode_messages
from everthread.gateway.slicing import Element
from everthread.gateway.threads import MessageIdentity

_MOST = 50_000


class Sizes:
    def __init__(self, most: int = _MOST) -> None:
        self._known: OrderedDict[tuple[str, Any], int] = OrderedDict()
        self._most = most

    def pieces(self, api: Api, model: str, pieces: Sequence[MessageIdentity], elements: Sequence[Element]) -> list[int]:
        """Tokens of each message."""
        known = [self._known.get((model, piece.key)) for piece in pieces]
        return [
            self.values(api, model, piece.key, [element.value]) if size is None else size
            for piece, element, size in zip(pieces, elements, known, strict=True)
        ]

    def values(self, api: Api, model: str, key: Any, values: Sequence[Any]) -> int:
        """Tokens of messages that are known under a name."""
        return self._known_or((model, key), lambda: TokenCounter(model).messages(decode_messages(api, values, model)))

    def _known_or(self, key: tuple[str, Any], count: Callable[[], int]) -> int:
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        made = self._known[key] = count()
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return made
