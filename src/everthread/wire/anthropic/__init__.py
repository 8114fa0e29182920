"""Convert Anthropic's protocol: messages and blocks, whole requests and replies, streams."""

from everthread.wire.anthropic.anthropic_blocks import API, make_comparable_message
from everthread.wire.anthropic.anthropic_decoding import decode_messages
from everthread.wire.anthropic.anthropic_errors import encode_error, encode_error_event
from everthread.wire.anthropic.anthropic_fields import request_fields
from everthread.wire.anthropic.anthropic_history import encode_messages
from everthread.wire.anthropic.anthropic_replies import decode_reply, encode_reply
from everthread.wire.anthropic.anthropic_requests import (
    DEFAULT_MAX_TOKENS,
    decode_request,
    decode_tools,
    encode_request,
    encode_tools,
)
from everthread.wire.anthropic.anthropic_streams import encode_stream, stream_decoder

__all__ = [
    "API",
    "DEFAULT_MAX_TOKENS",
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
    "make_comparable_message",
    "request_fields",
    "stream_decoder",
]
