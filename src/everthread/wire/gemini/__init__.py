"""Gemini's generateContent <-> core, both directions: contents and parts, whole requests and replies, streams."""

from everthread.wire.gemini.comparable_contents import make_comparable_content
from everthread.wire.gemini.message_decoding import decode_messages
from everthread.wire.gemini.message_encoding import encode_messages
from everthread.wire.gemini.parts import API
from everthread.wire.gemini.replies import encode_reply
from everthread.wire.gemini.requests import decode_request, encode_request
from everthread.wire.gemini.streams import (
    decode_reply,
    encode_stream,
    merge_parts,
    stream_decoder,
)
from everthread.wire.gemini.tools import decode_tools, encode_tools

__all__ = [
    "API",
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
