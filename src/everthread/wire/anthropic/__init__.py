"""Anthropic messages <-> core, both directions: messages and blocks, whole requests and replies, streams."""

from everthread.wire.anthropic.message_codec import (
    API,
    decode_messages,
    encode_messages,
)
from everthread.wire.anthropic.request_codec import (
    DEFAULT_MAX_TOKENS,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from everthread.wire.anthropic.streams import (
    AnthropicStreamDecoder,
    encode_stream,
    stream_decoder,
)
from everthread.wire.anthropic.tool_codec import decode_tools, encode_tools

__all__ = [
    "API",
    "DEFAULT_MAX_TOKENS",
    "AnthropicStreamDecoder",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_stream",
    "encode_tools",
    "stream_decoder",
]
