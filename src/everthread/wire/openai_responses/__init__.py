"""Convert OpenAI's Responses protocol: items, whole requests and replies, streams."""

from everthread.wire.openai_responses.responses_decoding import (
    decode_assistant_items,
    decode_messages,
)
from everthread.wire.openai_responses.responses_encoding import encode_messages
from everthread.wire.openai_responses.responses_errors import encode_error, encode_error_event
from everthread.wire.openai_responses.responses_fields import request_fields
from everthread.wire.openai_responses.responses_items import (
    API,
    RESULT_KIND_BY_CALL_KIND,
    get_call_id,
    make_comparable_message,
)
from everthread.wire.openai_responses.responses_replies import (
    decode_reply,
    encode_reply,
)
from everthread.wire.openai_responses.responses_requests import (
    decode_request,
    decode_tools,
    encode_request,
    encode_tools,
)
from everthread.wire.openai_responses.responses_streams import (
    encode_stream,
    stream_decoder,
)

__all__ = [
    "API",
    "RESULT_KIND_BY_CALL_KIND",
    "decode_assistant_items",
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
    "get_call_id",
    "make_comparable_message",
    "request_fields",
    "stream_decoder",
]
