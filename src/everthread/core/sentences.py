"""What a person wrote, sentence by sentence, apart from what they pasted or quoted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

QUOTED = "\ufffc"
"""Stands in `Sentence.masked` for every character of a quotation or of inline code."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, on one line. `masked` has the same length as `text`, with what is quoted in it unreadable."""

    text: str
    masked: str
    heading: str = ""
    """The line ending in a colon that this list item stands under; empty for other sentences."""


def sentences(text: str) -> list[Sentence]:
    """The sentences of a text; code blocks, block quotes, tagged material, logs and shell lines are left out."""
    masked = _mask(text)
    found: list[Sentence] = []
    heading = ""
    for start, end in _lines(masked):
        item = _BULLET.match(masked, start, end)
        line = masked[start:end].strip()
        if not item and line:
            heading = line if line.endswith((":", "：")) else ""
        found += _split(text, masked, item.end() if item else start, end, heading if item else "")
    return found


_FENCE = re.compile(r"[ \t]*(```|~~~)")
_FOREIGN = re.compile(
    r"[ \t]*+(?:"
    r">"  # a block quote
    r"|(?:[$%]|>>>|PS>|➜|❯|\w+@[\w.-]+[:~][^\n]{0,80}?[$#%])[ \t]"  # a command at a prompt
    r"|[+-]?[ \t]*\d+[ \t]*[-+|│→:][ \t]"  # a numbered line of a file or a diff
    r"|\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d:\d\d|\[?(?:TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL)(?:[\]: ]|$)"  # a log
    r'|at .{0,200}[:(]\d+|File "|Traceback |[\[{]|"[^"\n]{0,80}":'  # a stack trace, JSON
    r")"
)
_QUOTE = re.compile(
    r"```[^`\n]{1,300}```|`[^`\n]{1,300}`"
    r'|"[^"\n]{1,300}"'
    r"|“[^”\n]{1,300}”|„[^“”\n]{1,300}[“”]|«[^»\n]{1,300}»|»[^«\n]{1,300}«"
    r"|「[^」\n]{1,300}」|『[^』\n]{1,300}』|《[^》\n]{1,300}》"
    r"|(?<!\w)'[^'\n]{1,300}'(?!\w)|(?<!\w)‘[^’\n]{1,300}’(?!\w)"
)
_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]{0,40})(?:\s[^<>\n]{0,400})?>")
_BULLET = re.compile(
    r"[ \t]*(?:[-*+–—][ \t]+|[•·‣・][ \t]*|\(?\d{1,3}(?:[.)][ \t]+|、)|[a-zA-Z]\)[ \t]+)(?:\[[ xX]\][ \t]*)?(?=\S)"
)
# A full stop ends a sentence where white space follows, and not after an abbreviation or inside a name.
_END = re.compile(
    r"(?<!\b[eE]\.g)(?<!\b[iI]\.e)(?<!\bz\.B)(?<!\bz\. B)(?<!\bd\.h)(?<!\betc)(?<!\bvs)(?<!\bbzw)(?<!\bca)(?<!\bp\.ej)"
    r"(?<!\bNr)(?<!\bapprox)(?<![.!?…])[.!?…]++[)\]\"'*_”“»]*+(?=\s|$)|[。！？；]+[」』”）]*|;(?=\s|$)"
)
_STOPS = (".", "!", "?", ":", ";", "。", "！", "？", "：", "；")


def _mask(text: str) -> str:
    """The text with foreign blocks blank and quotations unreadable; every character keeps its place."""
    masked = _blank_tagged(text) if "<" in text else text
    lines: list[str] = []
    fence = ""
    for line in masked.split("\n"):
        mark = _FENCE.match(line)
        foreign = bool(fence) or mark is not None or _FOREIGN.match(line) is not None
        if mark and (not fence or mark[1] == fence):
            fence = "" if fence or line.count(mark[1]) > 1 else mark[1]
        lines.append(" " * len(line) if foreign else line)
    return _QUOTE.sub(lambda match: QUOTED * len(match[0]), "\n".join(lines))


def _blank_tagged(text: str) -> str:
    """`<file>…</file>` is material, not speech: blank from an opening tag to its closing one."""
    opened: dict[str, list[int]] = {}
    spans: list[tuple[int, int]] = []
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened.setdefault(tag[2], []).append(tag.start())
        elif opened.get(tag[2]):
            spans.append((opened[tag[2]].pop(), tag.end()))
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if end > done:
            pieces += (text[done:start], _NOT_NEWLINE.sub(" ", text[max(start, done) : end]))
            done = end
    return "".join(pieces) + text[done:]


def joined(parts: Sequence[str]) -> str:
    """Sentences in a row: with a space between them, unless their script has none."""
    return _AFTER_FULL_STOP.sub("", " ".join(parts))


_AFTER_FULL_STOP = re.compile(r"(?<=[。！？]) ")
_NOT_NEWLINE = re.compile(r"[^\n]")


def _lines(masked: str) -> Iterator[tuple[int, int]]:
    """Lines, a wrapped one together with what it goes on with."""
    start = place = 0
    for line in masked.split("\n"):
        end = place + len(line)
        wrapped = len(line) > 60 and masked[end + 1 : end + 2].islower() and not line.rstrip().endswith(_STOPS)
        if not wrapped:
            yield start, end
            start = end + 1
        place = end + 1


def _split(text: str, masked: str, start: int, end: int, heading: str) -> Iterator[Sentence]:
    for stop in (*(match.end() for match in _END.finditer(masked, start, end)), end):
        piece = masked[start:stop]
        left = start + len(piece) - len(piece.lstrip())
        right = start + len(piece.rstrip())
        if left < right:
            yield Sentence(text[left:right].replace("\n", " "), masked[left:right].replace("\n", " "), heading)
        start = stop
