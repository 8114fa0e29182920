"""The public names are there, and cost nothing until they are used."""

from __future__ import annotations

import pytest

import everthread
from everthread.config import Config
from everthread.factory import make_session_options
from everthread.thread.options import SessionOptions
from tests.python_process import printed_by

HEAVY = (
    "openai",
    "anthropic",
    "httpx",
    "httpx2",
    "requests",
    "genai_prices",
    "splintr",
    "pydantic",
    "yaml",
    "rich",
    "typer",
)


def test_public_names_exist() -> None:
    for name in everthread.__all__:
        assert getattr(everthread, name) is not None
    assert set(everthread.__all__) <= set(dir(everthread))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = everthread.nonsense  # type: ignore[attr-defined]


def test_import_loads_no_large_package() -> None:
    code = f"import everthread, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert printed_by(code) == "[]"


def test_compress_loads_no_configuration_and_no_store() -> None:
    packages = ("config", "store", "providers", "conversation", "gateway", "lab")
    code = (
        "from everthread import compress; import sys;"
        "compress([{'role': 'user', 'content': 'hello'}], window=8_000);"
        f"heavy = {(*HEAVY, 'apsw', 'psycopg')!r};"
        f"ours = tuple('everthread.' + name for name in {packages!r});"
        "print([m for m in sys.modules if m.startswith(ours) or m in heavy if m != 'splintr'])"
    )
    assert printed_by(code) == "[]"


def test_the_defaults_of_compress_are_those_of_the_configuration() -> None:
    assert make_session_options(Config()) == SessionOptions()


def test_the_pure_core_loads_no_sdk_and_no_price_table() -> None:
    code = (
        "import everthread, sys; [getattr(everthread, n) for n in everthread.__all__];"
        "everthread.normalize_usage({}); everthread.classify_error('boom'); everthread.redact('x');"
        "heavy = ('openai', 'anthropic', 'httpx', 'httpx2', 'genai_prices', 'splintr');"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert printed_by(code) == "[]"
