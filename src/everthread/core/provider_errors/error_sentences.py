"""Split the text of a provider's error into plain sentences."""

from __future__ import annotations

import re
import unicodedata

OUTPUT_CAP_PLACEHOLDER = "outcap"
"""Replaces every provider's name of the output cap (`max_tokens`, `maxOutputTokens` …)."""
_UNICODE_ESCAPE_PATTERN = re.compile(r"\\u([0-9a-fA-F]{4})")
_NON_PROSE_PATTERN = re.compile(
    r"</?[a-zA-Z!][^<>]{0,300}>|https?://\S+"
    r"|(?:\n|\\n)\s{1,40}at [^\n\\]{1,300}|File \"[^\"\n]{1,300}\", line \d{1,7}"
    r"|(?<![\w./-])(?=\w{1,60}[./])[\w./-]{1,200}(?::[a-z_]{1,60})?(?::\d{1,7})+"
    r"|(?:request|trace|log)[ _-]?id\W{1,4}[\w-]{6,80}|\b\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?|\\[nrt]",
    re.IGNORECASE,
)
"""Text that is not prose: markup, addresses, stack frames, timestamps and ids."""
_FIELD_NAME_PATTERN = re.compile(
    r"""\\?["']?\b(?:error|message|msg|detail|object|type|param|code|status)\\?["']\s*:|\b(?:message|msg|detail):\s""",
    re.IGNORECASE,
)
"""Field name of a printed error object; the text after it is a new sentence."""
_CAP_NAME_PATTERN = re.compile(
    r"max(?:imum)?_(?:(?:output|completion|new|gen|generated|response)_)?tokens(?:_to_sample)?(?![a-z_])"
    r"|max_gen_len\b|n(?:um)?_predict\b|max(?:output|completion|new)?token(?:s|count)(?![a-z_])"
    r"|\bmax(?:imum)? tokens (?:you )?request(?:ed)?\b"
    r"|\bmax tokens(?= (?:must|should|is|are|value|parameter|cannot|exceed)| ?[:=(]* ?\d)",
    re.IGNORECASE,
)
_WORD_PATTERN = re.compile(r"[A-Za-z0-9_./@#\\-]+")
_NUMBER_WITH_UNIT_PATTERN = re.compile(
    r"\d[\d,_.]*(?:(?:[kKmM]|[kKmMgG]i?[bB]|ms|px|[sSbBhH]|-?[kK]?-?tokens?|bytes)\.*)?"
)
_DATE_PATTERN = re.compile(r"\d+(?:[-/]\d+)+\.*")
_MISSING_SPACE_PATTERN = re.compile(
    r"(?<![\w.-])(?:is|of|to|than|has|was|are)(?=\d{2,9}(?![\w-]))"
    r"|(?<=\d)(?=tokens?\b)"
    r"|(?<![\w.-])(?:is|of|to|than|has|was|are)(?=\d{2,9}tokens?\b)",
    re.IGNORECASE,
)
"""A number without a space between it and its neighbours: `is4233tokens`."""
_CAMEL_CASE_BOUNDARY_PATTERN = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_HYPHEN_PATTERN = re.compile(r"(?<=[a-zA-Z])-(?=[a-zA-Z])")
_QUOTE_TABLE = str.maketrans("_\r\n", " ;;", "`'\"’‘“”*\\")
_SPACES_PATTERN = re.compile(r"\s+")
_BOILERPLATE_PATTERN = re.compile(
    r"input validation error|malformed input request|extra inputs are not permitted|input should(?= be| have)"
    r"|reformat your input"
)
_SENTENCE_END_PATTERN = re.compile(r"(?<![.;!?…])[.;!?…]+(?=\s|$)|[。；！？]|\s\|\s")


def normalize_error_text(text: str) -> str:
    """Return the text as lower-case words, with identifiers split, without quotes, markup and digits inside names."""
    text = _UNICODE_ESCAPE_PATTERN.sub(lambda match: chr(int(match[1], 16)), text)
    text = _FIELD_NAME_PATTERN.sub(
        " ; ", _NON_PROSE_PATTERN.sub(" ", unicodedata.normalize("NFKC", text))
    )
    text = _MISSING_SPACE_PATTERN.sub(
        lambda match: f"{match[0]} ", _CAP_NAME_PATTERN.sub(f" {OUTPUT_CAP_PLACEHOLDER} ", text)
    )
    text = _WORD_PATTERN.sub(_strip_digits, text)
    text = (
        _CAMEL_CASE_BOUNDARY_PATTERN.sub(" ", _HYPHEN_PATTERN.sub(" ", text))
        .lower()
        .translate(_QUOTE_TABLE)
    )
    return _BOILERPLATE_PATTERN.sub(" ", _SPACES_PATTERN.sub(" ", text)).strip()


def split_sentences(text: str) -> list[str]:
    """Split a normalized text into sentences."""
    return [part.strip() for part in _SENTENCE_END_PATTERN.split(text) if part.strip()]


def _strip_digits(match: re.Match[str]) -> str:
    word = match[0]
    if _DATE_PATTERN.fullmatch(word):
        return ""
    if (
        word.isalpha()
        or _NUMBER_WITH_UNIT_PATTERN.fullmatch(word)
        or not any(map(str.isdigit, word))
    ):
        return word
    return re.sub(r"[^A-Za-z]+", " ", word) if re.search(r"[A-Za-z]", word) else word
