"""Choose the provider's answers: from a list, a function, a recorded conversation, or an echo."""

from __future__ import annotations

import base64
import inspect
import json
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import takewhile
from typing import Any, cast

from everthread.core.messages import (
    REASONING_BLOCKS,
    Message,
    calls_of,
    kind_of,
    parts_of,
    results_of,
    text_of,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request
from everthread.errors import InputError
from everthread.lab.provider.cache import CacheUse
from everthread.lab.provider.faults import Fault
from everthread.lab.provider.served_models import Protocol
from everthread.wire import gemini, openai_responses
from everthread.wire.native_values import native_value, with_native

Answer = Reply | Fault | str
Step = Answer | Callable[[Request], Answer | Awaitable[Answer]]
Script = Sequence[Step] | Callable[[Request], Answer | Awaitable[Answer]]

_MAX_ECHO_CHARS = 200
_MAX_COMPARED_UTTERANCES = 20


class ScriptedAnswers:
    """Hands out the answers of a script, one for each request that passes the checks."""

    def __init__(self, script: Script | None = None) -> None:
        self._steps = None if script is None or callable(script) else list(script)
        self._respond = script if callable(script) else echo
        self._used_count = 0

    async def next(self, request: Request) -> Answer:
        step: Step = self._respond
        if self._steps is not None:
            if self._used_count >= len(self._steps):
                raise InputError(
                    f"the script has {len(self._steps)} answers, and all were given"
                )
            step = self._steps[self._used_count]
        self._used_count += 1
        if not callable(step):
            return step
        answer = step(request)
        return await answer if inspect.isawaitable(answer) else answer


def echo(request: Request) -> str:
    """Echo the last message, so that a person sees that it arrived."""
    last_message = request.messages[-1] if request.messages else None
    words = (
        (
            text_of(last_message)
            or " ".join(result.text for result in results_of(last_message))
        )
        if last_message
        else ""
    )
    return (
        f"You said: {words[:_MAX_ECHO_CHARS]}" if words.strip() else "You said nothing."
    )


class RecordedAnswers:
    """Answers with the message that followed in a recorded conversation.

    The position is found by the end of the request: a client may have replaced the beginning by a summary. If several
    positions fit, the one with the longest run of equal messages before it is used, else the next one.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._utterances = _split_utterances(messages)
        self._position = 0

    def __call__(self, request: Request) -> Answer:
        requested = _split_utterances(request.messages)
        answers_by_position = {
            position: utterance.answer
            for position, utterance in enumerate(self._utterances)
            if requested and requested[-1].ends_with(utterance) and utterance.answer
        }
        if not answers_by_position:
            return echo(request)
        self._position = max(
            answers_by_position,
            key=lambda position: (
                self._count_equal_utterances(requested, position),
                position >= self._position,
                -abs(position - self._position),
            ),
        )
        return Reply(answers_by_position[self._position])

    def _count_equal_utterances(
        self, requested: Sequence[_Utterance], position: int
    ) -> int:
        pairs = zip(
            reversed(requested[-_MAX_COMPARED_UTTERANCES:]),
            reversed(self._utterances[: position + 1]),
            strict=False,
        )
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(frozen=True, slots=True)
class _Utterance:
    """Neighbouring messages of one role, which some protocols join into one message."""

    role: str
    words: str
    answer: Message | None = field(compare=False)
    """The next message of the assistant."""

    def ends_with(self, other: _Utterance) -> bool:
        """Return whether the other is the last message, possibly after a summary in the same message."""
        return self == other or (
            self.role == other.role
            and bool(other.words)
            and self.words.endswith(f"\n{other.words}")
        )


def _split_utterances(messages: Sequence[Message]) -> list[_Utterance]:
    utterances: list[_Utterance] = []
    for next_index, message in enumerate(messages, 1):
        role = message["role"]
        words = (
            text_of(message) or "\n".join(result.text for result in results_of(message))
        ).strip()
        if utterances and utterances[-1].role == role == "user":
            words = f"{utterances.pop().words}\n{words}".strip()
        later_messages = (messages[index] for index in range(next_index, len(messages)))
        answer = next(
            (message for message in later_messages if message["role"] == "assistant"),
            None,
        )
        utterances.append(_Utterance(role, words, answer))
    return utterances


def read_script(value: Any) -> list[Step]:
    """Read a script from JSON: texts, `{"fault": KIND, …}`, or assistant messages (`{"content": …}`)."""
    if not isinstance(value, list):
        raise InputError(f"a script is a list of answers, not {type(value).__name__}")
    return [_read_step(step, number) for number, step in enumerate(value)]


def _read_step(step: Any, number: int) -> Step:
    if isinstance(step, str):
        return step
    if not isinstance(step, Mapping):
        raise InputError(
            f"answer {number} of the script is a text or an object, not {type(step).__name__}"
        )
    if "fault" in step:
        fields = {key: value for key, value in step.items() if key != "fault"}
        try:
            return Fault(step["fault"], **fields)
        except TypeError as error:
            raise InputError(f"answer {number} of the script: {error}") from None
    if not ({"content", "tool_calls"} & step.keys()):
        raise InputError(
            f"answer {number} of the script has neither content nor tool_calls nor fault"
        )
    message: Any = {"content": None, **step, "role": "assistant"}
    return Reply(message)


_SIGNATURE_PREFIX = "bGFi"
"""Prefix of signatures issued here; others are not checked."""
_CALL_TOKENS = 10
"""Tokens a call costs besides its name and arguments."""


def complete_reply(  # noqa: PLR0913  a reply depends on all of these
    answer: Reply | str,
    protocol: Protocol,
    counter: TokenCounter,
    *,
    name: str,
    number: int,
    max_tokens: int,
    use: CacheUse,
    extra_reasoning_tokens: int = 0,
) -> Reply:
    """Complete an answer of the script to a reply in the protocol's own format. A usage in the script is kept.

    A text longer than `max_tokens` is cut; calls never are. `extra_reasoning_tokens`: reasoning tokens besides those of
    the visible reasoning.
    """
    reply = (
        Reply({"role": "assistant", "content": answer})
        if isinstance(answer, str)
        else answer
    )
    calls = calls_of(reply.message)
    stop = reply.stop or ("tool_calls" if calls else "stop")
    reply = replace(
        reply,
        stop=stop,
        model=reply.model or name,
        id=reply.id or f"{protocol.id_prefix}{number}",
    )
    text = reply.message.get("content")
    if isinstance(text, str) and not calls and counter.text(text) > max_tokens:
        fitting_chars = bisect_right(
            range(len(text)), max_tokens, key=lambda end: counter.text(text[: end + 1])
        )
        reply = replace(
            reply,
            message={**reply.message, "content": text[:fitting_chars]},
            stop="length",
        )
    body = protocol.codec.encode_reply(
        replace(reply, message=_encode_thoughts(reply.message, protocol.api, reply.id))
    )
    if reply.usage is None:
        reasoning = (
            _count_reasoning_tokens(reply.message, counter) + extra_reasoning_tokens
        )
        body[protocol.usage_field] = protocol.make_usage(
            use, reasoning + count_answer(reply.message, counter), reasoning
        )
    return protocol.codec.decode_reply(body)


def map_items_to_reasoning(reply: Reply) -> dict[str, str]:
    """Return the id of the reasoning before each item of a response, by the item's id."""
    items = native_value(reply.message, "openai_responses")
    reasoning_by_item: dict[str, str] = {}
    reasoning_id = ""
    for item in items if isinstance(items, list) else []:
        if kind_of(item) == "reasoning":
            reasoning_id = str(item.get("id"))
        elif reasoning_id:
            reasoning_by_item[str(item.get("id"))] = reasoning_id
    return reasoning_by_item


def is_forged(part: Mapping[str, Any]) -> bool:
    """Return whether a thinking block has a signature that was issued here for another text."""
    signature = part.get("signature")
    if (
        kind_of(part) != "thinking"
        or not isinstance(signature, str)
        or not signature.startswith(_SIGNATURE_PREFIX)
    ):
        return False
    return signature != sign_text(str(part.get("thinking")))


def sign_text(thinking: str) -> str:
    """Return the signature of a text of reasoning."""
    return (
        _SIGNATURE_PREFIX
        + blake2b(thinking.encode("utf-8", "replace"), digest_size=24).hexdigest()
    )


COMPACTION_TRIGGER = "compaction_trigger"
"""With this item at its end a request of the Responses protocol asks for a compaction."""
_COMPACTION_PREFIX = "bGFiY21w"


def make_compaction(request: Request, number: int) -> dict[str, Any]:
    """Return an opaque item that represents a conversation."""
    last_words = next(
        (
            text_of(message)
            for message in reversed(request.messages)
            if message["role"] == "user"
        ),
        "",
    )
    payload = base64.urlsafe_b64encode(
        f"{len(request.messages)} messages, last: {last_words[:200]}".encode()
    ).decode()
    return {
        "id": f"cmp_lab{number}",
        "type": "compaction",
        "encrypted_content": f"{_COMPACTION_PREFIX}.{payload}.{sign_text(payload)}",
    }


def is_own_compaction(item: Mapping[str, Any]) -> bool:
    """Return whether the item was issued here and is unchanged."""
    prefix, _, signed_payload = str(item.get("encrypted_content")).partition(".")
    payload, _, signature = signed_payload.partition(".")
    return prefix == _COMPACTION_PREFIX and signature == sign_text(payload)


def asks_for_compaction(body: Mapping[str, Any]) -> bool:
    items = body.get("input")
    return (
        isinstance(items, list)
        and bool(items)
        and kind_of(items[-1]) == COMPACTION_TRIGGER
    )


def _encode_thoughts(message: Message, api: Api, reply_id: str) -> Message:
    """Convert plain-text reasoning (`reasoning_content`) to the form of the protocol.

    Chat clients read it unchanged; Claude signs it; the responses protocol hides it in an item; Gemini signs calls.
    """
    thinking = message.get("reasoning_content")
    if api == "gemini" and "_native" not in message:
        return _sign_content(message)
    if not thinking or api == "openai_chat" or "_native" in message:
        return message
    message_without_thoughts = cast(
        "Message",
        {key: value for key, value in message.items() if key != "reasoning_content"},
    )
    if api == "anthropic":
        thought = {
            "type": "thinking",
            "thinking": thinking,
            "signature": sign_text(thinking),
        }
        return {**message_without_thoughts, "content": [thought, *parts_of(message)]}
    item = {
        "id": f"rs_{reply_id}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": thinking}],
        "encrypted_content": sign_text(thinking),
    }
    items = openai_responses.encode_reply(
        Reply(message_without_thoughts, stop="stop", id=reply_id)
    )["output"]
    return with_native(message, api, [item, *items])


