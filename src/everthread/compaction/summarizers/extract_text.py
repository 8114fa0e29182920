"""Quoting: somebody's own words, shortened to the sentences that say something."""

from __future__ import annotations

import functools
import re

from everthread.core.sentences import Sentence, joined, sentences
from everthread.core.toolkinds import clip, one_line
from everthread.core.wording import candidates, wording

READ_CHARS = 4_000
"""How much of a text is read to quote its opening."""

_BREAK = re.compile(r"(?<=[.!?…])[)\]\"'*_]{0,4}\s+|(?<=[。！？])")
_MARKUP = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|[-*+•][ \t]+|\d{1,3}[.)][ \t]+|>[ \t]?)|\*\*|__(?=\w)|(?<=\w)__")
_FENCE = ("```", "~~~")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def trim(text: str, room: int) -> str:
    """The text as one line of at most `room` characters, cut between words where that is near."""
    line = one_line(text)
    if len(line) <= room:
        return line
    cut = line[: max(room - 1, 0)]
    space = cut.rfind(" ")
    return (cut[:space] if space > len(cut) // 2 else clip(cut, room)).rstrip(" ,;:") + "…" if cut else ""


def plain(line: str) -> str:
    """A line without bullet and emphasis."""
    return _MARKUP.sub("", line).strip()


def exact(text: str, room: int) -> str:
    """The start of a line as it stands, spaces and all."""
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"


def pieces(text: str) -> list[str]:
    """The sentences of what an assistant wrote: no code blocks, tables or markup."""
    found: list[str] = []
    fence = False
    for line in text[:READ_CHARS].split("\n"):
        bare = line.strip()
        if bare.startswith(_FENCE):
            fence = not fence
        elif bare and not fence and bare[0] != "|":
            found += (piece for part in _BREAK.split(plain(bare)) if (piece := part.strip()))
    return found


def opening(text: str, room: int) -> str:
    """The first sentences that say something: `Done!` and `Perfect!` alone do not."""
    told: list[str] = []
    length = 0
    for piece in pieces(text):
        if not told and _is_short(piece):
            continue
        if told and length + len(piece) >= room:
            break
        told.append(piece)
        length += len(piece) + 1
        if length >= 2 * room // 3:
            break
    return trim(joined(told) or text, room)


def _is_short(piece: str) -> bool:
    return len(piece) < 16 and len(_WIDE.findall(piece)) < 5


def said(text: str, room: int) -> str:
    """What a user said: whole where it fits, else the first sentences and the last, without what was pasted."""
    if len(text) <= room:
        return one_line(text)
    own = [sentence.text for sentence in spoken(text) if is_prose(sentence.text)]
    line = joined(own)
    if not own or len(line) <= room:
        return trim(line or text, room)
    last = own[-1]
    start = room if len(last) > room // 3 or len(own) < 3 else room - len(last) - 1
    return trim(line, start) + (f" {last}" if start < room else "")


@functools.lru_cache(maxsize=2048)
def spoken(text: str) -> tuple[Sentence, ...]:
    """The sentences of what a user said; of a long text those of its beginning."""
    return tuple(sentences(text[:READ_CHARS]))


def is_prose(sentence: str) -> bool:
    """Not a drawing, a bar or a row of figures."""
    return sum(map(str.isalpha, sentence)) >= len(sentence) // 2


@functools.lru_cache(maxsize=2048)
def questions(text: str) -> tuple[str, ...]:
    """The sentences that ask something."""
    return tuple(sentence.text for sentence in spoken(text) if _asks(sentence.masked))


def _asks(masked: str) -> bool:
    plain = masked.strip().replace("’", "'")
    if plain.endswith(("?", "？")):
        return True
    return any(wording(code).asks(plain) for code in candidates(plain))


def closing_question(text: str) -> str:
    """The question an assistant's message ends with, if it does."""
    last = pieces(text[-READ_CHARS:])[-1:]
    return last[0] if last and last[0].endswith(("?", "？")) else ""


def identity(text: str) -> str:
    """Equal for texts that differ only in case, spaces and punctuation."""
    return _SIGNS.sub("", text.casefold())


_SIGNS = re.compile(r"[\W_]+")
