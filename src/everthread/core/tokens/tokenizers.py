"""How many tokens a text is: by the model's vocabulary where it is known, else from its character classes alone.

An estimate is in tokens of OpenAI's `o200k_base`, scaled for other models. Nothing is split into
words: the text becomes a string of class letters and the patterns in it are counted, each in a single pass in C. Only
Chinese, Japanese and Korean need a look at the characters themselves: which of them have a token of their own and
which pairs a token joins (`data/cjk.txt`) differs more between styles of writing than between languages. A long text
is judged by evenly spaced pieces, so the time does not grow with it. Weights are a least-squares fit, by relative
error, over prose in 20 languages, source code, JSON, logs, tables and encoded data.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
    return scale * (_UNKNOWN_CLASS * unknown - saved)


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
_UNKNOWN_CLASS = 0.8
_JOIN_HAN = 1.0
_JOIN = 0.72

_NOT_ACCENTED = bytes(range(0xC0))
_NOT_CHARACTER = _except([*_HAN, *_HANGUL])
_NOT_JOINED = _except([0x30, *_HAN, *_HANGUL])
_NOT_FOREIGN = _except([*range(0x03, 0x1E), 0x1F, *range(0x2E, 0xD8), *range(0xF9, 0x100)])


REFERENCE = "o200k_base"
_CHUNK = 32_768
_SAMPLE_ABOVE = 1_000_000


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """How a family of models turns text into tokens.

    `per_token`, `per_line` and `per_letter` scale a count of `o200k_base`: for each of its tokens, for each line
    break, for each letter of another script.
    """

    vocabulary: str | None = None
    per_token: float = 1.0
    per_line: float = 0.0
    per_letter: float = 0.0

    def count(self, text: str) -> float:
        """Tokens of the text: exact when the vocabulary is known and the text under a million characters."""
        if self.vocabulary is not None:
            return _count(text, self.vocabulary)
        return self._scale(_count(text, REFERENCE), text)

    def estimate(self, text: str) -> float:
        """Tokens of the text from its character classes; no vocabulary is loaded."""
        return self._scale(estimate_tokens(text), text)

    def _scale(self, tokens: float, text: str) -> float:
        total = self.per_token * tokens
        if self.per_line:
            # Empty lines count half: a run of line breaks is about one token.
            total += self.per_line * (text.count("\n") - text.count("\n\n"))
        if self.per_letter:
            total += self.per_letter * foreign_letters(text)
        return max(total, 0.0)


NEWER_CLAUDE = r"claude[-.].*(?:opus-4[-.][7-9]|(?:opus|sonnet|haiku)-[5-9]|mythos|fable)"
"""Names of the Claude models from Opus 4.7 on: another tokenizer, larger pictures."""

# Claude before and after its change of tokenizer: the new one splits Latin words further and nothing else.
_CLAUDE = Tokenizer(per_token=1.10, per_line=1.15, per_letter=0.25)
_CLAUDE_NEW = Tokenizer(per_token=1.43, per_line=1.15)
_UNKNOWN = Tokenizer(per_token=1.1)

_TABLE: tuple[tuple[str, Tokenizer], ...] = (
    (NEWER_CLAUDE, _CLAUDE_NEW),
    (r"claude", _CLAUDE),
    (r"gpt-?3|gpt-4(?![\d.o])|text-embedding|davinci|babbage", Tokenizer("cl100k_base", 1.0, per_letter=0.25)),
    (r"gpt|codex|computer-use|(?<![a-z\d])o[1-9](?![a-z\d])", Tokenizer(REFERENCE)),
    (r"gemini|gemma-?[3-9]|(?<![a-z])gemma(?!-?\d)", Tokenizer("gemma3", 1.15, per_letter=-0.2)),
    (r"gemma", Tokenizer("gemma2", 1.15, per_letter=-0.2)),
    (r"llama-?4", Tokenizer()),
    (r"code-?llama|llama-?2|vicuna", Tokenizer("llama2", 1.29, per_letter=0.35)),
    (r"llama|hermes", Tokenizer("llama3")),
    (r"qwen|qwq|qvq", Tokenizer("qwen3", 1.03, per_letter=-0.06)),
    (r"deepseek", Tokenizer("deepseek_v3", 1.05, per_letter=-0.08)),
    (r"mixtral|mistral-?7b|open-mistral", Tokenizer("mistral_v2", 1.27, per_letter=0.18)),
    (r"[a-z][sx]tral", Tokenizer("mistral_v3", 1.08)),
    (r"glm", Tokenizer("glm4", 1.01, per_letter=-0.03)),
    (r"kimi|moonshot", Tokenizer("kimi_k2")),
    (r"(?<![a-z])phi-?4", Tokenizer("phi4", 1.0, per_letter=0.25)),
    (r"olmo", Tokenizer("olmo2", 1.0, per_letter=0.25)),
)


def bare_name(model: str | None) -> str:
    """The model's own name: lower case, without the routes and providers before it (`openrouter/openai/…`)."""
    return (model or "").strip().lower().rsplit("/", 1)[-1]


@functools.lru_cache(maxsize=256)
def tokenizer_for(model: str | None) -> Tokenizer:
    """The tokenizer of a model, whatever route its name carries. An unknown one gets a factor on the safe side."""
    name = bare_name(model)
    return next((tokenizer for pattern, tokenizer in _TABLE if re.search(pattern, name)), _UNKNOWN)


def _count(text: str, vocabulary: str) -> float:
    encode = _encoder(vocabulary)
    if len(text) <= _CHUNK:
        return len(encode(_encodable(text)))
    scale = 1.0
    if len(text) > _SAMPLE_ABOVE:
        scale = len(text) / _SAMPLE_ABOVE
        text = sample(text, _SAMPLE_ABOVE)
    return scale * sum(len(encode(_encodable(chunk))) for chunk in _chunks(text))


def _chunks(text: str) -> Iterator[str]:
    """Pieces of bounded length, cut after a line break where one is near: no run of characters grows too long."""
    start = 0
    while start < len(text):
        end = text.rfind("\n", start + _CHUNK // 2, start + _CHUNK) + 1 or start + _CHUNK
        yield text[start:end]
        start = end


def _encodable(text: str) -> str:
    """The text with half surrogates, which are no characters, replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def _encoder(vocabulary: str) -> Callable[[str], list[int]]:
    from splintr import Tokenizer as Vocabulary  # noqa: PLC0415  loads megabytes; only for who counts exactly

    return Vocabulary.from_pretrained(vocabulary).encode_ordinary
