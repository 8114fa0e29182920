"""A model's answer: decoded, stored and accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from everthread.compaction.engine import ContextEngine
from everthread.conversation.conversation_state import ConversationState
from everthread.conversation.given_messages import make_stub_results
from everthread.conversation.requests import PreparedRequest
from everthread.core.caching.provider_diagnosis import with_diagnosis
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.message_repair import with_call_ids
from everthread.core.messages import (
    Message,
    ToolCall,
    calls_of,
    text_of,
    without_native_value,
)
from everthread.core.types import Api, ModelReply
from everthread.core.validation import is_empty
from everthread.errors import ModelError
from everthread.store.records import NewMessage, new_id
from everthread.thread.accounting import read_usage
from everthread.thread.events import LimitLearnt
from everthread.thread.wire_messages import dump_model
from everthread.wire.codecs import CODECS

INTERRUPTED_ANSWER_TEXT = "[The answer was interrupted here.]"


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer, stored and accounted for."""

    message: Message
    stop: str | None
    usage: CanonicalUsage
    cost: Decimal | None
    """Dollars, or None if a price is unknown."""
    id: int
    """The stored message."""

    def __repr__(self) -> str:
        text = " ".join(self.text.split())
        return f"<ModelAnswer {text[:60] + '…' if len(text) > 60 else text!r}: {self.stop}, {len(self.calls)} calls>"

    @property
    def text(self) -> str:
        return text_of(self.message)

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls of the answer; pass their results to `add_results`."""
        return calls_of(self.message)


def decode_response(response: Any, *, api: Api, model: str) -> ModelReply:
    """Decode a provider's answer: a `ModelReply`, JSON, an SDK's object, or a list of stream chunks."""
    if isinstance(response, ModelReply):
        return response
    if isinstance(response, list | tuple):
        decoder = CODECS[api].stream_decoder(model=model)
        for chunk in response:
            decoder.feed(dump_model(chunk))
        return decoder.reply()
    return CODECS[api].decode_reply(dump_model(response), model=model)


def make_storable(message: Message) -> Message:
    """Return the message with a unique id for each call, and with content.

    Some servers give calls no ids, or the same id to all of them, so results could not be matched to calls.
    """
    ids = [call.id for call in calls_of(message)]
    if not ids:
        if not _is_empty_on_wire(message):
            return message
        return {**without_native_value(message), "content": ""}
    if all(ids) and len(set(ids)) == len(ids):
        return message
    return with_call_ids(message, list(_make_unique_ids(ids)))


def _is_empty_on_wire(message: Message) -> bool:
    """Return whether a message is empty, also in its wire form, which may contain reasoning.

    Providers refuse an empty block.
    """
    native = message.get("_native", {}).get("value")
    content = native.get("content") if isinstance(native, dict) else native
    return is_empty(message) and is_empty({"role": "assistant", "content": content})


def _make_unique_ids(ids: list[str]) -> Iterator[str]:
    used_ids: set[str] = set()
    for call_id in ids:
        yield call_id if call_id and call_id not in used_ids else f"call_{new_id()}"
        used_ids.add(call_id)


class AnswerRecorder:
    """The recorder of one conversation: it stores answers and accounts for them."""

    def __init__(
        self,
        state: ConversationState,
        learn_usage: Callable[[CanonicalUsage, Mapping[str, Any]], None],
    ) -> None:
        """Set up the recorder.

        `learn_usage`: called with each usage that the provider reports for the conversation's own model, and the
        parameters of its request.
        """
        self._state = state
        self._learn_usage = learn_usage
        self.sent_request: PreparedRequest | None = None
        """The request that has no answer yet."""
        self._interrupted_replies: list[ModelReply] = []
        """Interrupted replies that the model's own wrappers requested again."""

    @property
    def _request_facts(self) -> tuple[Api, str, int]:
        """Protocol, model and prompt tokens of the sent request. The conversation may have another model by now."""
        if self.sent_request is None:
            return self._state.model.route.api, self._state.model.name, self._state.tokens
        return self.sent_request.api, self.sent_request.request.model, self.sent_request.tokens

    @property
    def _answering_model(self) -> str:
        """The model that answers the sent request."""
        _, requested_model, _ = self._request_facts
        if requested_model == self._state.model.name:
            return self._state.model.answering_name
        return requested_model

    def _decode(self, response: Any) -> ModelReply:
        api, model, _ = self._request_facts
        return decode_response(response, api=api, model=model)

    def _read_usage(self, reply: ModelReply) -> tuple[CanonicalUsage, bool]:
        api, _, prompt_tokens = self._request_facts
        usage, is_estimated = read_usage(
            reply, prompt_tokens, api=api, counter=self._state.model.counter
        )
        return with_diagnosis(usage, reply.raw), is_estimated

    async def record(self, response: Any) -> ModelAnswer:
        """Store and account for an answer in any form."""
        state = self._state
        reply = self._decode(response)
        message = make_storable(reply.message)
        usage, is_estimated = self._read_usage(reply)
        model_name = self._answering_model
        is_own_model = model_name == state.model.name
        state.last_answer_id = reply.id if is_own_model else ""
        if self.sent_request and not is_estimated and is_own_model:
            state.learnt_usage.calibration.observe(
                model_name, usage.prompt_tokens, self.sent_request.estimate
            )
        state.engine.call(ContextEngine.update_from_response, usage)
        if is_own_model and not is_estimated:
            self._learn_usage(usage, self.sent_request.request.params if self.sent_request else {})
        new_messages = [
            *(NewMessage(stub) for stub in make_stub_results(state.messages.open_calls)),
            NewMessage(message, event=new_id()),
        ]
        stored_messages, cost, _ = await asyncio.gather(
            state.append(new_messages),
            self._account(usage, model_name, is_estimated=is_estimated),
            state.save(),
        )
        await self.account_interrupted()
        if is_own_model and not is_estimated:
            await self._learn_success(usage)
        self.sent_request = None
        return ModelAnswer(message, reply.stop, usage, cost, stored_messages[-1].id)

    async def _account(
        self, usage: CanonicalUsage, model: str, *, is_estimated: bool
    ) -> Decimal | None:
        state = self._state
        provider = state.model.route.provider if model == state.model.name else "auto"
        return await state.accounting.record(
            state.session.id,
            model,
            usage,
            is_estimated=is_estimated,
            provider=provider,
        )

    def note_partial_reply(self, error: ModelError) -> None:
        """Remember the partial reply of a failed call. Several wrappers may report it; its usage counts once."""
        if isinstance(error.partial, ModelReply) and not any(
            error.partial is reply for reply in self._interrupted_replies
        ):
            self._interrupted_replies.append(error.partial)

    async def account_interrupted(self) -> None:
        replies = self._interrupted_replies
        self._interrupted_replies = []
        for reply in replies:
            usage, is_estimated = self._read_usage(reply)
            await self._account(usage, self._state.model.name, is_estimated=is_estimated)

    async def record_interrupted(self, text: str) -> None:
        """Store the text of a cancelled answer; its usage is estimated."""
        state = self._state
        message: Message = {
            "role": "assistant",
            "content": f"{text}\n\n{INTERRUPTED_ANSWER_TEXT}" if text else INTERRUPTED_ANSWER_TEXT,
        }
        usage = CanonicalUsage(
            input_tokens=self._request_facts[2],
            output_tokens=state.model.counter.text(text),
        )
        accounting = self._account(usage, state.model.name, is_estimated=True)
        await asyncio.gather(state.append([NewMessage(message)]), accounting)

    async def _learn_success(self, usage: CanonicalUsage) -> None:
        """Drop a learnt limit after the first success above it."""
        state = self._state
        if usage.prompt_tokens and await state.limits.record_success(
            state.limit_key, usage.prompt_tokens
        ):
            state.use_window(state.model.route.window)
            name = state.model.name
            reason = "a larger prompt was accepted"
            state.emit(
                LimitLearnt(
                    state.session.id,
                    name,
                    state.model.route.window,
                    reason,
                    is_stored=True,
                )
            )
