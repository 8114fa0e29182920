"""Convert OpenAI's chat protocol: messages, whole requests and replies, streams."""

from everthread.wire.openai_chat.chat_conversion import (
    API,
    make_comparable_message,
    to_chat_messages,
    to_chat_parts,
)
from everthread.wire.openai_chat.chat_decoding import decode_messages
from everthread.wire.openai_chat.chat_encoding import encode_messages
from everthread.wire.openai_chat.chat_errors import encode_error, encode_error_event
from everthread.wire.openai_chat.chat_fields import request_fields
from everthread.wire.openai_chat.chat_replies import decode_reply, encode_reply
from everthread.wire.openai_chat.chat_requests import (
    decode_request,
    decode_tools,
    encode_request,
    encode_tools,
)
from everthread.wire.openai_chat.chat_streams import encode_stream, stream_decoder

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
    "make_comparable_message",
    "request_fields",
    "stream_decoder",
    "to_chat_messages",
    "to_chat_parts",
]
