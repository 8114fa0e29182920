"""The three protocols in one table: for whoever is told by a name which one is spoken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from everthread.core.messages import Message
from everthread.core.types import Api, Reply, Request, StreamDelta
from everthread.wire import anthropic, openai_chat, openai_chat_stream, openai_responses, openai_responses_stream
from everthread.wire.sse import SseEvent


class StreamDecoder(Protocol):
    """What each codec's decoder offers."""

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]: ...

    def reply(self) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """One protocol, both directions. What each function takes besides is said where it is written."""

    decode_request: Callable[[Mapping[str, Any]], Request]
    encode_request: Callable[..., dict[str, Any]]
    decode_messages: Callable[..., list[Message]]
    encode_messages: Callable[..., list[dict[str, Any]]]
    decode_reply: Callable[..., Reply]
    encode_reply: Callable[[Reply], dict[str, Any]]
    encode_stream: Callable[[Reply], Iterator[SseEvent]]
    stream_decoder: Callable[..., StreamDecoder]


CODECS: Mapping[Api, Codec] = {
    "openai_chat": Codec(
        openai_chat.decode_request,
        openai_chat.encode_request,
        openai_chat.decode_messages,
        openai_chat.encode_messages,
        openai_chat.decode_reply,
        openai_chat.encode_reply,
        openai_chat_stream.encode_stream,
        openai_chat_stream.StreamDecoder,
    ),
    "openai_responses": Codec(
        openai_responses.decode_request,
        openai_responses.encode_request,
        openai_responses.decode_messages,
        openai_responses.encode_messages,
        openai_responses.decode_reply,
        openai_responses.encode_reply,
        openai_responses_stream.encode_stream,
        openai_responses_stream.StreamDecoder,
    ),
    "anthropic": Codec(
        anthropic.decode_request,
        anthropic.encode_request,
        anthropic.decode_messages,
        anthropic.encode_messages,
        anthropic.decode_reply,
        anthropic.encode_reply,
        anthropic.encode_stream,
        anthropic.StreamDecoder,
    ),
}
