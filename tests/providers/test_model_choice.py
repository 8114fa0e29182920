"""From settings and environment to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.core.types import Api, ModelRequest, StreamingModel
from everthread.errors import ConfigError, ModelError
from everthread.providers.catalog import (
    choose_output_cap_field,
    get_output_cap,
    with_output_cap,
)
from everthread.providers.clients import HttpModel, is_reasoning_model
from everthread.providers.local import SMOLLM2, LocalModel
from everthread.providers.model_choice import ModelChoice, choose_model, create_model

ALL = {
    "OPENAI_API_KEY": "o",
    "ANTHROPIC_API_KEY": "a",
    "OPENROUTER_API_KEY": "r-secret",
    "DEEPSEEK_API_KEY": "d",
}
OWN = {key: ALL[key] for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}


def chosen(
    name: str | None, environment: dict[str, str] | None = None, **options: Any
) -> ModelChoice:
    return choose_model(name, environment=ALL if environment is None else environment, **options)


def create(
    name: str | None,
    environment: dict[str, str],
    home: Path,
    window: int | None = None,
    cap: int | None = None,
    **options: Any,
) -> StreamingModel:
    choice = choose_model(name, environment=environment, **options)
    return create_model(
        choice,
        environment=environment,
        home=home,
        context_length=window,
        max_tokens=cap,
    )


@pytest.mark.parametrize(
    ("name", "environment", "provider", "model", "api"),
    [
        ("gpt-4o", ALL, "openai", "gpt-4o", "openai_chat"),
        ("gpt-5-mini", ALL, "openai", "gpt-5-mini", "openai_responses"),
        ("o3", {}, "openai", "o3", "openai_responses"),
        ("claude-opus-4-5", ALL, "anthropic", "claude-opus-4-5", "anthropic"),
        (
            "anthropic/claude-opus-4.5",
            ALL,
            "openrouter",
            "anthropic/claude-opus-4.5",
            "openai_chat",
        ),
        ("anthropic/claude-opus-4-5", OWN, "anthropic", "claude-opus-4-5", "anthropic"),
        ("openai/gpt-4o", OWN, "openai", "gpt-4o", "openai_chat"),
        (
            "openrouter/qwen/qwen3-coder",
            OWN,
            "openrouter",
            "qwen/qwen3-coder",
            "openai_chat",
        ),
        ("qwen/qwen3-coder", OWN, "openrouter", "qwen/qwen3-coder", "openai_chat"),
        ("deepseek-chat", ALL, "deepseek", "deepseek-chat", "openai_chat"),
        ("some-model", ALL, "openrouter", "some-model", "openai_chat"),
        ("local/smollm2-135m", ALL, "local", "smollm2-135m", "openai_chat"),
        ("/models/x.gguf", ALL, "local", "/models/x.gguf", "openai_chat"),
    ],
)
def test_auto_chooses_by_name_and_keys(
    name: str, environment: dict[str, str], provider: str, model: str, api: Api
) -> None:
    choice = chosen(name, environment)
    assert (choice.provider, choice.model, choice.api) == (provider, model, api)


@pytest.mark.parametrize(
    ("base_url", "api", "address"),
    [
        ("http://localhost:8080", "openai_chat", "http://localhost:8080/v1"),
        ("http://localhost:8080/v1/", "openai_chat", "http://localhost:8080/v1"),
        (
            "https://proxy.example/team/openai",
            "openai_chat",
            "https://proxy.example/team/openai",
        ),
        ("https://api.anthropic.com/v1", "anthropic", "https://api.anthropic.com"),
        (
            "https://api.deepseek.com/anthropic",
            "anthropic",
            "https://api.deepseek.com/anthropic",
        ),
    ],
)
def test_accepts_a_custom_address(base_url: str, api: Api, address: str) -> None:
    for provider in ("custom", "auto"):
        choice = chosen("m", provider=provider, base_url=base_url)
        assert (choice.api, choice.base_url) == (api, address)


def test_a_custom_address_needs_only_a_named_key(
    tmp_path: Path,
) -> None:
    assert chosen("m", base_url="http://localhost:8080").key_env is None
    assert chosen("m", base_url="http://localhost:8080", api_key_env="MINE").key_env == "MINE"
    with pytest.raises(ConfigError, match="MINE is not set"):
        create("m", {}, tmp_path, base_url="http://localhost:8080", api_key_env="MINE")


def test_uses_the_named_provider() -> None:
    assert chosen("claude-opus-4-5", provider="openrouter").provider == "openrouter"
    assert chosen("my-tuned", provider="openai").base_url == "https://api.openai.com/v1"
    behind = chosen("claude-opus-4-5", provider="anthropic", base_url="https://proxy.example/v1")
    assert (behind.base_url, behind.api, behind.key_env) == (
        "https://proxy.example",
        "anthropic",
        "ANTHROPIC_API_KEY",
    )


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (None, {"environment": {}}, "no model is named"),
        ("some-model", {"environment": {}}, "not clear who serves"),
        ("m", {"provider": "custom"}, "needs a base_url"),
        ("m", {"provider": "acme"}, "'acme' is not known"),
    ],
)
def test_explains_undecidable_choices(
    name: str | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        chosen(name, **options)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gpt-4o", "OPENAI_API_KEY"),
        ("claude-opus-4-5", "ANTHROPIC_API_KEY"),
        ("a/b", "OPENROUTER"),
    ],
)
def test_a_missing_key_names_its_variable(name: str, variable: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=variable):
        create(name, {}, tmp_path)


@pytest.mark.parametrize("key", ["sk-…abc", "sk-a\nb", "sk-\x1b[0m"])
def test_refuses_a_badly_copied_key_without_showing_it(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds characters") as caught:
        create("gpt-4o", {"OPENAI_API_KEY": key}, tmp_path)
    assert key not in str(caught.value)


def test_creates_a_model_with_window_cap_and_headers(tmp_path: Path) -> None:
    model = create("anthropic/claude-opus-4.5", ALL, tmp_path, cap=99)
    assert isinstance(model, HttpModel)
    assert (model.window, model.max_tokens, model.api) == (200_000, 99, "openai_chat")
    assert model.headers == {"X-Title": "Everthread"}
    assert "r-secret" not in repr(model)
    assert create("gpt-4o", ALL, tmp_path, window=5_000).window == 5_000


def test_a_local_model_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="everthread models pull"):
        create(None, {}, tmp_path, provider="local")
    with pytest.raises(ModelError, match=r"nowhere\.gguf"):
        create("/nowhere.gguf", {}, tmp_path)
    with pytest.raises(ModelError, match="'llama' is not known"):
        create("llama", {}, tmp_path, provider="local")
    path = SMOLLM2.path(tmp_path)
    path.parent.mkdir()
    path.touch()
    model = create(None, {}, tmp_path, provider="local")
    assert isinstance(model, LocalModel)
    assert (model.name, model.window, model.path) == ("smollm2-135m", 8_192, path)


def test_recognizes_reasoning_models() -> None:
    assert all(
        map(
            is_reasoning_model,
            ["o1", "o3-mini", "gpt-5", "gpt-5.4-pro", "openai/gpt-6-sol", "codex-mini"],
        )
    )
    assert not any(
        map(
            is_reasoning_model,
            ["gpt-4o", "gpt-4.1", "gpt-3.5-turbo", "claude-opus-4-5", "olmo"],
        )
    )


def test_reads_and_sets_the_output_cap_of_every_protocol() -> None:
    for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        assert get_output_cap(ModelRequest("m", [], params={field: 7})) == 7
    assert get_output_cap(ModelRequest("m", [], params={"max_tokens": None})) is None
    assert (
        choose_output_cap_field("openai_chat", "https://api.openai.com/v1")
        == "max_completion_tokens"
    )
    assert choose_output_cap_field("openai_chat", "http://localhost/v1") == "max_tokens"
    request = ModelRequest("m", [], params={"a": 1, "max_tokens": 7, "b": 2})
    capped = with_output_cap(request, 5, api="openai_responses")
    assert list(capped.params.items()) == [
        ("a", 1),
        ("max_output_tokens", 5),
        ("b", 2),
    ]
    assert request.params["max_tokens"] == 7


def test_chooses_a_model_by_the_first_key() -> None:
    assert (chosen(None).model, chosen(None).reason) == (
        "gpt-5",
        "no model is named, and OPENAI_API_KEY is set",
    )
    assert chosen(None, {"ANTHROPIC_API_KEY": "a"}).model == "claude-sonnet-4-5"
    assert chosen(None, {"OPENROUTER_API_KEY": "r"}).provider == "openrouter"
    assert chosen(None, provider="anthropic").model == "claude-sonnet-4-5"
    assert chosen("gpt-4o").reason == ""
    for environment in (
        {"OPENAI_API_KEY": " "},
        {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "http://h/v1"},
    ):
        with pytest.raises(ConfigError, match="no model is named"):
            chosen(None, environment)
    with pytest.raises(
        ConfigError,
        match="OPENAI_BASE_URL names a server whose models are not known here",
    ):
        chosen(None, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "http://h/v1"})


def test_uses_addresses_of_the_environment() -> None:
    own = {
        "OPENAI_BASE_URL": "http://localhost:8000",
        "ANTHROPIC_BASE_URL": "http://localhost:9000/v1",
    }
    assert chosen("gpt-5", own) == ModelChoice(
        "openai", "gpt-5", "http://localhost:8000/v1", "openai_chat", None
    )
    assert chosen("llama-3", own).base_url == "http://localhost:8000/v1"
    claude = chosen("claude-sonnet-4-5", own | ALL)
    assert (claude.base_url, claude.key_env) == (
        "http://localhost:9000",
        "ANTHROPIC_API_KEY",
    )
    assert chosen("gpt-5", own, base_url="http://other/v1").base_url == "http://other/v1"


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("gemini-3.1-pro", "gemini"),
        ("grok-5", "xai"),
        ("deepseek-chat", "deepseek"),
    ],
)
def test_chooses_the_maker_of_a_model_without_keys(name: str, provider: str) -> None:
    assert chosen(name, environment={}).provider == provider
    elsewhere = chosen(name, environment={"OPENROUTER_API_KEY": "k"})
    assert elsewhere.provider == "openrouter"
