"""The terms of a text as the databases index them: encoded, separated by spaces, and cached."""

from __future__ import annotations

import functools
import operator
import re
import unicodedata
from collections.abc import Iterable

from everthread.core.search.term_patterns import (
    ATOM_PATTERN,
    CAPITAL_INSIDE,
    EMOJI_STYLE,
    JOINT,
    MAX_TERM_CHARS,
    list_compound_parts,
    list_pairs,
    load_script_patterns,
    normalize,
)

_HAS_PARTS_PATTERN = re.compile(rf"[A-Za-z0-9]++{JOINT}|{CAPITAL_INSIDE}")
"""The beginning of a simple token that may have terms in the extra run."""
_SIMPLE_TOKEN_PATTERN = re.compile(rf"[A-Za-z0-9]++(?:{JOINT}++[A-Za-z0-9]++)*+|[^\x00-\x7f]++")
"""A word or identifier in ASCII, or a run of single characters."""


# Single characters that normalisation joins with their neighbours.
_JOINABLE_CHARACTER_PATTERN = re.compile("[\u1100-\u11ff\u3099\u309a\ua960-\ua97f\ud7b0-\ud7fb]")


def make_index_text(text: str) -> str:
    """Return the encoded terms of the text, separated by spaces, as both databases index them.

    The same as `encode_term` for each of `list_terms`, but several times as fast: no term contains white space, so the
    terms of each chunk between white space are cached, and most chunks are read as ASCII words and single characters.
    """
    chunk_terms = list(map(_TERMS_BY_CHUNK.__getitem__, text.split()))
    run_texts = [words for words, _ in chunk_terms if words]
    run_texts += [parts for _, parts in chunk_terms if parts]
    return " ".join(run_texts)


MAX_CACHED_CHARS = 64
"""Longer chunks are rarely met twice."""
MAX_CACHED_CHUNKS = 1 << 15
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Not part of a term at the beginning or end of a chunk."""


def _encode_chunk(chunk: str) -> tuple[str, str]:
    """Return the encoded terms of a text without white space: the terms in reading order, and the extra ones."""
    word = chunk.strip(_PUNCTUATION)
    if word.isascii() and word.isalnum() and len(word) <= MAX_TERM_CHARS:
        is_plain = word[1:].islower() or word.isdigit() or len(word) == 1
        if is_plain:  # most chunks: a word without parts
            return word.lower(), ""
    simple_text = _replace_by_ascii(chunk)
    if simple_text is None:
        patterns = load_script_patterns()
        chunk = normalize(chunk)
        words = patterns.reading.findall(chunk.casefold())
        parts: list[str] = []
        for token in patterns.extra.findall(chunk):
            parts += list_pairs(token) or list_compound_parts(token)
        return _join_encoded(words), _join_encoded(parts)
    token_terms = [
        _cached_token_terms(token) if len(token) <= MAX_CACHED_CHARS else _list_token_terms(token)
        for token in _SIMPLE_TOKEN_PATTERN.findall(simple_text)
    ]
    return (
        " ".join(words for words, _ in token_terms),
        " ".join(parts for _, parts in token_terms if parts),
    )


class _ChunkTerms(dict[str, tuple[str, str]]):
    """The terms of chunks, computed when first asked for. Cheaper to ask than `functools.lru_cache`."""

    def __missing__(self, chunk: str) -> tuple[str, str]:
        terms_of_chunk = _encode_chunk(chunk)
        if len(chunk) <= MAX_CACHED_CHARS:
            if len(self) >= MAX_CACHED_CHUNKS:
                self.clear()
            self[chunk] = terms_of_chunk
        return terms_of_chunk


_TERMS_BY_CHUNK = _ChunkTerms()


def _replace_by_ascii(text: str) -> str | None:
    """Replace characters by their ASCII forms; return None if the text has letters or marks without one."""
    if text.isascii():
        return text
    for char in {char for char in text if char > "\x7f"}:
        replacement = _find_ascii_form(char)
        if replacement is None:
            return None
        if replacement != char:
            text = text.replace(char, replacement)
    return text


def _list_token_terms(token: str) -> tuple[str, str]:
    """Return the encoded terms of a token: the terms in reading order, and the extra ones for the search."""
    if not token.isascii():
        pairs = map(operator.add, token, token[1:])
        if encode_term(token) == token:
            return " ".join(token), " ".join(pairs)
        return _join_encoded(token), _join_encoded(pairs)
    words = [
        word[start : start + MAX_TERM_CHARS]
        for word in ATOM_PATTERN.split(token.lower())
        for start in range(0, len(word), MAX_TERM_CHARS)
    ]
    parts = list_compound_parts(token) if _HAS_PARTS_PATTERN.match(token) else ()
    return " ".join(words), _join_encoded(parts)


_cached_token_terms = functools.lru_cache(maxsize=1 << 14)(_list_token_terms)


def _join_encoded(words: Iterable[str]) -> str:
    return " ".join(map(encode_term, words))


@functools.lru_cache(maxsize=1 << 14)
def _find_ascii_form(char: str) -> str | None:
    """Return the ASCII form of a character, the character itself if it is a term, or None for letters and marks."""
    if char == EMOJI_STYLE:
        return ""
    normal_form = unicodedata.normalize("NFKC", char)
    if normal_form.isascii():
        return normal_form
    if load_script_patterns().single.fullmatch(char):
        return (
            char
            if normal_form == char and not _JOINABLE_CHARACTER_PATTERN.fullmatch(char)
            else None
        )
    if any(part.isalnum() or unicodedata.combining(part) for part in normal_form):
        return None
    return None if unicodedata.category(char)[0] == "M" else " "


def encode_term(term: str) -> str:
    """Return the term as a token of a-z, 0-9, `_` and letters known since Unicode 3.2, so that no tokenizer splits it.

    FTS5 needs `tokenchars '_'`. Reversible; character by character, so that a prefix stays a prefix: `_` becomes
    `__`, any other character its code in hex between two `_`.
    """
    return (
        term if term.isascii() and term.isalnum() and term.islower() else term.translate(_ESCAPES)
    )


class _Escapes(dict[int, str]):
    """The escape of each character, computed when first asked for."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        # The oldest table Python carries: a tokenizer's own may be nearly as old.
        is_letter = code > 127 and unicodedata.ucd_3_2_0.category(char) in ("Ll", "Lo")
        if is_letter or char in "abcdefghijklmnopqrstuvwxyz0123456789":
            self[code] = char
        else:
            self[code] = "__" if char == "_" else f"_{code:x}_"
        return self[code]


_ESCAPES = _Escapes()
