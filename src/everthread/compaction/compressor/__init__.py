"""The default engine: prune, cut, summarise, verify, assemble; one file a phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.compaction.compressor.engine import ContextCompressor
from everthread.compaction.engine import ContextEngine, Services
from everthread.errors import ConfigError

__all__ = ["ContextCompressor", "create"]


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """The registry's way to make one. It has one option, `template`."""
    unknown = ", ".join(sorted(set(options) - {"template"}))
    if unknown:
        raise ConfigError(f"engines.compressor: unknown option(s) {unknown}; known: template")
    template = options.get("template", "handoff")
    if template not in ("handoff", "classic"):
        raise ConfigError(f"engines.compressor.template: {template!r} is not allowed; use handoff or classic")
    return ContextCompressor(services, template=template)
