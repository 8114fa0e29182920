"""Each model's text is counted with its own vocabulary, or scaled from one that is known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from everthread.core.tokens.tokenizers import (
    bare_name,
    count_foreign_letters,
    load_tokenizer,
    tokenizer_for,
)


@pytest.mark.parametrize(
    ("model", "vocabulary"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini-2024-07-18", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("gpt-4.5-preview", "o200k_base"),
        ("GPT-5.2-codex", "o200k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("o1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("openai/o4-mini-high", "o200k_base"),
        ("ft:gpt-4o-mini:acme::1", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("azure/gpt-35-turbo", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3"),
        ("ollama/llama3.1:8b", "llama3"),
        ("codellama:7b", "llama2"),
        ("deepseek-r1-distill-llama-70b", "llama3"),
        ("deepseek-r1-distill-qwen-32b", "qwen3"),
        ("litellm_proxy/deepseek/deepseek-chat", "deepseek_v3"),
        ("qwen/qwen3-coder", "qwen3"),
        ("mistralai/mixtral-8x7b-instruct", "mistral_v2"),
        ("mistral-large-latest", "mistral_v3"),
        ("devstral-small", "mistral_v3"),
        ("pixtral-12b", "mistral_v3"),
        ("z-ai/glm-4.6", "glm4"),
        ("openrouter/moonshotai/kimi-k2", "kimi_k2"),
        ("google/gemini-2.5-pro", "gemma3"),
        ("gemma-3-27b-it", "gemma3"),
        ("gemma2:9b", "gemma2"),
        ("microsoft/phi-4", "phi4"),
        ("olmo-2-13b", "olmo2"),
        ("llama-4-maverick", None),
        ("claude-sonnet-4-5", None),
        ("grok-4", None),
        ("", None),
        (None, None),
    ],
)
def test_uses_the_vocabulary_of_the_model(model: str | None, vocabulary: str | None) -> None:
    assert tokenizer_for(model).vocabulary == vocabulary


@pytest.mark.parametrize(
    "vocabulary_of",
    [
        "gpt-4o",
        "gpt-4",
        "llama-3",
        "codellama",
        "qwen3",
        "deepseek-chat",
        "mixtral",
        "mistral-large",
        "glm-4.6",
        "kimi-k2",
        "gemini-2.5",
        "gemma2",
        "phi-4",
        "olmo-2",
    ],
)
def test_every_vocabulary_can_be_loaded_and_counts_words(vocabulary_of: str) -> None:
    assert 4 <= tokenizer_for(vocabulary_of).count("The quick brown fox.") <= 8


@pytest.mark.parametrize(
    "name",
    [
        "claude-3-5-sonnet-20241022",
        "claude-3.7-sonnet",
        "anthropic/claude-3-7-sonnet-latest",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "claude-opus-4-1@20250805",
        "claude-opus-4-20250514",
        "claude-haiku-4-5",
    ],
)
def test_claude_needs_about_a_quarter_more_for_code_and_a_tenth_for_prose(
    name: str,
) -> None:
    prose = (
        "The committee met on Tuesday to discuss whether the old bridge should be repaired or replaced. "
        * 10
    )
    code = "    if value is None:\n        return default\n    total += value.amount\n" * 10
    openai = tokenizer_for("gpt-4o")
    claude = tokenizer_for(name)
    assert claude.count(prose) / openai.count(prose) == pytest.approx(1.1, abs=0.02)
    assert 1.2 < claude.count(code) / openai.count(code) < 1.35


@pytest.mark.parametrize(
    "name",
    [
        "claude-opus-4-7",
        "anthropic/claude-opus-4.8",
        "claude-sonnet-5",
        "claude-mythos-preview",
    ],
)
def test_newer_claude_splits_latin_further_and_chinese_as_before(name: str) -> None:
    older = tokenizer_for("claude-opus-4-6")
    newer = tokenizer_for(name)
    english = "The committee met on Tuesday. " * 20
    chinese = "我们在上线前又检查了一遍部署脚本，发现数据库迁移会锁住订单表。" * 10
    assert newer.count(english) / older.count(english) == pytest.approx(1.3, abs=0.05)
    assert newer.count(chinese) / older.count(chinese) == pytest.approx(1.0, abs=0.08)


def test_ignores_routes_before_the_model_name() -> None:
    assert bare_name("openrouter/anthropic/Claude-Sonnet-4.5 ") == "claude-sonnet-4.5"
    assert tokenizer_for("litellm_proxy/openai/gpt-4o") is tokenizer_for("gpt-4o")


@pytest.mark.parametrize(
    "text", ["word " * 60_000, "a" * 200_000, "x = 1\n" * 40_000, "汉字" * 50_000]
)
def test_long_texts_are_counted_in_chunks_without_losing_any(text: str) -> None:
    from splintr import Tokenizer  # noqa: PLC0415  the yardstick

    whole = len(Tokenizer.from_pretrained("o200k_base").encode_ordinary(text))
    assert tokenizer_for("gpt-4o").count(text) == pytest.approx(whole, rel=0.001)


def test_samples_texts_over_a_million_characters() -> None:
    page = "".join(
        f"{n}. The committee met on day {n} and decided nothing.\n" for n in range(1_000)
    )
    tokenizer = tokenizer_for("gpt-4o")
    assert tokenizer.count(page * 60) == pytest.approx(60 * tokenizer.count(page), rel=0.02)


@pytest.mark.parametrize("unit", ["a", " ", "\n", "=", "中", "😀"])
@pytest.mark.parametrize("model", ["gpt-4o", "deepseek-chat", "gemini-2.5-flash"])
def test_a_long_run_of_one_character_is_counted(unit: str, model: str) -> None:
    assert tokenizer_for(model).count(unit * 200_000) > 200


def test_surrogates_and_special_tokens_count_as_text() -> None:
    tokenizer = tokenizer_for("gpt-4o")
    assert tokenizer.count("broken \ud83d emoji") >= 3
    assert tokenizer.count("<|endoftext|>") > 1


def test_loads_vocabularies_lazily() -> None:
    code = (
        "import sys; from everthread.core.tokens import TokenCounter, estimate_request_tokens;"
        "TokenCounter('gpt-4o');"
        "assert 'splintr' not in sys.modules;"
        "estimate_request_tokens([{'role': 'user', 'content': 'hello'}], model='gpt-4o');"
        "assert 'splintr' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counts_letters_of_other_scripts() -> None:
    assert count_foreign_letters("plain ascii, no letter of another script") == 0
    assert count_foreign_letters("Zürich – “naïve” → ├── 10 €") == 0
    assert count_foreign_letters("中文 and かな and 한글 and Привет and ελ") == 14


def test_loading_a_tokenizer_counts_a_word_of_several_tokens() -> None:
    """Only such a word builds the merge tables; a word of one token would leave that to the first text."""
    load_tokenizer("gpt-4o")
    assert tokenizer_for("gpt-4o").count("qzxwv") > 1
