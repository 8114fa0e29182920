"""The simulated provider in a thread of its own, so that a test can wait for a process that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from everthread.lab.provider import Provider, ServedModel
from tests.cli.conftest import configure

MODEL = "gpt-4o"


@contextmanager
def provider_in_thread(script: Any = None, models: Any = None) -> Iterator[Provider]:
    """Start a provider. At the end, raise the error that its script raised, if any."""
    models = models or [ServedModel(MODEL, 64_000, shows="max_model_len")]
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Provider(models, script)) as provider,
    ):
        yield provider


@contextmanager
def configured_provider(
    home: Path,
    script: Any = None,
    models: Any = None,
    *,
    model: str = MODEL,
    config: str = "",
) -> Iterator[Provider]:
    """Start a provider and configure the home for it, without a key."""
    with provider_in_thread(script, models) as provider:
        configure_provider(home, provider, model=model, config=config)
        yield provider


def configure_provider(
    home: Path, provider: Provider, *, model: str = MODEL, config: str = ""
) -> None:
    """Configure the home for this provider, without a key."""
    route = f"model: {{default: {model}, base_url: '{provider.url}/v1'}}"
    configure(home, f"{route}\n{config}")
