"""Every key is optional, every wrong one is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.generate import PAGES
from everthread.config import Config, config_path, load_config, parse_config
from everthread.config.yaml_text import parse_yaml
from everthread.errors import ConfigError
from everthread.factory import make_session_options


def test_defaults_expose_nothing_to_other_machines() -> None:
    """The page of the reference lists every default; these must not change by accident."""
    config = Config()
    assert config.gateway.host == "127.0.0.1", "no key is needed, so only this machine may connect"
    assert config.gateway.auth == "none"
    assert config.gateway.native.tools is False, "a client without a key runs no commands"
    assert config.store.url is None, "the store is a file in the home"
    assert config.model.default is None, "no provider is called before a model is chosen"


def assert_given_values(settings: Any, given: Any) -> None:
    """Check that settings have all values of a text, at the same places."""
    if isinstance(given, dict):
        for key, value in given.items():
            assert_given_values(settings[key], value)
    elif isinstance(given, list):
        for setting, value in zip(settings, given, strict=True):
            assert_given_values(setting, value)
    elif given is False and isinstance(settings, str):
        assert settings == "off", "YAML reads `off` as false"
    else:
        assert settings == given


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "compression: {threshold: 0.0}",
        "compression: {threshold: 1}",
        "compression: {target_ratio: 0.10}",
        "compression: {user_words: 0.5, models: {claude-*: {threshold: 0.3}, gpt-5: {threshold_tokens: 50000}}}",
        "compression: {target_ratio: 0.80, template: classic}",
        "prompt_caching: {cache_ttl: 1h}",
        "model: {default: claude-sonnet-4-5, provider: custom, base_url: 'http://127.0.0.1:8080/v1'}",
        "auxiliary: {compression: {provider: main, context_length: 4096}}",
        "store: {url: 'postgresql://me@db.internal/everthread'}",
        "tool_output: {per_tool: {read_file: null, terminal: 50000}}",
        "agent: {max_rounds: 1, instructions_chars: 0}",
        "engines: {mine: {depth: 3, anything: [goes]}}",
        "gateway: {mode: off, upstreams: [{name: a, url: 'http://a.b', mode: off}]}",
        "gateway: {mode: observe, host: '::1', limits: {hold_seconds: 5}}",
        "gateway: {upstreams: [{name: a, url: 'http://a.b/v1', models: [gpt-*], api_key_env: A_KEY, mode: observe}]}",
    ],
)
def test_accepts_allowed_values(text: str) -> None:
    settings = parse_config(text).model_dump(mode="json")
    assert_given_values(settings, parse_yaml(text) or {})


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (
            "compression: {threshold: 1.01}",
            "compression.threshold = 1.01",
            "must be from 0 to 1",
        ),
        ("compression: {threshold: .nan}", "compression.threshold = nan", "finite"),
        (
            "compression: {target_ratio: 0.05}",
            "compression.target_ratio = 0.05",
            "must be from 0.1 to 0.8",
        ),
        (
            "compression: {protect_last_n: 0}",
            "compression.protect_last_n = 0",
            "must be 1 or more",
        ),
        (
            "compression: {protect_last_n: '20'}",
            "compression.protect_last_n = '20'",
            "valid integer",
        ),
        (
            "compression: {user_words: 0.6}",
            "compression.user_words = 0.6",
            "must be from 0 to 0.5",
        ),
        (
            "compression: {models: {gpt-5: {threshold: 2}}}",
            "compression.models.gpt-5.threshold = 2",
            "must be from 0 to 1",
        ),
        (
            "compression: {models: {gpt-5: {template: classic}}}",
            "compression.models.gpt-5.template",
            "unknown key",
        ),
        ("compression: {enabled: 1}", "compression.enabled = 1", "boolean"),
        (
            "compression: {treshold: 0.4}",
            "compression.treshold",
            "did you mean threshold?",
        ),
        ("compresion: {}", "compresion", "did you mean compression?"),
        (
            "agent: {max_rounds: 0}",
            "agent.max_rounds = 0",
            "must be from 1 to 10,000",
        ),
        ("zzz: 1", "zzz", "known here: agent, auxiliary"),
        (
            "prompt_caching: {cache_ttl: 10m}",
            "prompt_caching.cache_ttl = '10m'",
            "'5m' or '1h'",
        ),
        ("model: {provider: main}", "model.provider = 'main'", "'openrouter'"),
        ("model: {provider: custom}", "model", "needs a base_url"),
        ("model: {base_url: 'localhost:8080'}", "model.base_url", "http://"),
        ("model: {api_key: abc}", "model.api_key", "api_key_env"),
        (
            "model: {context_length: 10}",
            "model.context_length = 10",
            "must be 1,000 or more",
        ),
        (
            "auxiliary: {compression: {zz: 1}}",
            "auxiliary.compression.zz",
            "known here: api_key_env",
        ),
        (
            "tool_output: {preview_chars: 5000, result_chars: 2000}",
            "tool_output",
            "must not exceed",
        ),
        (
            "tool_output: {per_tool: {terminal: 0}}",
            "tool_output.per_tool.terminal = 0",
            "must be 1 or more",
        ),
        (
            "gateway: {port: 70000}",
            "gateway.port = 70000",
            "must be from 0 to 65,535",
        ),
        (
            "gateway: {upstreams: [{name: a, url: 'http://x', modle: 1}]}",
            "gateway.upstreams.0.modle",
            "did you mean mode?",
        ),
        (
            "gateway: {upstreams: [{name: a, url: 'http://me:pw@x'}]}",
            "gateway.upstreams.0.url",
            "without a password",
        ),
        (
            "gateway: {upstreams: [{name: a, url: 'http://x'}, {name: a, url: 'http://y'}]}",
            "gateway",
            "a occurs twice",
        ),
        ("store: {url: 'mysql://x'}", "store.url = 'mysql://x'", "postgresql://"),
        ("store: {url: 'postgresql://me:secret@h/db'}", "store.url", "PGPASSWORD"),
        ("context: {engine: {}}", "context.engine", "string"),
        (
            "model: {default: " + "x" * 300 + ", max_tokens: 0}",
            "model.max_tokens = 0",
            "must be 1 or more",
        ),
        ("engines: {mine: 3}", "engines.mine = 3", "dictionary"),
        ("compression: 3", "compression = 3", "must hold keys and values"),
        (
            "recall: [embeddings]",
            "recall = ['embeddings']",
            "must hold keys and values",
        ),
        (
            "compression: {keep_important: 0.1}",
            "compression.keep_important",
            "unknown key",
        ),
    ],
)
def test_names_path_and_value_of_a_refused_setting(text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert path in str(caught.value)
    assert words in str(caught.value)


def test_reports_all_invalid_keys_together() -> None:
    with pytest.raises(ConfigError, match="2 setting") as caught:
        parse_config("compression: {threshold: 2, nope: 1}")
    assert "compression.threshold" in str(caught.value)
    assert "compression.nope" in str(caught.value)


def test_does_not_show_a_key_given_as_a_variable_name() -> None:
    key = "sk-ant-api03-" + "Zq8" * 31 + "AA"
    with pytest.raises(ConfigError) as caught:
        parse_config(f"model: {{api_key_env: {key}}}")
    assert "environment variable" in str(caught.value)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- 1\n- 2\n",
        "just text",
        "a: 1\na: 2\n",
        "x: !!python/object:os.system {}",
    ],
)
def test_refuses_invalid_yaml(text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        parse_config(text)


def test_empty_sections_set_nothing() -> None:
    text = "compression:\n  # threshold: 0.4\nmodel:\nauxiliary:\n  compression:\ngateway: {limits: null}\n"
    assert parse_config(text) == Config()
    with pytest.raises(ConfigError) as caught:
        parse_config("compression: 5")
    assert "Options" not in str(caught.value)


def test_refuses_duplicate_keys() -> None:
    with pytest.raises(ConfigError, match='duplicate key "threshold"'):
        parse_config("compression:\n  threshold: 0.4\n  threshold: 0.5\n")


def test_reads_the_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path))
    assert config_path() == tmp_path / "config.yaml"
    assert load_config() == Config()
    (tmp_path / "config.yaml").write_text("compression: {threshold: 0.7}", "utf-8")
    assert load_config().compression.threshold == 0.7
    assert load_config(tmp_path / "config.yaml").compression.threshold == 0.7
    monkeypatch.delenv("EVERTHREAD_HOME")
    assert config_path().name == "config.yaml"
    assert "everthread" in str(config_path())


def test_refuses_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "binary.yaml")


def test_sets_thresholds_by_model() -> None:
    text = """
    compression:
      threshold_tokens: 90000
      models:
        claude-*: {threshold: 0.3}
        claude-opus-*: {threshold: 0.2, target_ratio: 0.4}
        gpt-5: {threshold_tokens: 50000}
    """
    options = make_session_options(parse_config(text))
    budgets = {
        name: options.for_model(name).budget(200_000)
        for name in ("gpt-5", "gpt-5-mini", "claude-sonnet-4-5", "claude-opus-4-1")
    }
    assert {name: (budget.threshold, budget.tail_tokens) for name, budget in budgets.items()} == {
        "gpt-5": (50_000, 10_000),
        "gpt-5-mini": (90_000, 18_000),
        "claude-sonnet-4-5": (60_000, 12_000),
        "claude-opus-4-1": (40_000, 16_000),
    }


@pytest.mark.parametrize("target", PAGES, ids=lambda target: target.name)
def test_generated_pages_are_current(target: Path) -> None:
    assert target.read_text("utf-8") == PAGES[target](), "run `make docs`"
