"""From what is in view to what is sent: cache marks, what is injected for one call, the output cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.conversation.events import RequestReady
from everthread.conversation.live import Live
from everthread.conversation.prompt import as_sent
from everthread.core.caching import apply_cache_control, mark_system, marks_begin
from everthread.core.exchange import Api, Reply, Request
from everthread.core.messages import Message
from everthread.providers.output_cap import cap_field
from everthread.wire.anthropic.writing import Written
from everthread.wire.codecs import CODECS


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be sent as it is."""

    request: Request
    api: Api
    estimate: int
    """Its prompt tokens, as estimated here."""
    tokens: int
    """The same, corrected by what the provider reported before."""
    written: Written = field(default_factory=Written, repr=False, compare=False)
    """What of the conversation was written before: it need not be again."""

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body in the protocol of the model: `client.chat.completions.create(**prepared.body)`."""
        before = {"written": self.written} if self.api == "anthropic" else {}
        return CODECS[self.api].encode_request(self.request, **before)


def build(live: Live, injected: Sequence[Message] = (), *, cap: int | None = None) -> Prepared:
    """The request for what is in view. `injected` follows the last stored message, behind every cache mark."""
    route, options = live.route, live.setup.options
    messages, system = live.bodies, as_sent(live.system)
    if route.caches_by_marks:
        messages, system = _marked(live), mark_system(system, ttl=options.cache_ttl)
    limit = cap or options.max_tokens
    request = Request(
        model=route.name,
        messages=[*messages, *injected],
        system=system,
        tools=live.tools,
        params={cap_field(route.api, route.base_url): limit} if limit else {},
    )
    live.last_request = request
    live.emit(RequestReady(live.session.id, request, len(injected)))
    extra = live.counter.messages(injected)
    return Prepared(request, route.api, live.estimate + extra, live.tokens + extra, live.written)


def decode(response: Any, *, api: Api, model: str) -> Reply:
    """A provider's answer, in whichever form a client hands it out: a value of ours, JSON, an SDK's object, chunks."""
    if isinstance(response, Reply):
        return response
    if isinstance(response, list | tuple):
        decoder = CODECS[api].stream_decoder(model=model)
        for chunk in response:
            decoder.feed(_json(chunk))
        return decoder.reply()
    return CODECS[api].decode_reply(_json(response), model=model)


def _json(value: Any) -> Any:
    """An SDK's object as the JSON it was made from."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else value


def _marked(live: Live) -> list[Message]:
    """The messages with marks on the last three, and where the last request had its last one if that is far back."""
    bodies, previous = live.bodies, live.marked
    start = marks_begin(len(bodies), previous)
    near = apply_cache_control(
        bodies[start:],
        ttl=live.setup.options.cache_ttl,
        native_anthropic=live.route.api == "anthropic",
        previous=None if previous is None else previous - start,
    )
    live.marked = len(bodies) - 1 if bodies else None
    return [*bodies[:start], *near]
