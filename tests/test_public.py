"""The public names are there, and cost nothing until they are used."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import everthread
from everthread.config import Config
from everthread.factory import make_session_options
from everthread.thread.options import SessionOptions
from tests.python_process import printed_by


def test_public_names_exist() -> None:
    for name in everthread.__all__:
        assert getattr(everthread, name) is not None
    assert set(everthread.__all__) <= set(dir(everthread))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = everthread.nonsense  # type: ignore[attr-defined]


LARGE_PACKAGES = (
    "openai",
    "anthropic",
    "httpx",
    "httpx2",
    "requests",
    "genai_prices",
    "pydantic",
    "yaml",
    "rich",
    "typer",
    "apsw",
    "psycopg",
    "xllamacpp",
)
OWN_LARGE_PACKAGES = tuple(
    f"everthread.{name}"
    for name in ("config", "store", "providers", "conversation", "gateway", "lab")
)
COMPRESS = """
from everthread import compress
compress([{'role': 'user', 'content': 'hello'}], window=8_000)
"""
USE_CORE = """
import everthread
for name in everthread.__all__:
    getattr(everthread, name)
everthread.normalize_usage({})
everthread.classify_error('boom')
everthread.redact('x')
"""
CHOOSE_MODEL = """
import everthread.providers.catalog
import everthread.providers.model_choice
import everthread.providers.resilience
"""
CLIENTS = ("openai", "anthropic", "httpx", "httpx2", "genai_prices", "xllamacpp")


@pytest.mark.parametrize(
    ("code", "packages"),
    [
        ("import everthread", (*LARGE_PACKAGES, "splintr")),
        (COMPRESS, (*LARGE_PACKAGES, *OWN_LARGE_PACKAGES)),
        (USE_CORE, (*CLIENTS, "splintr")),
        (CHOOSE_MODEL, CLIENTS),
        ("import everthread.core.costs.prices", ("genai_prices",)),
        ("import everthread.cli", ("apsw", "psycopg", "asyncpg")),
        ("import everthread.pytest_plugin", ("everthread.core",)),
    ],
    ids=["import", "compress", "core", "model choice", "prices", "command line", "pytest plugin"],
)
def test_large_packages_are_loaded_when_they_are_used(code: str, packages: Sequence[str]) -> None:
    check = (
        "import sys\n"
        f"print([m for m in sys.modules for p in {packages!r} if m == p or m.startswith(p + '.')])"
    )
    assert printed_by(f"{code}\n{check}") == "[]"


def test_the_defaults_of_compress_are_those_of_the_configuration() -> None:
    assert make_session_options(Config()) == SessionOptions()
