"""Size of a client's next prompt, with the rewrite in use and the gateway's additions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.gateway.management.recall_offer import hidden_values
from everthread.gateway.management.request_reader import SizeCache
from everthread.gateway.management.rewrites import RewriteState
from everthread.store.records import Rewrite

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn


class PromptSizer:
    """Counts the prompt of a request; each message and each rewrite is counted once."""

    def __init__(self, sizes: SizeCache) -> None:
        self._sizes = sizes

    def tokens(self, turn: ManagedTurn, used: Rewrite | None) -> int:
        """Return the prompt as the provider counts it, with this rewrite or none."""
        return turn.memory.context.calibration.project(
            turn.request.model, self.estimate(turn, used)
        )

    def estimate(self, turn: ManagedTurn, used: Rewrite | None) -> int:
        """Return the prompt as estimated here, not corrected by the provider's reports."""
        if used is None:
            return turn.request.fixed + turn.request.size
        request = turn.request
        api = request.incoming.api
        state = RewriteState.load(used.state)
        if state.model == turn.request.model:
            head = state.tokens
        else:
            values = turn.replacement_values(used)
            head = self._sizes.values(
                api, request.model, key=used.replacement, values=values
            )
        if state.note:
            messages = [{"role": "user", "content": state.note}]
            head += self._sizes.values(
                api, turn.request.model, key=("note", state.note), values=messages
            )
        tail = sum(request.sizes[used.length :])
        return request.fixed + head + tail + self._added_tokens(turn, used.length)

    def _added_tokens(self, turn: ManagedTurn, length: int) -> int:
        """Return the tokens of hidden rounds and restored files, less those of the messages they replace."""
        api = turn.request.incoming.api
        added = 0
        for index, value in turn.restored(length).items():
            key = ("restored", turn.request.history.digest(index + 1))
            added += (
                self._sizes.values(api, turn.request.model, key=key, values=[value])
                - turn.request.sizes[index]
            )
        texts, values, places = hidden_values(turn, length)
        if not texts:
            return added
        added += self._sizes.values(
            api, turn.request.model, key=("hidden", *texts), values=values
        )
        return added - sum(sum(turn.request.sizes[start:end]) for start, end in places)
