"""From a request to an answer: what it is refused for, what it is told, what that costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from everthread.core.caching import shared_prefix
from everthread.core.exchange import Reply, Request
from everthread.errors import InputError, WireError
from everthread.lab import checks
from everthread.lab.dialects import Refusal, refusal
from everthread.lab.faults import ANSWERED, Fault, FaultPlan
from everthread.lab.log import Record
from everthread.lab.mishaps import Case, Outgoing, emptied, failing_stream, fault_error, refused, spoilt
from everthread.lab.pieces import in_pieces
from everthread.lab.prefix_cache import PrefixCache
from everthread.lab.prompt_blocks import PromptReader
from everthread.lab.prompt_cache import CacheUse, ClaudeCache
from everthread.lab.protocols import Protocol
from everthread.lab.script import Answers
from everthread.lab.served import ServedModel
from everthread.lab.speaking import reasoned_items, spoken, with_usage, within
from everthread.wire.sse import encode


class Answering:
    """Everything a provider decides. It knows nothing of HTTP."""

    def __init__(
        self, models: Mapping[str, ServedModel], answers: Answers, plan: FaultPlan | None, clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._answers = answers
        self._plan = plan
        self._claude = ClaudeCache(clock)
        self._prefixes = PrefixCache(clock)
        self._readers: dict[str, PromptReader] = {}
        self._before: dict[tuple[str, str], Request] = {}
        self._reasoned: dict[str, str] = {}
        """The items of responses with the reasoning each came after."""

    async def answer(self, protocol: Protocol, record: Record) -> Outgoing:
        """The answer; the record is complete when it returns."""
        try:
            outgoing = await self._decide(protocol, record)
        except InputError as error:
            outgoing = refused(record, refusal(protocol.api, 500, f"The simulator cannot answer: {error}."))
        hangs = outgoing.fault is not None and outgoing.fault.kind == "hang"
        record.status = None if hangs else outgoing.status
        return outgoing

    def count(self, protocol: Protocol, record: Record) -> Outgoing:
        """How many tokens a request has, asked for alone."""
        case = self._read(protocol, record)
        if isinstance(case, Refusal):
            return refused(record, case)
        record.status = 200
        return Outgoing(200, json.dumps({"input_tokens": case.prompt.tokens}).encode())

    async def _decide(self, protocol: Protocol, record: Record) -> Outgoing:
        case = self._read(protocol, record)
        if isinstance(case, Refusal):
            return refused(record, case)
        self._compare(record, case.request)
        wrong = self._wrong(case)
        if wrong:
            return refused(record, wrong)
        too_large = checks.does_not_fit(protocol.api, case.model, case.prompt.tokens, protocol.cap(record.body))
        if too_large and record.stream and case.model.errors_in_stream:
            return failing_stream(case, [], too_large)
        if too_large:
            return refused(record, too_large)
        told, fault = await self._told(case.request)
        if fault:
            record.fault = fault.kind
            error = fault_error(case, fault)
            if error and not (record.stream and fault.kind.startswith("stream_")):
                return refused(record, error)
        return self._say(case, told, fault)

    def _read(self, protocol: Protocol, record: Record) -> Case | Refusal:
        """The request in core form, and its prompt; or why it cannot be read."""
        if not isinstance(record.body, Mapping):
            return refusal(protocol.api, 400, "We could not parse the JSON body of your request.")
        name = record.body.get("model")
        if not isinstance(name, str):
            return refusal(protocol.api, 400, "model: Field required")
        if name not in self._models:
            return checks.unknown_model(protocol.api, name)
        try:
            request = protocol.codec.decode_request(record.body)
        except WireError as error:
            return refusal(protocol.api, 400, f"Invalid request: {error}")
        record.request = request
        reader = self._readers.setdefault(name, PromptReader(name))
        prompt = reader.read(protocol.api, request, record.body)
        record.prompt_tokens = prompt.tokens
        return Case(protocol, record, request, self._models[name], prompt)

    def _compare(self, record: Record, request: Request) -> None:
        key = (record.session, request.model)
        if key in self._before:
            record.shared = shared_prefix(self._before[key], request)
        self._before[key] = request

    def _wrong(self, case: Case) -> Refusal | None:
        wrong = checks.wrong_request(case.protocol.api, case.request, case.record.body, self._reasoned)
        if wrong is None and _is_claude(case):
            return checks.wrong_marks(case.protocol.api, case.prompt.blocks, case.record.body)
        return wrong

    async def _told(self, request: Request) -> tuple[Reply | str, Fault | None]:
        """What is said, and what goes wrong with it. A fault that leaves no answer uses none of the script."""
        fault = self._plan.next() if self._plan else None
        if fault and fault.kind not in ANSWERED:
            return fault.reply, fault
        told = await self._answers.next(request)
        return (told.reply, told) if isinstance(told, Fault) else (told, fault)

    def _say(self, case: Case, told: Reply | str, fault: Fault | None) -> Outgoing:
        """The answer itself; only a request that gets one reads and writes the cache."""
        protocol, record = case.protocol, case.record
        counter = self._readers[case.model.name].counter
        use = self._cached(case)
        record.cached_tokens, record.written_tokens = use.read, use.write
        reply = within(spoken(told, protocol, name=case.model.name, number=record.number), counter, _room(case))
        thoughts = fault.tokens if fault and fault.kind == "huge_reasoning" else 0
        reply = with_usage(reply, protocol, use, counter, thoughts=thoughts)
        record.reply = reply
        self._reasoned |= reasoned_items(reply)
        reply = spoilt(reply, protocol, fault) if fault else reply
        if protocol.api == "openai_chat" and record.stream and not _wants_usage(record):
            reply = replace(reply, usage=None)
        record.usage = reply.usage
        if not record.stream:
            body = protocol.codec.encode_reply(reply)
            if fault and fault.kind == "empty":
                body[protocol.content] = []
            return Outgoing(200, json.dumps(body).encode(), fault=fault)
        events = list(protocol.codec.encode_stream(reply))
        if fault and fault.kind == "empty":
            events = emptied(events)
        sent = [encode(event) for event in in_pieces(events)]
        error = fault_error(case, fault) if fault else None
        return failing_stream(case, sent[: fault.after], error) if fault and error else Outgoing(200, b"", sent, fault)

    def _cached(self, case: Case) -> CacheUse:
        """Claude's cache is asked by marks; everybody else's works by itself."""
        name, prompt = case.model.name, case.prompt
        if _is_claude(case):
            return self._claude.use(name, prompt.blocks, prompt=prompt.tokens, minimum=case.model.minimum)
        return CacheUse(prompt.tokens, self._prefixes.use(name, prompt.blocks, prompt=prompt.tokens))


def _is_claude(case: Case) -> bool:
    """Whether marks are understood: by Claude, by whatever protocol, and by whoever speaks Claude's."""
    return case.protocol.api == "anthropic" or "claude" in case.model.name.lower()


def _room(case: Case) -> int:
    """How many tokens the reply may have: as asked, as the model can, as the window leaves."""
    left = max(1, case.model.window - case.prompt.tokens)
    bounds = (case.protocol.cap(case.record.body), case.model.max_output, left)
    return min(bound for bound in bounds if bound is not None)


def _wants_usage(record: Record) -> bool:
    options = record.body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True
