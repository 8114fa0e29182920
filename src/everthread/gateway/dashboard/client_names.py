"""Display names of the client programs."""

from __future__ import annotations

from everthread.gateway.dashboard.text import one_line_excerpt
from everthread.store.records import Session

CLIENT_NAMES = {
    "claude-cli": "Claude Code",
    "codex_cli_rs": "Codex",
    "codex_exec": "Codex",
    "GeminiCLI": "Gemini CLI",
    "QwenCode": "Qwen Code",
    "Anthropic": "Anthropic SDK",
    "AsyncAnthropic": "Anthropic SDK",
    "OpenAI": "OpenAI SDK",
    "AsyncOpenAI": "OpenAI SDK",
    "gateway": "other clients",
    "terminal": "terminal agent",
}
"""Display names of client programs, by the names that they send."""


def name_client(session: Session) -> str:
    """Return the client's name, or else the platform by which its messages arrived."""
    return translate_client_name(session.client or session.platform or "library")


def translate_client_name(name: str) -> str:
    return CLIENT_NAMES.get(name) or one_line_excerpt(name, 40)
