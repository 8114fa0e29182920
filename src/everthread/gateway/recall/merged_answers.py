"""Merge the rounds of an answer into one response, in each protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everthread.core.types import Api
from everthread.gateway.recall.merge_anthropic import (
    MergedAnthropicStream,
    merge_anthropic_bodies,
)
from everthread.gateway.recall.merge_chat import MergedChatStream, merge_chat_bodies
from everthread.gateway.recall.merge_gemini import (
    MergedGeminiStream,
    merge_gemini_bodies,
)
from everthread.gateway.recall.merge_responses import (
    MergedResponsesStream,
    merge_responses_bodies,
)
from everthread.gateway.recall.merged_stream import MergedStream

MERGED_STREAMS: Mapping[Api, type[MergedStream]] = {
    "anthropic": MergedAnthropicStream,
    "openai_chat": MergedChatStream,
    "openai_responses": MergedResponsesStream,
    "gemini": MergedGeminiStream,
}
MERGE_BODIES: Mapping[Api, Callable[[Sequence[Any]], Any]] = {
    "anthropic": merge_anthropic_bodies,
    "openai_chat": merge_chat_bodies,
    "openai_responses": merge_responses_bodies,
    "gemini": merge_gemini_bodies,
}
"""Merge the whole bodies of several rounds into one, without the calls that the gateway answered."""
