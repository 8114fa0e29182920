"""Everthread keeps a conversation with a language model going past the model's context window.

The tree:

    errors      every exception
    core/       pure: messages, tokens, usage, budgets, boundaries, pruning, caching, redaction, overflow, facts
    wire/       pure codecs: OpenAI chat, OpenAI responses, Anthropic, their streams
    config      config.yaml
    cli/        the `everthread` command

The public names below are stable. They are loaded when first used, so that importing the package costs next to
nothing: no SDK, no HTTP client, no price table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everthread._version import __version__
from everthread.errors import ConfigError, EverthreadError, InputError, TranscriptError, WireError

if TYPE_CHECKING:
    from everthread.config import Config, load_config
    from everthread.core.caching import apply_cache_control
    from everthread.core.overflow import ErrorVerdict, classify_error
    from everthread.core.redaction import redact
    from everthread.core.repair import repair_messages
    from everthread.core.tokens import TokenCounter, estimate_request_tokens
    from everthread.core.usage import CanonicalUsage, normalize_usage
    from everthread.core.validity import Problem, validate_messages

__all__ = [
    "CanonicalUsage",
    "Config",
    "ConfigError",
    "ErrorVerdict",
    "EverthreadError",
    "InputError",
    "Problem",
    "TokenCounter",
    "TranscriptError",
    "WireError",
    "__version__",
    "apply_cache_control",
    "classify_error",
    "estimate_request_tokens",
    "load_config",
    "normalize_usage",
    "redact",
    "repair_messages",
    "validate_messages",
]

_PLACES = {
    "CanonicalUsage": "core.usage",
    "Config": "config",
    "ErrorVerdict": "core.overflow",
    "Problem": "core.validity",
    "TokenCounter": "core.tokens",
    "apply_cache_control": "core.caching",
    "classify_error": "core.overflow",
    "estimate_request_tokens": "core.tokens",
    "load_config": "config",
    "normalize_usage": "core.usage",
    "redact": "core.redaction",
    "repair_messages": "core.repair",
    "validate_messages": "core.validity",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'everthread' has no attribute {name!r}")
    value = getattr(import_module(f"everthread.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
