"""Patterns by which a text is split into terms, in any script, and identifiers into their parts."""

from __future__ import annotations

import functools
import re
import unicodedata

MAX_TERM_CHARS = 128
"""A longer word is cut into pieces of this many characters, in texts and queries alike; a longer compound (base64,
minified code) is indexed by its words only. Fits a SHA-512."""


# Characters that join words into an identifier: paths, versions, flags, e-mail addresses, C++ and package names.
JOINT = r"[._/\\:@+~#-]"
_SEGMENT_PATTERN = re.compile(r"[/\\:@#]+")
ATOM_PATTERN = re.compile(rf"{JOINT}+")
_HUMP_PATTERN = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")


# An ASCII word with a capital inside: the only ones that may have humps.
CAPITAL_INSIDE = r"(?<![A-Za-z0-9])[A-Za-z0-9][a-z0-9]*+[A-Z][A-Za-z0-9]*+"
EMOJI_STYLE = "\ufe0f"
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


def list_pairs(token: str) -> list[str]:
    """Return the pairs of neighbours in a run of single characters; an empty list for other tokens."""
    return [] if token[0].isascii() else load_script_patterns().pairs.findall(token)


def normalize(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace(EMOJI_STYLE, "")


def list_compound_parts(token: str) -> tuple[str, ...]:
    """Return the extra terms of a compound: itself, its segments, their dotted pieces, humps."""
    atoms = ATOM_PATTERN.split(token)
    parts: list[str] = []
    if len(atoms) > 1 and len(token) <= MAX_TERM_CHARS:
        parts.append(token)
        for segment in _SEGMENT_PATTERN.split(token):
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
    humps = _HUMP_PATTERN.findall(atom)
    return humps if len(humps) > 1 and 3 * len(humps) <= len(atom) + 3 else []


def separate_humps(token: str) -> str:
    """Return the token with spaces between its humps."""
    return " ".join(" ".join(_split_camel_case(atom)) or atom for atom in ATOM_PATTERN.split(token))


class _ScriptPatterns:
    """The patterns for text of any script. A letter keeps the accents and other marks after it, up to four of them."""

    def __init__(self) -> None:
        single_characters = "".join(f"{chr(low)}-{chr(high)}" for low, high in _SINGLE_RANGES)
        every_mark = "".join(
            char for char in map(chr, range(0x300, 0xFE30)) if unicodedata.category(char)[0] == "M"
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
        compound = f"(?<!{letter})(?<![{marks}]){word}(?:{JOINT}++{word})++|{CAPITAL_INSIDE}"
        self.compound = re.compile(compound)
        """Words that have parts."""
        self.extra = re.compile(f"{compound}|[{single_characters}]{{2,}}+")
        """Tokens with terms in the extra run: words that have parts, and runs of single characters."""
        self.pairs = re.compile(f"(?=([{single_characters}][{single_characters}]))")
        """Two single characters in a row, overlapping."""


@functools.cache
def load_script_patterns() -> _ScriptPatterns:
    return _ScriptPatterns()
