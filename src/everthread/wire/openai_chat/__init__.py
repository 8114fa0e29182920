"""OpenAI chat completions <-> core, both directions: messages, whole requests and replies, streams."""

from everthread.wire.openai_chat.chat_codec import (
    API,
    decode_messages,
    decode_reply,
    decode_request,
    decode_tools,
    encode_messages,
    encode_reply,
    encode_request,
    encode_tools,
)
from everthread.wire.openai_chat.chat_messages import (
    list_tool_calls,
    to_chat_messages,
    to_chat_parts,
)
from everthread.wire.openai_chat.chat_streams import (
    ChatStreamDecoder,
    encode_stream,
    stream_decoder,
)

__all__ = [
    "API",
    "ChatStreamDecoder",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_stream",
    "encode_tools",
    "list_tool_calls",
    "stream_decoder",
    "to_chat_messages",
    "to_chat_parts",
]
