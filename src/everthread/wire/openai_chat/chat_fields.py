"""The fields of OpenAI's chat requests that a gateway reads and sets."""

from __future__ import annotations

from everthread.core.caching.claude_cache_marks import find_cache_route
from everthread.core.caching.openai_cache_breakpoints import accepts_breakpoints
from everthread.core.urls import host_of
from everthread.wire.openai_chat.chat_conversion import API
from everthread.wire.request_fields import RequestFields


class ChatFields(RequestFields):
    """Fields of OpenAI's chat requests."""

    def accepts_cache_marks(self, model: str, base_url: str) -> bool:
        return find_cache_route(model, base_url=base_url) is not None

    def accepts_system_blocks(self, model: str, base_url: str) -> bool:
        """Return whether the upstream uses the blocks for its cache; some compatible servers accept only text."""
        return self.accepts_cache_marks(model, base_url) or accepts_breakpoints(
            API, model, base_url=base_url
        )

    def choose_output_cap_field(self, base_url: str) -> str:
        """Return the name of the output cap. OpenAI's reasoning models refuse `max_tokens`; others know only that."""
        host = host_of(base_url)
        is_openai = host == "api.openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
        return "max_completion_tokens" if is_openai else "max_tokens"


request_fields = ChatFields()
