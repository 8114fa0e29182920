"""The fast estimate stays near the real tokenizer, in every script it claims, at any length."""

from __future__ import annotations

import argparse
import ast
import base64
import inspect
import json
import subprocess
import tarfile
import textwrap
from importlib import resources
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.tokens import tokenizers as estimate
from everthread.core.tokens.tokenizers import estimate_tokens, foreign_letters, tokenizer_for
from tests.shared_data import shared

TEXTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("texts.json").read_text("utf-8"))
CASES = [(name, text) for name, texts in TEXTS.items() for text in texts]


def real(text: str) -> float:
    return tokenizer_for("gpt-4o").count(text)


def off(text: str) -> float:
    return abs(estimate_tokens(text) / real(text) - 1)


@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_every_text_of_our_own_is_within_a_tenth(name: str, text: str) -> None:
    assert off(text) <= 0.1


@pytest.mark.parametrize("module", [argparse, ast, inspect, subprocess, tarfile, textwrap], ids=lambda m: m.__name__)
def test_source_code_is_within_a_tenth(module: ModuleType) -> None:
    assert off(inspect.getsource(module)) <= 0.1


ORDERS = [
    {
        "id": f"A-{20931 + n}",
        "placed_at": f"2025-03-{n % 28 + 1:02}T09:{n % 60:02}:53Z",
        "customer": {"name": ["Maria Keller", "李伟", "田中 恵子", "김민준"][n % 4], "zip": str(8000 + n)},
        "lines": [{"sku": f"LMP-{n}", "title": "Desk lamp, brass", "quantity": n % 5, "unit_price": 49.9}],
        "paid": n % 2 == 0,
        "notes": None,
    }
    for n in range(60)
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_json_is_within_a_tenth(indent: int | None, separators: tuple[str, str] | None) -> None:
    assert off(json.dumps(ORDERS, ensure_ascii=False, indent=indent, separators=separators)) <= 0.1


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(bytes((i * 7919 + i * i * 31) % 256 for i in range(6000))).decode(),
        "".join(f"{i * 2654435761 % 2**32:08x}" for i in range(800)),
        "\n".join(f"{i:>8} {i * 37 % 1000:>10.3f}   ok" for i in range(300)),
        "Дальше сервер снова отвечал на запросы, и ошибок в журнале больше не было. " * 20,
    ],
    ids=["base64", "hex", "columns", "russian"],
)
def test_encoded_data_columns_and_cyrillic_are_within_a_seventh(text: str) -> None:
    assert off(text) <= 0.15


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_long_text_is_judged_by_pieces_of_it(name: str) -> None:
    text = "\n\n".join(TEXTS[name] * (200_000 // sum(map(len, TEXTS[name]))))
    assert len(text) > 100_000
    assert off(text) <= 0.1


def test_a_long_text_that_changes_half_way_is_judged_by_both_halves() -> None:
    text = "The committee met on Tuesday to discuss the bridge. " * 2_000 + TEXTS["Chinese"][1] * 600
    assert off(text) <= 0.1


@pytest.mark.parametrize("unit", ["a", " ", "\n", "=", "0", "中", "가", "😀", "?", "ạ", "\ud800", "\x00", "aA", "’"])
def test_ten_megabytes_of_one_character_are_no_trouble(unit: str) -> None:
    assert 1 <= estimate_tokens(unit * (10_000_000 // len(unit))) <= 25_000_000


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=300))
def test_any_text_has_at_least_a_token_and_only_nothing_has_none(text: str) -> None:
    assert (estimate_tokens(text) >= 1) is bool(text)


def test_letters_of_other_scripts_are_told_from_latin_and_signs() -> None:
    assert foreign_letters("plain ascii, no letter of another script") == 0
    assert foreign_letters("Zürich – “naïve” → ├── 10 €") == 0
    assert foreign_letters("中文 and かな and 한글 and Привет and ελ") == 14


def test_the_table_of_joined_characters_is_what_the_vocabulary_joins() -> None:
    from splintr import Tokenizer  # noqa: PLC0415  the vocabulary the table was taken from

    vocabulary = Tokenizer.from_pretrained("o200k_base")
    han, kana, hangul = ("\u3400", "\u9fff"), ("\u3040", "\u30ff"), ("\uac00", "\ud7a3")

    def within(char: str, *ranges: tuple[str, str]) -> bool:
        return any(low <= char <= high for low, high in ranges)

    own: set[str] = set()
    joined: set[str] = set()
    for index in range(199_998):
        token = vocabulary.decode_bytes([index])
        if token.isascii():
            continue
        word = token.decode("utf-8", "ignore")
        if len(word) == 1 and within(word, han, hangul):
            own.add(word)
        joined |= {
            a + b
            for a, b in pairwise(word)
            if within(b, han, kana, hangul) and (within(a, han, kana, hangul) or (a == " " and within(b, hangul)))
        }
    table = resources.files("everthread.core").joinpath("data/cjk.txt").read_text("utf-8").splitlines()
    assert table == ["".join(sorted(own)), "".join(sorted(joined))]


def test_the_table_is_read_once() -> None:
    assert estimate._cjk() is estimate._cjk()


def test_real_conversations_are_within_a_tenth() -> None:
    data = json.loads(shared("transcripts", "coding-long-claude.json").read_text("utf-8"))
    texts = [message["content"] for message in data["messages"] if isinstance(message.get("content"), str)]
    assert abs(sum(map(estimate_tokens, texts)) / sum(map(real, texts)) - 1) <= 0.1
