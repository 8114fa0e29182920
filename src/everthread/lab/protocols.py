"""What differs between the three protocols, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everthread.core.exchange import Api
from everthread.lab.prompt_cache import CacheUse
from everthread.wire.codecs import CODECS, Codec


@dataclass(frozen=True, slots=True)
class Protocol:
    api: Api
    path: str
    prefix: str
    """Of the ids of its replies."""
    caps: tuple[str, ...]
    """The fields that limit the output; the first that is there counts."""
    content: str
    """The field a reply's substance is in."""
    usage: Callable[[CacheUse, int, int], dict[str, Any]]
    """The usage object from what became of the prompt, the output and the reasoning in it."""

    @property
    def codec(self) -> Codec:
        return CODECS[self.api]

    def cap(self, body: Mapping[str, Any]) -> int | None:
        """How many tokens the reply may have, as asked."""
        return next((body[name] for name in self.caps if isinstance(body.get(name), int)), None)


def _chat_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    written = {"cache_write_tokens": use.write} if use.write else {}
    return {
        "prompt_tokens": use.prompt,
        "completion_tokens": output,
        "total_tokens": use.prompt + output,
        "prompt_tokens_details": {"cached_tokens": use.read, "audio_tokens": 0, **written},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def _responses_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": use.prompt,
        "input_tokens_details": {"cached_tokens": use.read, "cache_write_tokens": use.write},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": use.prompt + output,
    }


def _anthropic_usage(use: CacheUse, output: int, _reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": use.input,
        "cache_creation_input_tokens": use.write,
        "cache_read_input_tokens": use.read,
        "cache_creation": {"ephemeral_5m_input_tokens": use.write_5m, "ephemeral_1h_input_tokens": use.write_1h},
        "output_tokens": output,
        "service_tier": "standard",
    }


CHAT = Protocol(
    api="openai_chat",
    path="/v1/chat/completions",
    prefix="chatcmpl-lab",
    caps=("max_completion_tokens", "max_tokens"),
    content="choices",
    usage=_chat_usage,
)
RESPONSES = Protocol(
    api="openai_responses",
    path="/v1/responses",
    prefix="resp_lab",
    caps=("max_output_tokens",),
    content="output",
    usage=_responses_usage,
)
ANTHROPIC = Protocol(
    api="anthropic",
    path="/v1/messages",
    prefix="msg_lab",
    caps=("max_tokens",),
    content="content",
    usage=_anthropic_usage,
)
PROTOCOLS = (CHAT, RESPONSES, ANTHROPIC)
