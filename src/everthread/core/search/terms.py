"""Text -> search terms. Both stores index these terms and look them up, so they find the same.

A text's terms come in two runs:

1. the *reading* run: its words and, for scripts written without spaces, its single characters, in order. Words
   adjacent in the text are adjacent here, so a phrase is a run of consecutive terms;
2. the *extra* run: identifiers as typed (`src/app/main.py`) and their larger pieces (`main.py`), the humps of
   camelCase words, and pairs of neighbouring characters.

A query needs only terms of the reading run (pairs if there are any): every text that contains the query as typed
holds them all, also when it is inside something longer (`app/main.py` in `src/app/main.py`). The extra run is
for ranking and for finding an identifier by its parts.

Words are NFKC-normalised and case-folded. Leading and trailing punctuation is not part of a term: `--flag-name` is
`flag-name`, `/etc/hosts` is `etc/hosts`.

For queries there are also the other forms of an English word (`forms`) and the filler words of a language
(`stop_words`).
"""

from __future__ import annotations

import functools
import json
import operator
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

MAX_TERM_CHARS = 128
"""A longer word is cut into pieces of this many characters, in texts and queries alike; a longer compound (base64,
minified code) is indexed by its words only. Fits a SHA-512."""

# Characters that join words into an identifier: paths, versions, flags, e-mail addresses, C++ and package names.
_JOINT = r"[._/\\:@+~#-]"
_SEGMENT = re.compile(r"[/\\:@#]+")
_ATOM = re.compile(rf"{_JOINT}+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
# An ASCII word with a capital inside: the only ones that may have humps.
_CAPITAL_INSIDE = r"(?<![A-Za-z0-9])[A-Za-z0-9][a-z0-9]*+[A-Z][A-Za-z0-9]*+"
_HAS_PARTS = re.compile(rf"[A-Za-z0-9]++{_JOINT}|{_CAPITAL_INSIDE}")
"""The beginning of a simple token that may have terms in the extra run."""
_SIMPLE_TOKEN = re.compile(
    rf"[A-Za-z0-9]++(?:{_JOINT}++[A-Za-z0-9]++)*+|[^\x00-\x7f]++"
)
"""A word or identifier in ASCII, or a run of single characters."""
_EMOJI_STYLE = "\ufe0f"
"""Asks for the coloured form of the character before it; not part of any term."""

# Scripts without spaces between words, in which one character can be a query, and pictographs.
_SINGLE_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1100, 0x11FF),  # Hangul letters
    (0x1780, 0x17FF),  # Khmer
    (0x2190, 0x21FF),  # arrows
    (0x2600, 0x27BF),  # symbols, dingbats
    (0x2E80, 0x2FDF),  # Han radicals
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3041, 0x309F),  # Hiragana
    (0x30A1, 0x30FA),  # Katakana
    (0x30FC, 0x30FF),
    (0x3105, 0x312F),
    (0x3131, 0x318E),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # Han
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FB),  # Hangul syllables
    (0xF900, 0xFAFF),
    (0x1B000, 0x1B16F),
    (0x1F000, 0x1FAFF),  # emoji
    (0x20000, 0x3FFFF),  # Han, rare
)

# Single characters that normalisation joins with their neighbours.
_JOINABLE_CHARACTER = re.compile(
    "[\u1100-\u11ff\u3099\u309a\ua960-\ua97f\ud7b0-\ud7fb]"
)


def terms(text: str) -> list[str]:
    """Return the terms of the text: all words in order, then the added terms; repetitions are kept.

    The words are the reading run, the added terms the extra run (see the module).
    """
    patterns = _load_script_patterns()
    text = _normalize(text)
    tokens: list[str] = patterns.reading.findall(text.casefold())
    for token in patterns.extra.findall(text):
        tokens += _list_pairs(token) or _list_compound_parts(token)
    return tokens


