"""Canaries: made-up facts of five kinds, planted in a made-up session, each with the question that asks for it.

They are the kinds that summaries lose or mix up: an identifier, two names that look alike, a decision that was taken
back, a rule, a number in one line of a log. Everything comes from one seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from everthread.core.messages import Message
from everthread.lab.probe.lines import Lines, Words, has
from everthread.lab.probe.noise import log_line, tool_round

IDENTIFIER, TWINS, SUPERSEDED, RULE, NUMBER = (
    "identifiers",
    "near-identical names",
    "superseded decisions",
    "rules",
    "numbers in a log",
)
KINDS = (IDENTIFIER, TWINS, SUPERSEDED, RULE, NUMBER)
EACH = 2
"""Canaries of a kind at one depth."""
NOISE = 6
"""Lines of a log before and after the one that counts."""
_AREAS = ("invoice", "refund", "voucher", "parcel", "catalog", "ledger", "tariff", "pricing", "booking", "returns")
_PARTS = ("exporter", "importer", "mailer", "indexer", "scheduler", "archiver", "validator", "notifier")
_DECISIONS = (
    ("uses {} for its queue", "What does the {} use for its queue?", ("Redis", "RabbitMQ", "Kafka", "NATS")),
    ("writes its dates as {}", "How does the {} write its dates?", ("ISO weeks", "epoch seconds", "RFC 3339")),
    ("keeps its files in {}", "Where does the {} keep its files?", ("S3", "MinIO", "Azure Blob", "an NFS share")),
    ("gives up after {}", "When does the {} give up?", ("three attempts", "five attempts", "ten minutes")),
    ("is written in {}", "What is the {} written in?", ("Rust", "Kotlin", "Swift", "Elixir")),
    ("signs its requests with {}", "What does the {} sign its requests with?", ("HMAC", "Ed25519", "mutual TLS")),
)
_REVISED = (
    "Change of plan: the {thing} {new}. {old} did not work out.",
    "Forget {old}: we decided that the {thing} {new}, after the incident.",
    "I was wrong about {old}. The {thing} {new} from now on.",
)
_FORMS = ("golden files", "snapshots", "database migrations", "changelog", "public schema", "translations")


@dataclass(frozen=True, slots=True)
class Canary:
    kind: str
    depth: float
    question: str
    needles: tuple[Words, ...]
    """What must stand on one line, every group on some line."""
    wrong: Words = ()
    """Of a decision that was taken back: the words of the old one."""
    twins: tuple[tuple[str, str], ...] = ()
    """Of names that look alike: whose name it is, and the name."""
    turns: tuple[tuple[Message, ...], ...] = field(default=())
    """What is said: at once, or first one and later the other."""

    def known(self, lines: Lines) -> bool:
        return all(lines.holds(words) and not lines.revokes(words) for words in self.needles)

    def misleads(self, lines: Lines) -> bool:
        """Whether the wrong one is told as the right one.

        What holds no longer as what holds, or the other way round; one twin's name for the other's, or alone.
        """
        if self.wrong:
            return lines.presents(self.wrong, self.needles[0]) or lines.revokes(self.needles[0])
        if not self.twins:
            return False
        (one, first), (other, second) = self.twins
        exchanged = any(
            has(line.text, (whose, theirs)) and not has(line.text, (own,))
            for line in lines.lines
            for whose, own, theirs in ((one, first, second), (other, second, first))
        )
        named = [(whose, name) for whose, name in self.twins if lines.holds((name,))]
        return exchanged or (len(named) == 1 and not lines.holds(named[0]))


def canaries(depths: Sequence[float], *, seed: int = 0, each: int = EACH) -> list[Canary]:
    """So many of every kind at every depth, each about a thing of its own."""
    rng = random.Random(seed)  # noqa: S311 - always the same
    things = [f"{area} {part}" for area in _AREAS for part in _PARTS]
    rng.shuffle(things)
    names = _endless(things)
    return [
        _MADE[kind](rng, next(names), depth, place * each + number)
        for place, depth in enumerate(depths)
        for kind in KINDS
        for number in range(each)
    ]


def _endless(things: Sequence[str]) -> Iterator[str]:
    generation = 1
    while True:
        yield from (thing if generation == 1 else f"{thing} {generation}" for thing in things)
        generation += 1


def _identifier(rng: random.Random, thing: str, depth: float, _number: int) -> Canary:
    name = f"req_{rng.getrandbits(40):010x}"
    said = f"The request that failed in the {thing} was {name}. Keep that in mind for the report."
    return Canary(
        IDENTIFIER, depth, f"Which request failed in the {thing}?", ((name,),), turns=(_said(said, "Noted."),)
    )


def _twins(rng: random.Random, thing: str, depth: float, _number: int) -> Canary:
    stem, number = thing.replace(" ", "-"), rng.randrange(12, 98)
    first, second = f"{stem}-db{number}", f"{stem}-db{number + 1}"
    one, other = f"Staging of the {thing} runs on {first}.", f"Production of the {thing} runs on {second}."
    turns = (*_said(f"{one} Check it first.", "It is reachable."), *_said(f"{other} Leave that alone.", "I will."))
    twins = (("staging", first), ("production", second))
    question = f"On which database do staging and production of the {thing} run?"
    return Canary(TWINS, depth, question, twins, twins=twins, turns=(turns,))


def _superseded(rng: random.Random, thing: str, depth: float, number: int) -> Canary:
    # Two in a row are worded alike and about different things: neither takes back the other.
    done, question, choices = _DECISIONS[number // 2 % len(_DECISIONS)]
    old, new = rng.sample(choices, 2)
    before = _said(f"We decided that the {thing} {done.format(old)}, because it is simplest.", "Good.")
    revised = rng.choice(_REVISED).format(thing=thing, old=old, new=done.format(new))
    after = _said(revised, f"Then {new}.")
    return Canary(SUPERSEDED, depth, question.format(thing), ((thing, new),), wrong=(thing, old), turns=(before, after))


def _rule(_rng: random.Random, thing: str, depth: float, number: int) -> Canary:
    form = _FORMS[number % len(_FORMS)]
    rule = f"Never change the {form} of the {thing} without asking me"
    return Canary(
        RULE, depth, f"What about changing the {form} of the {thing}?", ((rule,),),
        turns=(_said(f"{rule}. How many are there?", f"There are {number + 3}."),),
    )  # fmt: skip


def _number(rng: random.Random, thing: str, depth: float, number: int) -> Canary:
    cents, service = rng.randrange(10_000, 99_999), thing.replace(" ", "-")
    line = f"2026-02-11T09:14:{rng.randrange(10, 59)}Z WARN {service} drift of {cents} cents against the books"
    output = "\n".join([*(log_line(rng) for _ in range(NOISE)), line, *(log_line(rng) for _ in range(NOISE))])
    call = tool_round(f"canary_{service}_{number}_{rng.getrandbits(32):08x}", f"journalctl -u {service} | tail", output)
    said: Message = {"role": "user", "content": f"Have a look at the log of the {thing}."}
    told: Message = {"role": "assistant", "content": "The service is up."}
    question = f"How many cents was the drift of the {service} against the books?"
    return Canary(NUMBER, depth, question, ((service, str(cents)),), turns=((said, *call, told),))


def _said(said: str, answered: str) -> tuple[Message, ...]:
    return {"role": "user", "content": said}, {"role": "assistant", "content": answered}


_MADE = {IDENTIFIER: _identifier, TWINS: _twins, SUPERSEDED: _superseded, RULE: _rule, NUMBER: _number}
