"""Everthread keeps a conversation with a language model going past the model's context window.

The packages, each importing only those below it (`docs/design/architecture.md` draws the two flows through them):

    cli/           the `everthread` command
    lab/           a simulated provider; replay, comparison and tuning on recorded conversations; importers
    integrations/  adapters for LangChain and other frameworks: shorten their history before each call
    factory/       builds the public objects from a configuration; config/: config.yaml; testing: test doubles
    gateway/       an HTTP proxy that compacts; filters/, api/, dashboard/, MCP
    agent/         a conversation with tools: the tool loop, tools, approval, memory, slash commands
    conversation/  a thread and a model: send, stream
    thread/        one managed conversation: policy, recovery, learnt limits, accounting, background work, recall
    compaction/    the engine interface, the compressor, the lossless engine, summarizers
    providers/     the official clients, retry, fallback, windows, a local model
    store/         stored conversations: SQLite, PostgreSQL
    wire/          pure codecs: OpenAI chat, OpenAI responses, Anthropic, Gemini, their streams
    core/          pure: messages, tokens, prices, budgets, cache breakpoints, search, redaction, provider errors
    errors         every exception

The public names below are stable. They are loaded when first used, so that importing the package costs next to
nothing: no SDK, no HTTP client, no price table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everthread._version import __version__
from everthread.errors import (
    ConfigError,
    ContextOverflowError,
    EngineError,
    EverthreadError,
    InputError,
    ModelError,
    StoreError,
    SummaryError,
    TranscriptError,
    WireError,
)

if TYPE_CHECKING:
    from everthread.agent.loop import Agent
    from everthread.compaction.compaction_result import Compaction
    from everthread.compaction.compressor import ContextCompressor
    from everthread.compaction.engine import ContextEngine
    from everthread.compaction.registry import register_context_engine
    from everthread.config import Config, load_config
    from everthread.conversation.conversation import Conversation
    from everthread.core.caching.claude_cache_marks import apply_cache_control
    from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
    from everthread.core.message_repair import repair_messages
    from everthread.core.provider_errors.classification import (
        ErrorVerdict,
        classify_error,
    )
    from everthread.core.secrets.redaction import redact
    from everthread.core.tokens import TokenCounter, estimate_request_tokens
    from everthread.core.validation import Problem, validate_messages
    from everthread.factory import (
        acompress,
        compress,
        open_agent,
        open_conversation,
        open_store,
    )

__all__ = [
    "Agent",
    "CanonicalUsage",
    "Compaction",
    "Config",
    "ConfigError",
    "ContextCompressor",
    "ContextEngine",
    "ContextOverflowError",
    "Conversation",
    "EngineError",
    "ErrorVerdict",
    "EverthreadError",
    "InputError",
    "ModelError",
    "Problem",
    "StoreError",
    "SummaryError",
    "TokenCounter",
    "TranscriptError",
    "WireError",
    "__version__",
    "acompress",
    "apply_cache_control",
    "classify_error",
    "compress",
    "estimate_request_tokens",
    "load_config",
    "normalize_usage",
    "open_agent",
    "open_conversation",
    "open_store",
    "redact",
    "register_context_engine",
    "repair_messages",
    "validate_messages",
]

_MODULES_OF_NAMES = {
    "Agent": "agent.loop",
    "CanonicalUsage": "core.costs.canonical_usage",
    "Compaction": "compaction.compaction_result",
    "Config": "config",
    "ContextCompressor": "compaction.compressor",
    "ContextEngine": "compaction.engine",
    "Conversation": "conversation.conversation",
    "ErrorVerdict": "core.provider_errors.classification",
    "Problem": "core.validation",
    "TokenCounter": "core.tokens",
    "acompress": "factory.compression",
    "apply_cache_control": "core.caching.claude_cache_marks",
    "classify_error": "core.provider_errors.classification",
    "compress": "factory.compression",
    "estimate_request_tokens": "core.tokens",
    "load_config": "config",
    "normalize_usage": "core.costs.canonical_usage",
    "open_agent": "factory.agent",
    "open_conversation": "factory.conversations",
    "open_store": "factory.stores",
    "redact": "core.secrets.redaction",
    "register_context_engine": "compaction.registry",
    "repair_messages": "core.message_repair",
    "validate_messages": "core.validation",
}


if not TYPE_CHECKING:  # a type checker must report unknown names

    def __getattr__(name: str) -> Any:
        if name not in _MODULES_OF_NAMES:
            raise AttributeError(f"module 'everthread' has no attribute {name!r}")
        value = getattr(import_module(f"everthread.{_MODULES_OF_NAMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
