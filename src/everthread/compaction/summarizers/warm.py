"""The main model writes the summary where it stands: on the prefix its provider has cached.

The last request that was sent is sent again, byte for byte, with one message more. Reading a cached prefix costs a
fraction of what the same text costs anywhere else. Tools and parameters stay as they are, since a change there would
lose the cache; the model is told to call none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everthread.compaction.summarizers.chain import Price, Reading
from everthread.compaction.summarizers.model import TIME_LIMIT, SummaryCalls, Writer
from everthread.compaction.summarizers.prompts import TOLERATED, SummaryPrompt, fill, inert, task
from everthread.compaction.summary import SummaryDraft, SummaryRequest, TemplateName
from everthread.core.fingerprints import message_fingerprint
from everthread.core.messages import Message, calls_of, clip, message_key, one_line, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import Model, Request
from everthread.errors import SummaryError

_QUOTED = 200


class WarmPrefixSummarizer:
    """Asks `model` on `live()`: the last request it was sent, None before there was one."""

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        model: Model,
        counter: TokenCounter,
        live: Callable[[], Request | None],
        *,
        template: TemplateName = "handoff",
        time_limit: float = TIME_LIMIT,
        price: Price | None = None,
        warm: Callable[[], bool] = lambda: True,
    ) -> None:
        """`warm`: whether the provider still has the prefix."""
        self._writer = Writer(model, counter, template, time_limit)
        self._live = live
        self._price = price
        self._warm = warm

    @property
    def name(self) -> str:
        """The route's name, not the model's: this route may rest while the model is used the ordinary way."""
        return f"{self._writer.model.name} on its warm prefix"

    def quote(self, tokens: int, budget: int) -> float | None:
        """Dollars for reading so much from the cache, or into it, and writing the summary; None: unknown."""
        reading: Reading = "read" if self._warm() else "write"
        return None if self._price is None else self._price(tokens, budget, reading=reading)

    def quote_for(self, request: SummaryRequest) -> float | None:
        """The same for this request: it is put behind the last one that was sent."""
        live = self._live()
        if live is None:
            return None
        tokens = self._writer.counter.request(live.messages, system=live.system, tools=live.tools)
        return self.quote(tokens, request.budget)

    def suits(self, request: SummaryRequest) -> bool:
        """Notes are to be joined by themselves: the prefix would only distract from them."""
        return not request.notes

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The sections, or `SummaryError`: also when the last request does not hold all that is to be summarised, or
        has no room for the answer."""
        ledger = SummaryCalls([], [])
        question = self._question(request)
        try:
            sections = await self._writer.write(question, ledger)
        except SummaryError as error:
            error.usage = tuple(ledger.usage)
            raise
        return SummaryDraft(sections, self._writer.model.name, tuple(ledger.warnings), tuple(ledger.usage))

    def _question(self, request: SummaryRequest) -> SummaryPrompt:
        live = self._live()
        if live is None or not _holds(live, request):
            raise SummaryError("the last request does not hold the messages to be summarised")
        template, counter = self._writer.template, self._writer.counter
        ends = {"last": _quote(request.messages[-1]) if request.messages else ""}
        if request.stretch and request.messages:
            ends["first"] = _quote(request.messages[0])
        instruction = task(
            "warm_stretch" if "first" in ends else "warm",
            target=request.budget,
            focus=request.focus,
            sections=fill(f"sections_{template}"),
            **ends,
        )
        messages: list[Message] = [*live.messages, {"role": "user", "content": instruction}]
        tokens = counter.request(messages, system=live.system, tools=live.tools)
        if tokens + TOLERATED * request.budget > self._writer.model.window:
            raise SummaryError(f"the window of {self._writer.model.window} tokens has no room left for a summary")
        return SummaryPrompt(replace(live, messages=messages), request.budget, tokens)


def _holds(live: Request, request: SummaryRequest) -> bool:
    """Whether every message is in the request, whatever markers it was sent with."""
    sent = {message_key(message): message for message in live.messages}
    others = [message for message in request.messages if sent.get(message_key(message)) != message]
    if not others:
        return True
    fingerprints = set(map(message_fingerprint, live.messages))
    return all(message_fingerprint(message) in fingerprints for message in others)


def _quote(message: Message) -> str:
    """A quote that identifies a message among the others."""
    words = text_of(message) or " ".join(f"{call.name} {call.arguments}" for call in calls_of(message))
    return clip(one_line(inert(f"{message['role']}: {words}")), _QUOTED)
