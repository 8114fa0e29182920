"""The request for the messages in view, ready to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.conversation.state import ConversationState
from everthread.conversation.summary_note import as_sent
from everthread.core.caching.claude_cache_marks import (
    apply_cache_control,
    first_markable_index,
    last_marker,
    mark_system,
)
from everthread.core.caching.openai_cache_breakpoints import mark_system_breakpoint
from everthread.core.messages import Message
from everthread.core.types import Api, Request
from everthread.providers.catalog import cap_field
from everthread.thread.events import RequestReady
from everthread.thread.recalled_excerpts import ExcerptFinder, ThreadView
from everthread.thread.recovery import room_for_output
from everthread.wire.anthropic.message_codec import EncodedHistory
from everthread.wire.codecs import CODECS


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is ready to send."""

    request: Request
    api: Api
    estimate: int
    """Its prompt tokens, as estimated here."""
    tokens: int
    """The estimate, corrected by the provider's earlier counts."""
    written: EncodedHistory = field(
        default_factory=EncodedHistory, repr=False, compare=False
    )
    """The part of the conversation that is encoded already."""

    def __repr__(self) -> str:
        count = len(self.request.messages)
        return f"<PreparedRequest {self.request.model}, {self.api}: {count} messages, about {self.tokens:,} tokens>"

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body in the protocol of the model: `client.chat.completions.create(**prepared.body)`.

        It may be extended; the messages in it are shared with later requests, so change a copy of one, or use `inject`.
        """
        before = {"written": self.written} if self.api == "anthropic" else {}
        return CODECS[self.api].encode_request(self.request, **before)


def build_request(
    live: ConversationState, injected: Sequence[Message] = (), *, cap: int | None = None
) -> PreparedRequest:
    """Build the request for the messages in view. `injected` follows them, after every cache mark."""
    route = live.route
    options = live.setup.options
    messages = live.bodies[:]
    system = as_sent(live.system)
    if route.caches_by_marks:
        _mark_messages(live, messages)
        system = mark_system(system, ttl=options.cache_ttl)
    elif route.takes_breakpoints:
        system = mark_system_breakpoint(system)
    messages += injected
    extra = live.counter.messages(injected)
    limit = _limit_output(live, cap or options.max_tokens, extra)
    request = Request(
        model=route.name,
        messages=messages,
        system=system,
        tools=live.tools,
        params={
            **({cap_field(route.api, route.base_url): limit} if limit else {}),
            **route.ask_for_diagnosis(live.last_answer_id),
        },
    )
    live.last_request = request
    live.emit(RequestReady(live.session.id, request, len(injected)))
    return PreparedRequest(
        request, route.api, live.estimate + extra, live.tokens + extra, live.written
    )


async def find_excerpts(live: ConversationState) -> list[Message]:
    """Find excerpts of what left the context that the newest message is about, for this call only."""
    finder = ExcerptFinder(live.setup.store, live.setup.options.recall, live.counter)
    session = live.session
    view = ThreadView(
        session.tenant,
        session.thread,
        session=session.id,
        messages=live.stored,
        is_whole=not live.compactions
        and session.kind not in ("branch", "continuation"),
    )
    return await finder.find(view, finder.room(live.size), live.emit)


def _limit_output(
    live: ConversationState, asked: int | None, injected: int
) -> int | None:
    """Lower the output cap to the model's maximum and to the room that the prompt leaves in a learnt window.

    `injected`: tokens of the messages that only this call sees.
    """
    if not asked:
        return None
    limits = [asked]
    if live.output_cap:
        limits.append(live.output_cap)
    if live.learnt_window:
        unreported = (
            live.state.calibration.unreported(live.route.name, live.estimate) + injected
        )
        limits.append(
            room_for_output(
                live.learnt_window, live.tokens + injected, unreported=unreported
            )
        )
    return min(limits)


def _mark_messages(live: ConversationState, messages: list[Message]) -> None:
    """Mark the last three messages, and the one the last request marked last if it is far back."""
    previous = live.marked
    start = first_markable_index(len(messages), previous)
    near = apply_cache_control(
        messages[start:],
        ttl=live.setup.options.cache_ttl,
        native_anthropic=live.route.api == "anthropic",
        previous=None if previous is None else previous - start,
        wordless_results=True,
    )
    last = last_marker(near)
    live.marked = None if last is None else start + last
    messages[start:] = near