def index_terms(text: str) -> str:
    """Return the encoded terms of the text, separated by spaces, as both databases index them.

    The same as `encode_term` for each of `terms`, but several times as fast: no term contains white space, so the terms
    of each chunk between white space are cached, and most chunks are read as ASCII words and single characters.
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


def _chunk_terms(chunk: str) -> tuple[str, str]:
    """Return the encoded terms of a text without white space: those of its reading run, and those of its extra run."""
    word = chunk.strip(_PUNCTUATION)
    if word.isascii() and word.isalnum() and len(word) <= MAX_TERM_CHARS:
        is_plain = word[1:].islower() or word.isdigit() or len(word) == 1
        if is_plain:  # most chunks: a word without parts
            return word.lower(), ""
    simple_text = _simplify(chunk)
    if simple_text is None:
        patterns = _load_script_patterns()
        chunk = _normalize(chunk)
        words = patterns.reading.findall(chunk.casefold())
        parts: list[str] = []
        for token in patterns.extra.findall(chunk):
            parts += _list_pairs(token) or _list_compound_parts(token)
        return _join_encoded(words), _join_encoded(parts)
    token_terms = [
        _cached_token_terms(token)
        if len(token) <= MAX_CACHED_CHARS
        else _list_token_terms(token)
        for token in _SIMPLE_TOKEN.findall(simple_text)
    ]
    return (
        " ".join(words for words, _ in token_terms),
        " ".join(parts for _, parts in token_terms if parts),
    )


class _ChunkTerms(dict[str, tuple[str, str]]):
    """The terms of chunks, computed when first asked for. Cheaper to ask than `functools.lru_cache`."""

    def __missing__(self, chunk: str) -> tuple[str, str]:
        terms_of_chunk = _chunk_terms(chunk)
        if len(chunk) <= MAX_CACHED_CHARS:
            if len(self) >= MAX_CACHED_CHUNKS:
                self.clear()
            self[chunk] = terms_of_chunk
        return terms_of_chunk


_TERMS_BY_CHUNK = _ChunkTerms()


def _simplify(text: str) -> str | None:
    """Return the text in ASCII and single characters; None if it has other letters or marks."""
    if text.isascii():
        return text
    for char in {char for char in text if char > "\x7f"}:
        replacement = _simplify_char(char)
        if replacement is None:
            return None
        if replacement != char:
            text = text.replace(char, replacement)
    return text


def _list_token_terms(token: str) -> tuple[str, str]:
    """Return the encoded terms of a token: those in reading order, and those added for the search."""
    if not token.isascii():
        pairs = map(operator.add, token, token[1:])
        if encode_term(token) == token:
            return " ".join(token), " ".join(pairs)
        return _join_encoded(token), _join_encoded(pairs)
    words = [
        word[start : start + MAX_TERM_CHARS]
        for word in _ATOM.split(token.lower())
        for start in range(0, len(word), MAX_TERM_CHARS)
    ]
    parts = _list_compound_parts(token) if _HAS_PARTS.match(token) else ()
    return " ".join(words), _join_encoded(parts)


_cached_token_terms = functools.lru_cache(maxsize=1 << 14)(_list_token_terms)


def _join_encoded(words: Iterable[str]) -> str:
    return " ".join(map(encode_term, words))


def _list_pairs(token: str) -> list[str]:
    """Return the pairs of neighbours in a run of single characters; an empty list for other tokens."""
    return [] if token[0].isascii() else _load_script_patterns().pairs.findall(token)


@functools.lru_cache(maxsize=1 << 14)
def _simplify_char(char: str) -> str | None:
    """Return ASCII for a character beyond ASCII, or a single character itself; None for letters and marks."""
    if char == _EMOJI_STYLE:
        return ""
    normal_form = unicodedata.normalize("NFKC", char)
    if normal_form.isascii():
        return normal_form
    if _load_script_patterns().single.fullmatch(char):
        return (
            char
            if normal_form == char and not _JOINABLE_CHARACTER.fullmatch(char)
            else None
        )
    if any(part.isalnum() or unicodedata.combining(part) for part in normal_form):
        return None
    return None if unicodedata.category(char)[0] == "M" else " "


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace(_EMOJI_STYLE, "")


def query_terms(text: str, *, loose: bool = False) -> list[str]:
    """Return the terms that a text must hold to be found, each once, in order.

    `loose` asks for the humps of camelCase words instead of the words: for a second attempt, as `getUser` is a word
    of its own and not found in `getUserName`. (Humps are not asked for first: `GitHub` should find `github`.)
    """
    text = _normalize(text)
    if loose:
        text = _load_script_patterns().compound.sub(
            lambda match: _separate_humps(match[0]), text
        )
    tokens: list[str] = []
    for token in _load_script_patterns().query.findall(text.casefold()):
        tokens += _load_script_patterns().pairs.findall(token) or [token]
    return list(dict.fromkeys(tokens))


def phrase_terms(text: str) -> list[str]:
    """Return the reading run: these terms are consecutive in every text that contains the query as typed."""
    return _load_script_patterns().reading.findall(_normalize(text).casefold())


def identifier_terms(text: str) -> list[str]:
    """Return the identifiers of a query as typed: a text with the whole identifier should rank above its words."""
    tokens = _load_script_patterns().compound.findall(_normalize(text))
    identifiers = (
        token.casefold()
        for token in tokens
        if len(token) <= MAX_TERM_CHARS and _ATOM.search(token)
    )
    return list(dict.fromkeys(identifiers))


def encode_term(term: str) -> str:
    """Return the term as a token of a-z, 0-9, `_` and letters known since Unicode 3.2, so that no tokenizer splits it.

    FTS5 needs `tokenchars '_'`. Reversible; character by character, so that a prefix stays a prefix: `_` becomes
    `__`, any other character its code in hex between two `_`.
    """
    return (
        term
        if term.isascii() and term.isalnum() and term.islower()
        else term.translate(_ESCAPES)
    )


def _list_compound_parts(token: str) -> tuple[str, ...]:
    """Return the extra terms of a compound: itself, its segments, their dotted pieces, humps."""
    atoms = _ATOM.split(token)
    parts: list[str] = []
    if len(atoms) > 1 and len(token) <= MAX_TERM_CHARS:
        parts.append(token)
        for segment in _SEGMENT.split(token):
            parts += (segment, *segment.split("."))
    parts += (hump for atom in atoms for hump in _split_camel_case(atom))
    words = {atom.casefold() for atom in atoms}
    return tuple(
        part
        for part in dict.fromkeys(part.casefold() for part in parts)
        if part and part not in words
    )


def _split_camel_case(atom: str) -> list[str]:
    """Split `HTTPServer` into HTTP, Server. Return nothing if the case changes as in base64."""
    if len(atom) > 64 or not atom.isascii() or atom.islower() or atom.isupper():
        return []
    humps = _HUMP.findall(atom)
    return humps if len(humps) > 1 and 3 * len(humps) <= len(atom) + 3 else []


def _separate_humps(token: str) -> str:
    """Return the token with spaces between its humps."""
    return " ".join(
        " ".join(_split_camel_case(atom)) or atom for atom in _ATOM.split(token)
    )


class _ScriptPatterns:
    """The patterns for text of any script. A letter keeps the accents and other marks after it, up to four of them."""

    def __init__(self) -> None:
        single_characters = "".join(
            f"{chr(low)}-{chr(high)}" for low, high in _SINGLE_RANGES
        )
        every_mark = "".join(
            char
            for char in map(chr, range(0x300, 0xFE30))
            if unicodedata.category(char)[0] == "M"
        )
        marks = re.sub(f"[{single_characters}]", "", every_mark)
        letter = rf"[^\W_{single_characters}]"
        term = f"(?:{letter}[{marks}]{{0,4}}+){{1,{MAX_TERM_CHARS}}}+"
        word = f"{letter}++(?:[{marks}]++{letter}*+)*+"
        self.single = re.compile(f"[{single_characters}]")
        """One character that is a term of its own."""
        self.reading = re.compile(f"{term}|[{single_characters}]")
        """One term of the reading run."""
        self.query = re.compile(f"{term}|[{single_characters}]+")
        """One term of the reading run, but neighbouring single characters are matched together."""
        compound = (
            f"(?<!{letter})(?<![{marks}]){word}(?:{_JOINT}++{word})++|{_CAPITAL_INSIDE}"
        )
        self.compound = re.compile(compound)
        """Words that have parts."""
        self.extra = re.compile(f"{compound}|[{single_characters}]{{2,}}+")
        """Tokens with terms in the extra run: words that have parts, and runs of single characters."""
        self.pairs = re.compile(f"(?=([{single_characters}][{single_characters}]))")
        """Two single characters in a row, overlapping."""


@functools.cache
def _load_script_patterns() -> _ScriptPatterns:
    return _ScriptPatterns()


class _Escapes(dict[int, str]):
    """The escape of each character, computed when first asked for."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        # The oldest table Python carries: a tokenizer's own may be nearly as old.
        is_letter = (
            unicodedata.ucd_3_2_0.category(char) in ("Ll", "Lo")
            if code > 127
            else False
        )
        is_plain = is_letter or char in "abcdefghijklmnopqrstuvwxyz0123456789"
        self[code] = char if is_plain else "__" if char == "_" else f"_{code:x}_"
        return self[code]


