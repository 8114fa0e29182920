"""The codecs of the four protocols by name, and the detection of a protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from everthread.core.messages import Message, kind_of
from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta
from everthread.errors import TranscriptError
from everthread.wire import anthropic, gemini, openai_chat, openai_responses
from everthread.wire.request_fields import RequestFields
from everthread.wire.sse import SseEvent


class StreamDecoder(Protocol):
    """The interface of each codec's stream decoder."""

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]: ...

    def reply(self) -> ModelReply: ...


class Codec(Protocol):
    """One protocol, both directions: a module of this package, which documents each function."""

    decode_request: Callable[..., ModelRequest]
    encode_request: Callable[..., dict[str, Any]]
    decode_messages: Callable[..., list[Message]]
    encode_messages: Callable[..., list[dict[str, Any]]]
    decode_reply: Callable[..., ModelReply]
    encode_reply: Callable[..., dict[str, Any]]
    encode_stream: Callable[..., Iterator[SseEvent]]
    encode_tools: Callable[..., list[dict[str, Any]]]
    make_comparable_message: Callable[..., dict[str, Any]]

    def encode_error(self, status: int, code: str, message: str) -> dict[str, Any]: ...

    def encode_error_event(self, body: Mapping[str, Any]) -> SseEvent: ...

    @property
    def request_fields(self) -> RequestFields: ...

    @property
    def stream_decoder(self) -> Callable[..., StreamDecoder]: ...


CODECS: Mapping[Api, Codec] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
_ANTHROPIC_BLOCKS = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"}
)


def decode_any(value: Any) -> tuple[str, ModelRequest]:
    """Return the API of a conversation, and the request. Accept a list of messages, or an object that holds one."""
    body: Mapping[str, Any]
    if isinstance(value, list):
        body = {"messages": value}
    elif isinstance(value, Mapping):
        body = {key: entry for key, entry in value.items() if entry is not None}
    else:
        raise TranscriptError(
            f"a conversation is a list of messages or an object with `messages`, not {_describe_value(value)}"
        )
    messages = body.get("messages")
    if isinstance(messages, list):
        _check_messages(messages)
        codec = anthropic if _is_anthropic(body, messages) else openai_chat
        return codec.API, codec.decode_request({"model": "", **body})
    if isinstance(body.get("contents"), list):
        return gemini.API, gemini.decode_request({"model": "", **body})
    if "input" in body:
        return openai_responses.API, openai_responses.decode_request({"model": "", **body})
    raise TranscriptError(
        f"there is no list `messages` in it; its keys are: {', '.join(map(str, body)) or 'none'}"
    )


def _check_messages(messages: Sequence[Any]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TranscriptError(
                f"message {index} is not an object with a role, but {_describe_value(message)}"
            )


def _is_anthropic(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a part exists in Anthropic's protocol only. Tool messages exist in OpenAI's only."""
    if any(message.get("role") == "tool" or message.get("tool_calls") for message in messages):
        return False
    tools = body.get("tools")
    tool_list = tools if isinstance(tools, list) else ()
    if "system" in body or any(
        "input_schema" in tool for tool in tool_list if isinstance(tool, Mapping)
    ):
        return True
    return any(
        kind_of(part) in _ANTHROPIC_BLOCKS
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _describe_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
