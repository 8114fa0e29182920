"""Count the tokens of a text, by the model's name.

A text is counted by the model's vocabulary if it is known, else by `o200k_base`, scaled. Scales are a fit, by
relative error, over prose in 20 languages, source code, JSON, logs, tables and encoded data. In a text of
over a million characters only evenly spaced pieces are counted, so that the time has a bound.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_PIECE_CHARS = 256


def sample_text(text: str, size: int) -> str:
    """Return evenly spaced pieces of a text that is longer than `size`, with `size` characters in total."""
    count = size // _PIECE_CHARS
    starts = (len(text) * index // count for index in range(count))
    return "".join(text[start : start + _PIECE_CHARS] for start in starts)


def count_foreign_letters(text: str) -> int:
    """Count the letters that are not Latin. The vocabularies of models differ most in the tokens for these letters."""
    if text.isascii():
        return 0
    return len(text.encode("utf-16-le", "surrogatepass")[1::2].translate(None, _OTHER_HIGH_BYTES))


_FOREIGN_HIGH_BYTES = frozenset([*range(0x03, 0x1E), 0x1F, *range(0x2E, 0xD8), *range(0xF9, 0x100)])
_OTHER_HIGH_BYTES = bytes(code for code in range(256) if code not in _FOREIGN_HIGH_BYTES)
"""Upper bytes of UTF-16 units, which show the script of a character."""
REFERENCE_VOCABULARY = "o200k_base"
_CHUNK_CHARS = 32_768
_MAX_COUNTED_CHARS = 1_000_000


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
        """Count the tokens of a text: exactly if the vocabulary is known and the text under a million characters."""
        if self.vocabulary is not None:
            return _count(text, self.vocabulary)
        return self._scale(_count(text, REFERENCE_VOCABULARY), text)

    def _scale(self, tokens: float, text: str) -> float:
        total = self.per_token * tokens
        if self.per_line:
            # Empty lines count half: a run of line breaks is about one token.
            total += self.per_line * (text.count("\n") - text.count("\n\n"))
        if self.per_letter:
            total += self.per_letter * count_foreign_letters(text)
        return max(total, 0.0)


NEWER_CLAUDE = r"claude[-.].*(?:opus-4[-.][7-9]|(?:opus|sonnet|haiku)-[5-9]|mythos|fable)"
"""Names of the Claude models from Opus 4.7 on: another tokenizer, larger pictures."""

# Claude before and after its change of tokenizer: the new one splits Latin words further and nothing else.
_CLAUDE = Tokenizer(per_token=1.10, per_line=1.15, per_letter=0.25)
_CLAUDE_NEW = Tokenizer(per_token=1.48, per_line=1.15)
_UNKNOWN_MODEL = Tokenizer(per_token=1.1)

_TOKENIZERS: tuple[tuple[str, Tokenizer], ...] = (
    (NEWER_CLAUDE, _CLAUDE_NEW),
    (r"claude", _CLAUDE),
    (
        r"gpt-?3|gpt-4(?![\d.o])|text-embedding|davinci|babbage",
        Tokenizer("cl100k_base"),
    ),
    (
        r"gpt|codex|computer-use|(?<![a-z\d])o[1-9](?![a-z\d])",
        Tokenizer(REFERENCE_VOCABULARY),
    ),
    (r"gemini|gemma-?[3-9]|(?<![a-z])gemma(?!-?\d)", Tokenizer("gemma3")),
    (r"gemma", Tokenizer("gemma2")),
    (r"llama-?4", Tokenizer()),
    (r"code-?llama|llama-?2|vicuna", Tokenizer("llama2")),
    (r"llama|hermes", Tokenizer("llama3")),
    (r"qwen|qwq|qvq", Tokenizer("qwen3")),
    (r"deepseek", Tokenizer("deepseek_v3")),
    (r"mixtral|mistral-?7b|open-mistral", Tokenizer("mistral_v2")),
    (r"[a-z][sx]tral", Tokenizer("mistral_v3")),
    (r"glm", Tokenizer("glm4")),
    (r"kimi|moonshot", Tokenizer("kimi_k2")),
    (r"(?<![a-z])phi-?4", Tokenizer("phi4")),
    (r"olmo", Tokenizer("olmo2")),
)


def bare_name(model: str | None) -> str:
    """Return the model's own name: lower case, without the routes and providers before it (`openrouter/openai/…`)."""
    return (model or "").strip().lower().rsplit("/", 1)[-1]


@functools.lru_cache(maxsize=256)
def tokenizer_for(model: str | None) -> Tokenizer:
    """Return the tokenizer of a model, by its name without the route. Unknown models are counted a little high."""
    name = bare_name(model)
    return next(
        (tokenizer for pattern, tokenizer in _TOKENIZERS if re.search(pattern, name)),
        _UNKNOWN_MODEL,
    )


def load_tokenizer(model: str | None) -> None:
    """Load everything that counting for a model needs. Counting a word of several tokens builds the merge tables."""
    tokenizer_for(model).count("Ready? qzxwv")


def _count(text: str, vocabulary: str) -> float:
    encode = _load_encoder(vocabulary)
    if len(text) <= _CHUNK_CHARS:
        return len(encode(_replace_surrogates(text)))
    scale = 1.0
    if len(text) > _MAX_COUNTED_CHARS:
        scale = len(text) / _MAX_COUNTED_CHARS
        text = sample_text(text, _MAX_COUNTED_CHARS)
    return scale * sum(
        len(encode(_replace_surrogates(chunk))) for chunk in _split_into_chunks(text)
    )


def _split_into_chunks(text: str) -> Iterator[str]:
    """Yield pieces of bounded length, cut after a nearby line break if there is one."""
    start = 0
    while start < len(text):
        end = (
            text.rfind("\n", start + _CHUNK_CHARS // 2, start + _CHUNK_CHARS) + 1
            or start + _CHUNK_CHARS
        )
        yield text[start:end]
        start = end


def _replace_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def _load_encoder(vocabulary: str) -> Callable[[str], list[int]]:
    from splintr import Tokenizer as Vocabulary  # noqa: PLC0415  loads megabytes; needed for exact counts only

    return Vocabulary.from_pretrained(vocabulary).encode_ordinary
