"""Who makes vectors for recall, as configured."""

from __future__ import annotations

import importlib.util
import os

from everthread.config import Config
from everthread.core.vectors import Embedder
from everthread.errors import ConfigError


def embedder_of(config: Config) -> Embedder | None:
    """None where none is configured. `ConfigError` where the extra is missing that compares vectors."""
    options = config.recall.embeddings
    if options is None or not config.recall.enabled:
        return None
    if importlib.util.find_spec("numpy") is None:
        raise ConfigError("recall.embeddings needs numpy to compare vectors: install everthread[vectors]")
    if options.base_url is None:
        from everthread.providers.local_embeddings import LocalEmbedder

        return LocalEmbedder()
    from everthread.providers.embeddings import EndpointEmbedder

    key = os.environ.get(options.api_key_env or "", "") or None
    return EndpointEmbedder(options.model, options.base_url, api_key=key)
