"""Gemini's generateContent <-> core, both directions: contents and parts, whole requests and replies, streams."""

from everthread.wire.gemini.contents import (
    API,
    decode_messages,
    encode_messages,
    make_comparable_content,
)
from everthread.wire.gemini.exchanges import (
    GeminiStreamDecoder,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    encode_stream,
    merge_parts,
    stream_decoder,
)
from everthread.wire.gemini.tool_codec import decode_tools, encode_tools

__all__ = [
    "API",
    "GeminiStreamDecoder",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_stream",
    "encode_tools",
    "make_comparable_content",
    "merge_parts",
    "stream_decoder",
]
