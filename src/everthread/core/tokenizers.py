"""Which tokenizer counts a model's text.

Where the vocabulary is known the count is exact (`splintr` carries the vocabularies; it is loaded at the first exact
count). Where it is not, the text is counted with `o200k_base` and scaled: vocabularies of one generation differ mostly
by a factor, in how they treat line breaks, and in other scripts than Latin. Scales of known vocabularies serve the
fast estimate and are fits over prose, code and JSON; Claude's are fits to reported usage.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from everthread.core.estimate import estimate_tokens, foreign_letters, sample

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