_ESCAPES = _Escapes()


MIN_STEM_LETTERS = 3
"""Minimum letters of a word without its ending."""
_VOWELS = frozenset("aeiouy")
_NOUN_ENDINGS = ("ations", "ation", "ions", "ion", "ments", "ment", "ness", "ful", "al")
_ENDINGS_BEFORE_ES = ("s", "x", "z", "ch", "sh", "o")
_SPELLINGS = (
    ("our", "or"),
    ("ise", "ize"),
    ("yse", "yze"),
    ("tre", "ter"),
    ("ogue", "og"),
)
"""Endings that are written in one way in Britain and in another in America."""
_INFLECTED_ENDINGS = (
    "ing",
    "ings",
    "ed",
    "ly",
    "ion",
    "ions",
    "ment",
    "ments",
    "ness",
    "ers",
)
"""Endings of words that are inflected already."""


@functools.lru_cache(maxsize=1 << 14)
def forms(word: str) -> tuple[str, ...]:
    """Return the word, followed by its inflected forms.

    A word that is very short or not only of English letters gets no regular forms, only those in the table of
    irregular words.
    """
    if len(word) < MIN_STEM_LETTERS or not (word.isascii() and word.isalpha()):
        return tuple(dict.fromkeys((word, *_load_irregular_forms().get(word, ()))))
    variants = {word: None}
    for base in _list_base_forms(word):
        variants |= dict.fromkeys(_inflect(base))
        variants |= dict.fromkeys(_load_irregular_forms().get(base, ()))
    return tuple(variants)


