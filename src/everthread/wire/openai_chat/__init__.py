"""Convert OpenAI's chat protocol: messages, whole requests and replies, streams."""

from everthread.wire.openai_chat.chat_conversion import API, to_chat_messages, to_chat_parts
from everthread.wire.openai_chat.chat_decoding import decode_messages
from everthread.wire.openai_chat.chat_encoding import encode_messages
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
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_stream",
    "encode_tools",
    "stream_decoder",
    "to_chat_messages",
    "to_chat_parts",
]
