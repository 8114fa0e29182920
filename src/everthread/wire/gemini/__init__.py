"""Convert Gemini's generateContent protocol: contents and parts, whole requests and replies, streams."""

from everthread.wire.gemini.gemini_decoding import decode_messages
from everthread.wire.gemini.gemini_encoding import encode_messages
from everthread.wire.gemini.gemini_errors import encode_error, encode_error_event
from everthread.wire.gemini.gemini_fields import request_fields
from everthread.wire.gemini.gemini_parts import API, make_comparable_message
from everthread.wire.gemini.gemini_replies import encode_reply
from everthread.wire.gemini.gemini_requests import (
    decode_request,
    decode_tools,
    encode_request,
    encode_tools,
)
from everthread.wire.gemini.gemini_streams import (
    decode_reply,
    encode_stream,
    join_chunks,
    merge_parts,
    stream_decoder,
)

__all__ = [
    "API",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "encode_error",
    "encode_error_event",
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_stream",
    "encode_tools",
    "join_chunks",
    "make_comparable_message",
    "merge_parts",
    "request_fields",
    "stream_decoder",
]
