"""Anthropic messages <-> core, both directions.

reading.py   wire messages -> core messages, each with its native value
writing.py   core messages -> wire messages: native values verbatim, everything else in Anthropic's terms
blocks.py    one content block <-> one part: images, documents, arguments
tools.py     tool definitions
requests.py  whole requests
replies.py   whole replies, stop reasons
stream.py    the same, event by event
"""

from everthread.wire.anthropic.blocks import API
from everthread.wire.anthropic.reading import decode_messages
from everthread.wire.anthropic.replies import decode_reply, encode_reply
from everthread.wire.anthropic.requests import DEFAULT_MAX_TOKENS, decode_request, encode_request
from everthread.wire.anthropic.stream import StreamDecoder, encode_stream
from everthread.wire.anthropic.tools import decode_tools, encode_tools
from everthread.wire.anthropic.writing import encode_messages

__all__ = [
    "API",
    "DEFAULT_MAX_TOKENS",
    "StreamDecoder",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_stream",
    "encode_tools",
]
