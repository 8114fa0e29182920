"""The request for the messages in view, ready to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.conversation.conversation_state import ConversationState
from everthread.conversation.summary_note import without_note_marks
from everthread.core.caching.claude_cache_marks import (
    apply_cache_control,
    find_first_markable_index,
    find_last_marked_index,
    mark_system,
)
from everthread.core.caching.openai_cache_breakpoints import mark_system_breakpoint
from everthread.core.messages import Message
from everthread.core.types import Api, ModelRequest
from everthread.providers.catalog import choose_output_cap_field
from everthread.thread.events import RequestReady
from everthread.thread.lookup.recalled_excerpts import ExcerptFinder, VisibleThread
from everthread.wire.anthropic.anthropic_history import EncodedHistory
from everthread.wire.codecs import CODECS


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is ready to send."""

    request: ModelRequest
    api: Api
    estimate: int
    """Its prompt tokens, as estimated here."""
    tokens: int
    """The estimate, corrected by the provider's earlier counts."""
    encoded_history: EncodedHistory = field(
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
        options = {"encoded_history": self.encoded_history} if self.api == "anthropic" else {}
        return CODECS[self.api].encode_request(self.request, **options)


def build_request(
    state: ConversationState,
    injected: Sequence[Message] = (),
    *,
    cap: int | None = None,
) -> PreparedRequest:
    """Build the request for the messages in view. `injected` follows them, after every cache mark."""
    route = state.model.route
    options = state.options
    messages = state.messages.bodies[:]
    system = without_note_marks(state.system)
    if route.caches_by_marks:
        _mark_messages(state, messages)
        system = mark_system(system, ttl=options.cache_ttl)
    elif route.accepts_breakpoints:
        system = mark_system_breakpoint(system)
    messages += injected
    injected_tokens = state.model.counter.messages(injected)
    limit = _limit_output(state, cap or options.max_tokens, injected_tokens)
    request = ModelRequest(
        model=route.name,
        messages=messages,
        system=system,
        tools=state.toolbox.schemas,
        params={
            **({choose_output_cap_field(route.api, route.base_url): limit} if limit else {}),
            **route.ask_for_diagnosis(state.last_answer_id),
        },
    )
    state.last_request = request
    state.emit(RequestReady(state.session.id, request, len(injected)))
    return PreparedRequest(
        request,
        route.api,
        state.estimate + injected_tokens,
        state.tokens + injected_tokens,
        state.encoded_history,
    )


async def find_excerpts(state: ConversationState) -> list[Message]:
    """Find excerpts of messages that left the context and match the newest message; for this call only."""
    finder = ExcerptFinder(
        state.store,
        state.options.recall,
        state.model.counter,
    )
    session = state.session
    view = VisibleThread(
        session.tenant,
        session.thread,
        session=session.id,
        messages=state.messages.stored,
        is_complete=not state.compaction_count and session.kind not in ("branch", "continuation"),
    )
    return await finder.find(view, finder.compute_max_tokens(state.size), state.emit)


def _limit_output(
    state: ConversationState, requested_cap: int | None, injected_tokens: int
) -> int | None:
    """Lower the output cap to the model's maximum and to the room that the prompt leaves in a learnt window.

    `injected_tokens`: tokens of the messages that only this call sees.
    """
    if not requested_cap:
        return None
    calibration = state.learnt_usage.calibration
    unreported_tokens = calibration.count_unreported_tokens(state.model.name, state.estimate)
    max_output = state.model.limits.compute_max_output(
        state.tokens + injected_tokens, unreported_tokens=unreported_tokens + injected_tokens
    )
    caps = (requested_cap, state.model.limits.output_cap, max_output)
    return min(cap for cap in caps if cap)


def _mark_messages(state: ConversationState, messages: list[Message]) -> None:
    """Set cache marks on the last three messages, and again on the last one that the previous request marked.

    The earlier mark lets the provider find its cached prefix if many messages were added since.
    """
    previous_index = state.last_marked_index
    start = find_first_markable_index(len(messages), previous_index)
    marked_messages = apply_cache_control(
        messages[start:],
        ttl=state.options.cache_ttl,
        native_anthropic=state.model.route.api == "anthropic",
        previous_index=None if previous_index is None else previous_index - start,
        mark_tool_results=True,
    )
    last_index = find_last_marked_index(marked_messages)
    state.last_marked_index = None if last_index is None else start + last_index
    messages[start:] = marked_messages
