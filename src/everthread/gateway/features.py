"""The interface of the gateway's features, which are in `filters/`.

A `Feature` is one object for all requests; `factory/gateways.py` lists them. For an exchange that
concerns it, a feature makes a `Filter`, which holds the state of that exchange. The first feature of
the list is next to the client, the last next to the upstream: a request passes them from first to
last, and an answer from last to first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everthread.gateway.answers import Answer
    from everthread.gateway.exchange import Exchange, UpstreamRequest
    from everthread.gateway.managed_exchange import ManagedExchange
    from everthread.thread.caller.caller_request import Outcome


class Filter:
    """The work of one feature on one exchange. Each method is a moment of the exchange, and does nothing by default."""

    def change_request(self, request: UpstreamRequest) -> UpstreamRequest:
        """Return the request to send upstream instead of this one. Called before every attempt and every round."""
        return request

    async def retry_after_refusal(self, status: int, body: bytes) -> bool:  # noqa: ARG002
        """Return True to have the request sent again. Called after an error of the upstream.

        Only for managed requests: another error is passed on to the client.
        """
        return False

    async def change_answer(self, answer: Answer) -> Answer:
        """Return the answer for the client instead of this one, before its first byte is sent."""
        return answer

    def convert_piece(self, piece: bytes) -> bytes:
        """Return the bytes to send instead of a piece of the answer, or no bytes to send nothing yet."""
        return piece

    def release_held_bytes(self) -> bytes:
        """Return the bytes that `convert_piece` has held back, after the last piece."""
        return b""

    def read_piece(self, piece: bytes) -> None:
        """Read a piece of the answer after it was sent to the client, as it was before any `convert_piece`."""

    def finish(self, outcome: Outcome) -> Outcome:
        """Return the outcome, to which the filter may add. Called after the exchange, however it ended."""
        return outcome


class Feature:
    """Make a filter for each exchange that the feature concerns."""

    paths: frozenset[str] = frozenset()
    """Paths without a conversation whose requests the feature wants to read."""

    def make_filter(self, exchange: Exchange) -> Filter | None:  # noqa: ARG002
        """Return the filter for an exchange; None if the exchange does not concern this feature."""
        return None

    def make_managed_filter(self, managed_exchange: ManagedExchange) -> Filter | None:
        """Return the filter for a managed exchange, by default the same as for any other."""
        return self.make_filter(managed_exchange.exchange)
