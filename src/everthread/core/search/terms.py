"""Split a text into search terms. Both databases index these terms and look them up, so both find the same texts.

A text has two runs of terms:

1. The *reading* run has its words in order and, for scripts written without spaces, its single characters. Words that
   are adjacent in the text are adjacent here, so a phrase is a run of consecutive terms.
2. The *extra* run has identifiers as typed (`src/app/main.py`) and their larger pieces (`main.py`), the humps of
   camelCase words, and pairs of neighbouring characters.

A query needs only terms of the reading run, or pairs if there are any. Every text that contains the query as typed has
all of them, even if the query is a part of something longer (`app/main.py` in `src/app/main.py`). The extra run is for
ranking and for finding an identifier by its parts.

Words are NFKC-normalised and case-folded. Leading and trailing punctuation is not part of a term: `--flag-name` is
`flag-name`, `/etc/hosts` is `etc/hosts`.
"""

from __future__ import annotations

from everthread.core.search.term_patterns import (
    ATOM_PATTERN,
    MAX_TERM_CHARS,
    list_compound_parts,
    list_pairs,
    load_script_patterns,
    normalize,
    separate_humps,
)


def list_terms(text: str) -> list[str]:
    """Return the terms of the text: the reading run, then the extra run. Keep repetitions."""
    patterns = load_script_patterns()
    text = normalize(text)
    tokens: list[str] = patterns.reading.findall(text.casefold())
    for token in patterns.extra.findall(text):
        tokens += list_pairs(token) or list_compound_parts(token)
    return tokens


def list_query_terms(text: str, *, loose: bool = False) -> list[str]:
    """Return the terms that a text must contain to be found, each once, in order.

    `loose`: return the humps of camelCase words instead of the words. This is for a second attempt, because `getUser`
    is a word of its own and not found in `getUserName`. The first attempt uses the words, so that `GitHub` finds
    `github`.
    """
    text = normalize(text)
    if loose:
        text = load_script_patterns().compound.sub(lambda match: separate_humps(match[0]), text)
    tokens: list[str] = []
    for token in load_script_patterns().query.findall(text.casefold()):
        tokens += load_script_patterns().pairs.findall(token) or [token]
    return list(dict.fromkeys(tokens))


def list_phrase_terms(text: str) -> list[str]:
    """Return the reading run: these terms are consecutive in every text that contains the query as typed."""
    return load_script_patterns().reading.findall(normalize(text).casefold())


def list_identifiers(text: str) -> list[str]:
    """Return the identifiers of a query as typed: a text with the whole identifier should rank above its words."""
    tokens = load_script_patterns().compound.findall(normalize(text))
    identifiers = (
        token.casefold()
        for token in tokens
        if len(token) <= MAX_TERM_CHARS and ATOM_PATTERN.search(token)
    )
    return list(dict.fromkeys(identifiers))