def _sign_content(message: Message) -> Message:
    """Return the message as Gemini writes it: thoughts as a part, and a signature on the first call."""
    message_without_thoughts = cast(
        "Message",
        {key: value for key, value in message.items() if key != "reasoning_content"},
    )
    contents = [
        content
        for content in gemini.encode_messages([message_without_thoughts])
        if content["role"] == "model"
    ]
    parts = [dict(part) for content in contents for part in content["parts"]]
    first_call = next((part for part in parts if "functionCall" in part), None)
    if first_call is not None:
        first_call["thoughtSignature"] = sign_call(first_call["functionCall"])
    if thinking := message.get("reasoning_content"):
        parts.insert(0, {"text": thinking, "thought": True})
    return with_native(message, "gemini", {"role": "model", "parts": parts})


def sign_call(call: Mapping[str, Any]) -> str:
    """Return the signature of a call of Gemini."""
    return sign_text(json.dumps([call.get("name"), call.get("args")], sort_keys=True))


def is_forged_call(part: Mapping[str, Any]) -> bool:
    """Return whether a call has a signature that was issued here for another call."""
    signature = part.get("thoughtSignature")
    if (
        "functionCall" not in part
        or not isinstance(signature, str)
        or not signature.startswith(_SIGNATURE_PREFIX)
    ):
        return False
    return signature != sign_call(part["functionCall"])


def count_answer(message: Message, counter: TokenCounter) -> int:
    """Count the tokens of an answer without its reasoning."""
    calls = sum(
        counter.text(call.name) + counter.text(call.arguments) + _CALL_TOKENS
        for call in calls_of(message)
    )
    return (
        counter.text(text_of(message))
        + counter.text(message.get("refusal") or "")
        + calls
    )


def _count_reasoning_tokens(message: Message, counter: TokenCounter) -> int:
    blocks = [part for part in parts_of(message) if kind_of(part) in REASONING_BLOCKS]
    text_tokens = counter.text(message.get("reasoning_content") or "")
    return text_tokens + sum(
        counter.text(str(part.get("thinking") or "")) for part in blocks
    )
