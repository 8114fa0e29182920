"""Generate reproducible messages for measurements: English, code and Chinese, mixed as in real sessions.

Word frequencies follow Zipf's law: the n-th most frequent word occurs 1/n times as often as the first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

T = TypeVar("T")

ENGLISH = """
the to of and a in is that it for you on with this be as are not or have if from can we at file by was an will test
error run use all should but which code function when there has so no new line do one your then now see set return
value user data they what any time only need also how into make get more first other like would output path name
build check fix add call change read write server client request response model token message session thread config
key cache index search table query column branch commit merge release version package import class method object
string number list map type null true false default option argument parameter result failed passed missing found
expected actual timeout retry connection refused database memory disk network log
"""
CHINESE = """
的一是不了在有我他这中大来上个国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可里后
小么心多天能好都然没日于起还发成事
"""
ONSETS = "b c d f g h j k l m n p r s t v w z st tr pl ch sh"
FREQUENT_WORDS = ENGLISH.split()
SYLLABLES = [onset + vowel for onset in ONSETS.split() for vowel in "aeiou"]


@dataclass
class Corpus:
    """A vocabulary, and any number of messages from it."""

    seed: int = 1
    words: list[str] = field(init=False)
    identifiers: list[str] = field(init=False)
    chinese: list[str] = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)  # noqa: S311 - always the same words
        made_words = (
            "".join(rng.choices(SYLLABLES, k=rng.choice((1, 2, 2, 3, 3, 4)))) for _ in range(60_000)
        )
        self.words = list(dict.fromkeys([*FREQUENT_WORDS, *made_words]))
        self.identifiers = list(
            dict.fromkeys(_make_identifier(rng, self.words) for _ in range(40_000))
        )
        characters = [
            *"".join(CHINESE.split()),
            *(chr(code) for code in range(0x4E00, 0x9FA5, 8)),
        ]
        self.chinese = list(
            dict.fromkeys("".join(_pick_by_rank(rng, characters, 2)) for _ in range(30_000))
        )

    def messages(self, count: int, seed: int) -> list[dict[str, Any]]:
        rng = random.Random(f"{self.seed} {seed}")  # noqa: S311 - always the same messages
        return [self._make_message(rng, number) for number in range(count)]

    def _make_message(self, rng: random.Random, number: int) -> dict[str, Any]:
        text = self.text(rng)
        if number % 4 == 1:
            call = {
                "name": "terminal",
                "arguments": f'{{"command": "grep -rn {text[:60]!r} src"}}',
            }
            calls = [{"id": f"call_{number}", "type": "function", "function": call}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        if number % 4 == 2:
            return {
                "role": "tool",
                "tool_call_id": f"call_{number - 1}",
                "name": "terminal",
                "content": text,
            }
        return {"role": "user" if number % 4 == 0 else "assistant", "content": text}

    def text(self, rng: random.Random) -> str:
        word_count = max(3, int(rng.lognormvariate(3.4, 0.9)))
        chance = rng.random()
        if chance < 0.15:
            runs = (
                "".join(_pick_by_rank(rng, self.chinese, rng.randint(2, 8)))
                for _ in range(1 + word_count // 8)
            )
            return "，".join(runs) + "。"
        words = _pick_by_rank(rng, self.words, word_count)
        words[::9] = _pick_by_rank(rng, self.identifiers, len(words[::9]))
        if chance < 0.2:
            words[word_count // 2] = "".join(_pick_by_rank(rng, self.chinese, 3))
        return " ".join(words)


def _make_identifier(rng: random.Random, words: Sequence[str]) -> str:
    parts = rng.choices(words[100:3_000], k=rng.randint(2, 4))
    return rng.choice(
        (
            "_".join(parts),
            "src/" + "/".join(parts) + rng.choice((".py", ".ts", ".md")),
            parts[0] + "".join(part.title() for part in parts[1:]),
            ".".join(parts),
            "-".join(parts),
            f"{rng.getrandbits(160):040x}",
        )
    )


_WEIGHTS: dict[int, list[float]] = {}


def _pick_by_rank(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    if len(items) not in _WEIGHTS:
        _WEIGHTS[len(items)] = list(accumulate(1 / rank for rank in range(1, len(items) + 1)))
    return rng.choices(items, cum_weights=_WEIGHTS[len(items)], k=count)
