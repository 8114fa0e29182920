"""Let the main model write the summary in its own context.

The last request is sent again, byte for byte, with one message more. Reading a cached prefix costs a fraction of the
usual price of the same text. Tools and parameters stay the same, since a change there would lose the cache; the
instruction forbids calling any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everthread.compaction.summarizers.answer_judging import MAX_OVERSHOOT
from everthread.compaction.summarizers.conversation_record import to_inert_text
from everthread.compaction.summarizers.prompts import (
    SummaryPrompt,
    compose_task_prompt,
    fill_template,
)
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summarizers.summary_calls import (
    SummaryCalls,
    SummaryWriter,
)
from everthread.compaction.summarizers.summary_prices import CallPrice, PromptRate
from everthread.compaction.summary.sections import TemplateName
from everthread.core.fingerprints import message_fingerprint
from everthread.core.messages import Message, calls_of, message_key, text_of
from everthread.core.text import clip, one_line
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, ModelRequest
from everthread.errors import SummaryError

_MAX_QUOTE_CHARS = 200


class WarmPrefixSummarizer:
    """A summariser that sends the last request again with one message more, so that the provider reads its cache."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        model: Model,
        counter: TokenCounter,
        last_request: Callable[[], ModelRequest | None],
        *,
        template: TemplateName = "handoff",
        price: CallPrice | None = None,
        is_warm: Callable[[], bool] = lambda: True,
    ) -> None:
        """Set up the summariser.

        `last_request`: returns the last request sent to the model, or None; `is_warm`: whether the provider still has
        its prefix in the cache.
        """
        self._writer = SummaryWriter(model, counter, template)
        self._last_request = last_request
        self._price = price
        self._is_warm = is_warm

    @property
    def name(self) -> str:
        """The route's name, not the model's: this route can be paused while the model is used the ordinary way."""
        return f"{self._writer.model.name} on its warm prefix"

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for caching or reading `tokens` and writing the summary, or None if unknown."""
        rate: PromptRate = "read" if self._is_warm() else "write"
        return None if self._price is None else self._price(tokens, budget, rate=rate)

    def quote_request_price(self, request: SummaryRequest) -> float | None:
        """Return the price for this request, which is appended to the last one sent."""
        last_request = self._last_request()
        if last_request is None:
            return None
        tokens = self._writer.counter.request(
            last_request.messages, system=last_request.system, tools=last_request.tools
        )
        return self.quote_price(tokens, request.budget)

    def suits(self, request: SummaryRequest) -> bool:
        """Return whether the request has no notes to join: the prefix would only distract from them."""
        return not request.notes

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError`.

        The error is also raised if the last request lacks some of the messages, or leaves no tokens for the answer.
        """
        calls = SummaryCalls()
        prompt = self._make_prompt(request)
        with calls.report_usage_of_failure():
            sections = await self._writer.write(prompt, calls, fault=request.last_refusal_reason)
        return calls.make_draft(sections, self._writer.model.name)

    def _make_prompt(self, request: SummaryRequest) -> SummaryPrompt:
        """Return the last request with the instruction added.

        Raise `SummaryError` if the last request lacks messages or leaves no tokens for the answer.
        """
        last_request = self._last_request()
        if last_request is None or not _has_all_messages(last_request, request):
            raise SummaryError("the last request does not hold the messages to be summarised")
        template = self._writer.template
        counter = self._writer.counter
        quotes = {"last": _quote_message(request.messages[-1]) if request.messages else ""}
        if request.is_stretch and request.messages:
            quotes["first"] = _quote_message(request.messages[0])
        instruction = compose_task_prompt(
            "warm_stretch" if "first" in quotes else "warm",
            target_tokens=request.budget,
            focus=request.focus,
            sections=fill_template(f"sections_{template}"),
            **quotes,
        )
        messages: list[Message] = [
            *last_request.messages,
            {"role": "user", "content": instruction},
        ]
        tokens = counter.request(messages, system=last_request.system, tools=last_request.tools)
        if tokens + MAX_OVERSHOOT * request.budget > self._writer.model.window:
            raise SummaryError(
                f"the window of {self._writer.model.window} tokens has no room left for a summary"
            )
        return SummaryPrompt(replace(last_request, messages=messages), request.budget, tokens)


def _has_all_messages(sent_request: ModelRequest, request: SummaryRequest) -> bool:
    """Return whether every message to summarise is in the sent request, ignoring cache markers."""
    sent_messages = {message_key(message): message for message in sent_request.messages}
    changed_messages = [
        message
        for message in request.messages
        if sent_messages.get(message_key(message)) != message
    ]
    if not changed_messages:
        return True
    fingerprints = set(map(message_fingerprint, sent_request.messages))
    return all(message_fingerprint(message) in fingerprints for message in changed_messages)


def _quote_message(message: Message) -> str:
    """Return a quote that identifies a message among the others."""
    words = text_of(message) or " ".join(
        f"{call.name} {call.arguments}" for call in calls_of(message)
    )
    return clip(one_line(to_inert_text(f"{message['role']}: {words}")), _MAX_QUOTE_CHARS)