def stop_words(words: Sequence[str]) -> frozenset[str]:
    """Return the stop words of the language to which most of these words belong; English if none is recognised."""
    words_by_language = _stop_lists()
    best_language = max(
        words_by_language,
        key=lambda language: (
            sum(word in words_by_language[language] for word in words),
            language == "en",
        ),
    )
    return words_by_language[best_language]


def _list_base_forms(word: str) -> dict[str, None]:
    """Return the base forms of the word, itself included."""
    bases = {word: None}
    bases |= dict.fromkeys(base for base in _load_irregular_forms().get(word, ())[:1])
    bases |= dict.fromkeys(
        base for base in _strip_endings(word) if len(base) >= MIN_STEM_LETTERS
    )
    return bases | dict.fromkeys(
        other for base in bases for other in _list_other_spellings(base)
    )


def _list_other_spellings(base: str) -> Iterator[str]:
    for pair in _SPELLINGS:
        for ending, other_ending in (pair, pair[::-1]):
            stem = base.removesuffix(ending)
            if (
                stem != base
                and len(stem) >= MIN_STEM_LETTERS
                and not (other_ending.endswith(ending) and base.endswith(other_ending))
            ):
                yield stem + other_ending


def _strip_endings(word: str) -> Iterator[str]:
    if word.endswith("ies"):
        yield word[:-3] + "y"
    elif word.endswith("s") and not word.endswith("ss"):
        yield word[:-1]
        if word.endswith("es"):
            yield word[:-2]
    for ending in ("ings", "ing", "ed", "ers", "er"):
        if word.endswith(ending) and len(word) - len(ending) >= MIN_STEM_LETTERS:
            stem = word[: -len(ending)]
            yield from (stem, stem + "e")
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if stem.endswith("i"):
                yield stem[:-1] + "y"
            break
    if word.endswith("ly") and len(word) > 5:
        yield word[:-2]
    for ending in _NOUN_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) > MIN_STEM_LETTERS:
            stem = word[: -len(ending)]
            yield from (
                stem,
                stem + "e",
                *((stem + "ate",) if ending.startswith("ation") else ()),
            )
            break


def _inflect(base: str) -> Iterator[str]:
    """Yield the possible forms of a word. Each form costs an index lookup, so impossible forms are left out."""
    yield base
    yield base + ("es" if base.endswith(_ENDINGS_BEFORE_ES) else "s")
    if base.endswith(_INFLECTED_ENDINGS) or (base[-1] == "s" and base[-2] != "s"):
        return
    stem = (
        base[:-1]
        if base.endswith("e")
        else base + base[-1]
        if _doubles_last_consonant(base)
        else base
    )
    yield from (stem + ending for ending in ("ing", "ed"))
    if base.endswith("er"):
        return
    yield stem + "er"
    if base.endswith("y") and base[-2] not in _VOWELS:
        yield from (base[:-1] + ending for ending in ("ies", "ied", "ier", "ily"))
    elif len(base) > MIN_STEM_LETTERS:
        yield from (base + "ly", base + "ment")
        if len(stem) <= len(base):
            yield stem + "ion"


def _doubles_last_consonant(base: str) -> bool:
    """Return whether the last consonant is written twice before an ending: plan, planned; not so cook, visit."""
    vowels = [char in _VOWELS for char in base]
    return (
        vowels[-3:] == [False, True, False]
        and sum(vowels) == 1
        and base[-1] not in "wx"
    )


@functools.cache
def _load_irregular_forms() -> dict[str, tuple[str, ...]]:
    """Map every irregular form to all forms of its word, the plain one first."""
    rows = (tuple(row.split()) for row in load_language_data()["irregular"])
    return {form: row for row in rows for form in row}


@functools.cache
def _stop_lists() -> dict[str, frozenset[str]]:
    return {
        language: frozenset(words.split())
        for language, words in load_language_data()["stop"].items()
    }


@functools.cache
def load_language_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        resources.files("everthread.core")
        .joinpath("data/language.json")
        .read_text("utf-8")
    )
    return data
