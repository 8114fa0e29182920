"""The APIs of the providers, and the path of each."""

from __future__ import annotations

from everthread.core.types import Api

APIS: tuple[Api, ...] = ("openai_chat", "openai_responses", "anthropic")
CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
PATHS: dict[Api, str] = {
    "openai_chat": CHAT_PATH,
    "openai_responses": "/v1/responses",
    "anthropic": MESSAGES_PATH,
}
