"""Messages made up for measurements: English, code, Chinese, as often as in real sessions, always the same.

Words come as often as in language: the n-th most frequent 1/n times as often as the first.
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
FREQUENT = ENGLISH.split()
SYLLABLES = [onset + vowel for onset in ONSETS.split() for vowel in "aeiou"]


@dataclass
class Corpus:
    """A vocabulary, and any number of messages from it."""

    seed: int = 1
    words: list[str] = field(init=False)
    identifiers: list[str] = field(init=False)
    chinese: list[str] = field(init=False)

    def __post_init__(self) -> None:
        make = random.Random(self.seed)  # noqa: S311 - always the same words
        made = (
            "".join(make.choices(SYLLABLES, k=make.choice((1, 2, 2, 3, 3, 4))))
            for _ in range(60_000)
        )
        self.words = list(dict.fromkeys([*FREQUENT, *made]))
        self.identifiers = list(
            dict.fromkeys(_identifier(make, self.words) for _ in range(40_000))
        )
        characters = [
            *"".join(CHINESE.split()),
            *(chr(code) for code in range(0x4E00, 0x9FA5, 8)),
        ]
        self.chinese = list(
            dict.fromkeys("".join(_pick(make, characters, 2)) for _ in range(30_000))
        )

    def messages(self, count: int, seed: int) -> list[dict[str, Any]]:
        make = random.Random(f"{self.seed} {seed}")  # noqa: S311 - always the same messages
        return [self._message(make, number) for number in range(count)]

    def _message(self, make: random.Random, number: int) -> dict[str, Any]:
        text = self.text(make)
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

    def text(self, make: random.Random) -> str:
        size = max(3, int(make.lognormvariate(3.4, 0.9)))
        kind = make.random()
        if kind < 0.15:
            runs = (
                "".join(_pick(make, self.chinese, make.randint(2, 8)))
                for _ in range(1 + size // 8)
            )
            return "，".join(runs) + "。"
        words = _pick(make, self.words, size)
        words[::9] = _pick(make, self.identifiers, len(words[::9]))
        if kind < 0.2:
            words[size // 2] = "".join(_pick(make, self.chinese, 3))
        return " ".join(words)


def _identifier(make: random.Random, words: Sequence[str]) -> str:
    parts = make.choices(words[100:3_000], k=make.randint(2, 4))
    return make.choice(
        (
            "_".join(parts),
            "src/" + "/".join(parts) + make.choice((".py", ".ts", ".md")),
            parts[0] + "".join(part.title() for part in parts[1:]),
            ".".join(parts),
            "-".join(parts),
            f"{make.getrandbits(160):040x}",
        )
    )


_WEIGHTS: dict[int, list[float]] = {}


def _pick(make: random.Random, items: Sequence[T], count: int) -> list[T]:
    if len(items) not in _WEIGHTS:
        _WEIGHTS[len(items)] = list(
            accumulate(1 / rank for rank in range(1, len(items) + 1))
        )
    return make.choices(items, cum_weights=_WEIGHTS[len(items)], k=count)
