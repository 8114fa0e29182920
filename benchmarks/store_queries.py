"""The searches that `benchmarks.store` times."""

from __future__ import annotations

import random

from benchmarks.corpus import FREQUENT_WORDS, Corpus
from benchmarks.store_databases import THREAD
from everthread.store.search_records import SearchQuery

CORPUS = Corpus()


def list_queries(threads: list[str]) -> dict[str, list[SearchQuery]]:
    """Return typical searches, fifteen of each kind."""
    make = random.Random(5)  # noqa: S311 - always the same queries
    rare = CORPUS.words[5_000:]
    names = CORPUS.identifiers
    chinese = CORPUS.chinese
    characters = list(dict.fromkeys("".join(chinese)))
    texts = {
        "a frequent word": make.sample(FREQUENT_WORDS, 15),
        "a rare word": make.sample(rare, 15),
        "two frequent words": [" ".join(make.sample(FREQUENT_WORDS, 2)) for _ in range(15)],
        "three words, one of them rare": [
            " ".join([*make.sample(FREQUENT_WORDS, 2), make.choice(rare)]) for _ in range(15)
        ],
        "a phrase": [f'"{" ".join(CORPUS.text(make).split()[1:3])}"' for _ in range(15)],
        "an identifier as typed": [*names[:5], *make.sample(names, 10)],
        "a prefix of 3 to 5 letters": [
            word[: make.randint(3, 5)] + "*" for word in make.sample(CORPUS.words, 15)
        ],
        "one Chinese character, frequent": characters[:15],
        "one Chinese character, rare": characters[-15:],
        "two Chinese characters": [*chinese[:8], *make.sample(chinese, 7)],
        "four Chinese characters": [chinese[number] + chinese[number + 1] for number in range(15)],
        "what is not there": ["zzzqqq", "不存在的词语组", "no-such/file.py"] * 5,
    }
    found = {kind: [SearchQuery(text) for text in queries] for kind, queries in texts.items()}
    words = make.sample(FREQUENT_WORDS, 15)
    found["a word in one thread"] = [
        SearchQuery(word, thread=make.choice(threads)) for word in words
    ]
    found["a word by role, tool and time"] = [
        SearchQuery(word, role="tool", tool="terminal", until=len(threads) * THREAD / 2)
        for word in words
    ]
    return found


def list_questions() -> list[SearchQuery]:
    """Return questions of a person: common words, and words that name the thing sought."""
    make = random.Random(6)  # noqa: S311 - always the same questions
    rare = CORPUS.words[200:5_000]
    return [
        SearchQuery(
            f"what did we do about the {make.choice(FREQUENT_WORDS)} of {make.choice(rare)} "
            f"when {make.choice(rare)} was {make.choice(FREQUENT_WORDS)}?"
        )
        for _ in range(15)
    ]
