"""How many tokens a text is, from its character classes alone.

The figures are tokens of OpenAI's `o200k_base`; `tokenizers` scales them for other models. Nothing is split into
words: the text becomes a string of class letters and the patterns in it are counted, each in a single pass in C. Only
Chinese, Japanese and Korean need a look at the characters themselves: which of them have a token of their own and
which pairs a token joins (`data/cjk.txt`) differs more between styles of writing than between languages. A long text
is judged by evenly spaced pieces, so the time does not grow with it. Weights are a least-squares fit, by relative
error, over prose in 20 languages, source code, JSON, logs, tables and encoded data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib import resources
from itertools import repeat
from operator import add

_SAMPLE = 16_384
_CJK_SAMPLE = 1_024
_PIECE = 256


def estimate_tokens(text: str) -> int:
    """About how many `o200k_base` tokens the text is; 0 only for an empty one."""
    if not text:
        return 0
    scale = 1.0
    if len(text) > _SAMPLE:
        scale = len(text) / _SAMPLE
        text = sample(text, _SAMPLE)
    latin = text.encode("latin-1", "replace")
    tokens = _weigh_latin(latin)
    if not text.isascii():
        tokens += _weigh_scripts(text) + _ACCENT * len(latin.translate(None, _NOT_ACCENTED))
    return max(1, round(tokens * scale))


def sample(text: str, size: int) -> str:
    """Evenly spaced pieces of a longer text, together of that size."""
    count = size // _PIECE
    starts = (len(text) * index // count for index in range(count))
    return "".join(text[start : start + _PIECE] for start in starts)


def foreign_letters(text: str) -> int:
    """How many letters of other scripts than Latin the text has: vocabularies differ most in these."""
    return 0 if text.isascii() else len(_high_bytes(text).translate(None, _NOT_FOREIGN))


def _weigh_latin(data: bytes) -> float:
    classes = b" " + data.translate(_CLASSES)
    total = 0.0
    for plane, patterns in _PLANES:
        view = classes.translate(plane) if plane else classes
        for pattern, weight in patterns:
            total += weight * view.count(pattern)
    return total


def _weigh_scripts(text: str) -> float:
    high = _high_bytes(text)
    total = sum(weight * len(high.translate(None, others)) for others, weight in _SCRIPTS)
    return total + (_weigh_joins(text) if high.translate(None, _NOT_JOINED) else 0.0)


def _weigh_joins(text: str) -> float:
    """What tokens that join characters save, and characters without a token cost."""
    scale = 1.0
    if len(text) > _CJK_SAMPLE:
        scale = len(text) / _CJK_SAMPLE
        text = sample(text, _CJK_SAMPLE)
    known, joins = _cjk()
    letters = len(_high_bytes(text).translate(None, _NOT_CHARACTER))
    unknown = letters - sum(map(known.__contains__, text))
    saved = sum(map(joins.get, map(add, text, text[1:]), repeat(0.0)))
    return scale * (_UNKNOWN * unknown - saved)


@functools.cache
def _cjk() -> tuple[frozenset[str], dict[str, float]]:
    """Han and Hangul with a token of their own; what each pair that a token joins saves."""
    data = resources.files("everthread.core").joinpath("data/cjk.txt").read_text("utf-8")
    known, pairs = data.splitlines()
    joined = (pairs[index : index + 2] for index in range(0, len(pairs), 2))
    return frozenset(known), {pair: _JOIN_HAN if "\u3400" <= pair[1] < "\ua000" else _JOIN for pair in joined}


def _high_bytes(text: str) -> bytes:
    """The upper byte of every UTF-16 unit: it names the script a character belongs to."""
    return text.encode("utf-16-le", "surrogatepass")[1::2]


def _table(letter_of: Callable[[int], str]) -> bytes:
    return "".join(map(letter_of, range(256))).encode("ascii")


def _class_of(code: int) -> str:
    """a: small letter, A: capital, 0: digit, blank, line break, `?`: outside Latin-1, dot: any other sign."""
    char = chr(code)
    if char in "\n\r":
        return "\n"
    if char in " \t":
        return " "
    if char.isdigit() and char.isascii():
        return "0"
    if char.isalpha():
        return "A" if char.isupper() and char.isascii() else "a"
    return "?" if char == "?" else "."


def _only(members: str, signs: str = "~") -> bytes:
    """Maps the given classes to `x`, all others to `~`, so that runs of them can be counted by their starts."""
    return _table(lambda code: "x" if chr(code) in members else signs if chr(code) == "." else "~")


def _except(high_bytes: Iterable[int]) -> bytes:
    """What to delete so that only these bytes remain."""
    kept = frozenset(high_bytes)
    return bytes(code for code in range(256) if code not in kept)


_CLASSES = _table(_class_of)

_PLANES: tuple[tuple[bytes | None, tuple[tuple[bytes, float], ...]], ...] = (
    (
        None,
        (
            (b"aA", 0.66),  # camelCase: a word begins inside a word
            (b"a0A", 4.17),  # base64: no words at all
            (b"A0a", 5.72),
            (b"AA", 0.14),
            (b"0", 0.59),
            (b"000", -0.8),  # three digits are one token
            (b" 0", 0.93),  # a blank joins the word after it, but no number
            (b" .", 0.26),
            (b"\n", 1.29),
            (b"\n\n", -2.12),
            (b".\n", -1.2),  # a line break joins the signs before it
            (b" ?", 0.6),
        ),
    ),
    (_only("aA"), ((b"~x", 0.84), (b"x", 0.04))),  # words, and their letters
    (_only("aA", "."), ((b"x.x", -0.55),)),  # a single sign joins the word after it
    (_only("0"), ((b"~x", 0.27),)),  # numbers
    (_only("."), ((b"~x", 0.75), (b"xx", 0.38), (b"x" * 16, -2.73))),  # signs, their pairs, ruled lines
    (_only(" \n"), ((b"~xx", 0.99),)),  # indentation, columns
)

_HAN = (*range(0x32, 0xA0), 0xF9, 0xFA)
_HANGUL = range(0xAC, 0xD8)
_SCRIPTS = (
    (_except([0x01]), 1.12),  # Latin with rarer accents: they cut the word
    (_except([0x1E]), -1.23),  # Vietnamese: the word is cut above, but not by the tokenizer
    (_except([0x04]), 0.2),  # Cyrillic
    (_except([0x02, 0x03, *range(0x05, 0x1E), 0x1F]), 0.31),  # Greek, Hebrew, Arabic, Indic scripts, Thai
    (_except([0x20]), 0.53),  # typographic quotes and dashes
    (_except(range(0x21, 0x2E)), 0.76),  # arrows, mathematics, box drawing
    (_except([0x30, 0x31]), 0.93),  # Kana and East Asian punctuation
    (_except(_HANGUL), 0.99),
    (_except(_HAN), 0.98),
    (_except(range(0xD8, 0xDC)), 1.97),  # emoji
    (_except([0xFF]), 0.83),  # full-width forms
)
_ACCENT = 1.05
_UNKNOWN = 0.8
_JOIN_HAN = 1.0
_JOIN = 0.72

_NOT_ACCENTED = bytes(range(0xC0))
_NOT_CHARACTER = _except([*_HAN, *_HANGUL])
_NOT_JOINED = _except([0x30, *_HAN, *_HANGUL])
_NOT_FOREIGN = _except([*range(0x03, 0x1E), 0x1F, *range(0x2E, 0xD8), *range(0xF9, 0x100)])
