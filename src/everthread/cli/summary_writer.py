"""Describe which model writes the summaries of a compaction, and who pays for it."""

from __future__ import annotations

from everthread.config import Config
from everthread.factory.model_setup import check_choice

JOURNAL_TEXT = "the built-in journal: no model is called, nothing is paid"


def describe_own_writer(config: Config, model: str) -> str:
    """Describe which model writes summaries in `chat`, `run` and the library, for a conversation with `model`."""
    if not config.compression.enabled:
        return "nobody: compression.enabled is false, nothing is compacted"
    auxiliary = config.auxiliary.compression
    if auxiliary.provider != "main" and auxiliary.model:
        problem = check_choice(auxiliary)[1]
        if not problem:
            return f"{auxiliary.model}, paid with its own key (auxiliary.compression)"
    choice, _ = check_choice(config.model, model)
    if choice is not None and choice.provider == "local":
        return JOURNAL_TEXT
    return f"{model}, paid like its answers; if it fails, the journal, free"


def describe_client_writer(config: Config) -> str:
    """Describe which model writes summaries for clients of the gateway."""
    if not config.compression.enabled:
        return "nobody: compression.enabled is false, nothing is compacted"
    auxiliary = config.auxiliary.compression
    if auxiliary.provider == "main":
        return "the client's own model, paid with the client's key; else the journal"
    if not auxiliary.model:
        return JOURNAL_TEXT
    problem = check_choice(auxiliary)[1]
    if problem:
        return f"the journal, since {auxiliary.model} cannot be used: {problem}"
    return f"{auxiliary.model}, paid with the gateway's key; else the journal"
