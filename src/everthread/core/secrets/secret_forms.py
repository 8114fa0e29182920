"""Find secrets by their own form: a documented prefix, a literal around them, a private key block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from everthread.core.secrets.randomness import shannon_entropy
from everthread.core.secrets.secret_rules import (
    MIN_TOKEN_CHARS,
    Secret,
    find_match_end,
    is_published,
    load_rules,
)

_TOKEN_BYTE_TABLE = bytes(
    code if chr(code) in "\\_.~$/+=-" or (chr(code).isalnum() and code < 128) else ord(" ")
    for code in range(256)
)


def find_tokens(ascii_text: str) -> Iterator[Secret]:
    """Yield tokens with the prefix and the form of a provider's tokens."""
    # Look at each distinct long run of token characters once; read the text in order only if one holds a token.
    runs = {
        run
        for run in ascii_text.encode().translate(_TOKEN_BYTE_TABLE).split()
        if len(run) >= MIN_TOKEN_CHARS
    }
    if any(_match_tokens(b" ".join(runs).decode())):
        yield from _match_tokens(ascii_text)


def _match_tokens(text: str) -> Iterator[Secret]:
    claimed_end = 0
    for prefix_match in load_rules().prefix_pattern.finditer(f" {text}"):
        position = prefix_match.start(1) - 1
        if position < claimed_end:
            continue
        forms = [
            (start, form)
            for start, form in load_rules().forms_by_prefix[prefix_match[1]]
            if text.startswith(start, position)
        ]
        for _, form in forms:
            match = form.pattern.match(text, position)
            longest_start = forms[-1][0]
            if (
                match
                and form.accepts(match[0][len(longest_start) :])
                and not is_published(match[0])
            ):
                claimed_end = match.end()
                yield Secret(match.start(), match.end(), form.kind)


def find_patterns(ascii_text: str) -> Iterator[Secret]:
    """Yield secrets that are recognised by a literal in or around them; their pattern begins with the literal."""
    for form in load_rules().literal_forms:
        if form.literal not in ascii_text:
            continue
        for match in form.pattern.finditer(ascii_text):
            match_before = form.before_pattern.match(
                ascii_text[max(0, match.start() - 64) : match.start()][::-1]
            )
            if match_before:
                group = form.pattern.groups
                start = match.start(group) - match_before.end()
                end = match.end(group)
                if form.accepts(ascii_text[start:end]):
                    yield Secret(start, end, form.kind)


_KEY_EDGE_PATTERN = re.compile(
    r"-----(?:(begin)[ a-z0-9_-]{0,100}?(private )?key(?: block)?-----|end[ a-z0-9]{0,60}-----"
    r"|(?<=key-----)|(?<=key block-----))"
)
_KEY_LINES_PATTERN = re.compile(r"(?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{16,}+)*+")
_BLANK_PATTERN = re.compile(r"(?:\s|\\[nr])*+")


def find_private_keys(text: str, lower_text: str) -> Iterator[Secret]:
    """Yield the text between the BEGIN and END lines; if END is missing, the lines that look like a key."""
    edges = list(_KEY_EDGE_PATTERN.finditer(lower_text))
    for edge, next_edge in zip_longest(edges, edges[1:]):
        if edge[2]:
            start = find_match_end(_BLANK_PATTERN.match(text, edge.end()), edge.end())
            body = text[start : next_edge.start()] if next_edge and not next_edge[1] else ""
            words = body.split()
            # No END, or prose between two mentions of the lines.
            if sum(map(len, words)) < 12 * max(1, len(words)):
                body = text[start : find_match_end(_KEY_LINES_PATTERN.match(text, start), start)]
            body = body.rstrip().removesuffix("\\n").rstrip()
            if len(body) >= 24 and shannon_entropy(body[:256]) >= 3:
                yield Secret(start, start + len(body), "private-key")
