"""Run the positive checks of CompactBench's public suites on a compacted context, without a model.

Every chat begins with a case; the package's own small talk follows until the window's threshold is reached, and it is
compacted. Then follow the next case, the prompt with which the package's driver continues, and small talk: four cycles.
After the first and the fourth cycle every check of every case so far is made on the text of the context. A check that
something is absent from a model's answer (`forbidden_absent`) needs a model and is left out.

Rules are the things that a case's ground truth forbids, decisions those that it calls decided. Two of the starter
suite's templates were looked at while building ("tuned on"); its other two and the whole of the second suite, which
comes with the package's source from PyPI, were not ("told on"). The summariser of LangChain and of Pydantic AI's
harness is a text-rank extract, because there is no model; it drops repeated lines. Headroom makes messages smaller and
drops none: messages that do not fit are then removed from the middle.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.peers import (
    SUMMARISERS,
    Peer,
    PeerAbsentError,
    fetch_source,
    find_absent_peers,
    find_present_peers,
)
from benchmarks.retained.contender_contexts import OURS, Contexts
from benchmarks.retained.contenders import ALL_CONTENDERS, TEXT_RANK
from benchmarks.retained.context_facts import whole_text
from benchmarks.shared import HALVES, find_shared
from benchmarks.table import Row, make_absent_row
from everthread.core.messages import Message

Case = dict[str, Any]
Material = dict[str, Any]
"""The answer of the package's process: cases, small talk, prompts."""
Tally = dict[tuple[int, str, str], Counter[bool]]
"""Numbers of met and missed checks by cycle, kind and contender."""

WINDOWS = (4_000, 16_000)
CYCLES = (1, 4)
CHATS_PER_TEMPLATE = 3
"""Chats of a template."""
TUNED_ON = frozenset({"buried_constraint_starter_v1", "decision_override_starter_v1"})
PEERS = tuple(name for name in ALL_CONTENDERS if name != TEXT_RANK)
EMPTY_CASE: Case = {"turns": []}
RULES = "rules"
DECISIONS = "decisions"
CHECK_LABELS = {
    "immutable_fact_recall": "facts",
    "unresolved_task_continuity": "open tasks",
    "entity_integrity": "who is who",
}
MIN_SHARE = 0.99
TALK_NAMES = {False: "the package's small talk", True: "long answers between"}
"""The package's lines alternate, user and assistant alike. With long answers the user says something new each time and
the assistant five times as much."""


def run() -> list[Row]:
    folder = find_shared("compactbench", "public")
    if folder is None:
        return [make_absent_row("the public suites")]
    try:
        suites = {
            suite.name: suite
            for suite in (fetch_source("compactbench") / "benchmarks" / "public").iterdir()
        }
        suites |= {path.name: path for path in folder.iterdir() if path.is_dir()}
        peer = Peer("compactbench")
        material = {
            name: peer.ask({"suite": str(suite), "slots": CHATS_PER_TEMPLATE * max(CYCLES)})
            for name, suite in suites.items()
        }
        peer.close()
    except PeerAbsentError as error:
        return [Row("CompactBench", f"absent: {error}")]
    rows = [
        Row(SUMMARISERS[name], f"absent: {reason}") for name, reason in find_absent_peers().items()
    ]
    peers = find_present_peers()
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        for name, suite_material in sorted(material.items(), reverse=True):
            for window in WINDOWS:
                for has_long_answers, talk_name in TALK_NAMES.items():
                    work = [
                        (
                            _find_half(chats),
                            pool.submit(
                                _chats,
                                suite_material,
                                chats,
                                window,
                                peers,
                                has_long_answers=has_long_answers,
                            ),
                        )
                        for chats in make_chats(suite_material)
                    ]
                    for half in HALVES:
                        tallies = [
                            future.result() for chats_half, future in work if chats_half == half
                        ]
                        rows += _rows(
                            f"{name}, {half}, {window // 1000}K, {talk_name}",
                            _join_tallies(tallies),
                        )
    return rows


def _find_half(chats: Sequence[Sequence[Case]]) -> str:
    return HALVES[0] if chats[0][0]["template"] in TUNED_ON else HALVES[1]


def make_chats(material: Material) -> Iterator[list[list[Case]]]:
    """Return chats of a template's cases: at most four to a chat, no two of which name the same thing."""
    for template in dict.fromkeys(case["template"] for case in material["cases"]):
        remaining_cases = [case for case in material["cases"] if case["template"] == template]
        chats: list[list[Case]] = []
        while len(chats) < CHATS_PER_TEMPLATE:
            chat: list[Case] = []
            for case in list(remaining_cases):
                chat_text = "\n".join(
                    turn["content"] for chat_case in chat for turn in chat_case["turns"]
                ).lower()
                if len(chat) < max(CYCLES) and not any(
                    value.lower() in chat_text for value in list_values(case)
                ):
                    chat.append(case)
                    remaining_cases.remove(case)
            if not chat:
                break
            chats.append(chat)
        yield chats


def list_values(case: Case) -> Iterator[str]:
    for _, values in list_checks(case):
        yield from values


def list_checks(case: Case) -> Iterator[tuple[str, list[str]]]:
    """Return a case's positive checks: their kind, and the text to find."""
    for check in case["checks"]:
        if check["check"] == "contains_normalized":
            values = [check["value"]]
        elif check["check"] == "set_match":
            values = check["values"]
        else:
            continue
        yield _name_kind(case, check["type"], values), values


def _name_kind(case: Case, kind: str, values: Sequence[str]) -> str:
    for name, truth in ((RULES, case["rules"]), (DECISIONS, case["decisions"])):
        if any(value in truth_text for value in values for truth_text in truth):
            return name
    return CHECK_LABELS.get(kind, kind.replace("_", " "))


def _chats(
    material: Material,
    chats: list[list[Case]],
    window: int,
    peers: Collection[str],
    *,
    has_long_answers: bool,
) -> Tally:
    tally: Tally = {}
    for cases in chats:
        _chat(
            material,
            cases,
            Contexts(window, peers, PEERS),
            tally,
            has_long_answers=has_long_answers,
        )
    return tally


def _chat(
    material: Material,
    cases: list[Case],
    contexts: Contexts,
    tally: Tally,
    *,
    has_long_answers: bool,
) -> None:
    rng = random.Random(cases[0]["turns"][0]["content"])  # noqa: S311 - always the same
    for cycle, case in enumerate([*cases, *[EMPTY_CASE] * (max(CYCLES) - len(cases))], 1):
        if cycle > 1:
            contexts.append(
                [
                    _said("user", rng.choice(material["prompts"])),
                    _said("assistant", _line(material, "assistant", rng)),
                ]
            )
        contexts.append([_said(turn["role"], turn["content"]) for turn in case["turns"]])
        compacted = False
        while not compacted:
            user = _line(material, "user", rng, 2 if has_long_answers else 1)
            small_talk = [
                _said("user", user),
                _said(
                    "assistant",
                    _line(material, "assistant", rng, 8 if has_long_answers else 1),
                ),
            ]
            compacted = contexts.append(small_talk) and contexts.compact()
        if cycle in CYCLES:
            for user_text in cases[:cycle]:
                _check(user_text, contexts, cycle, tally)


def _check(case: Case, contexts: Contexts, cycle: int, tally: Tally) -> None:
    for contender, context in contexts.current.items():
        text = _normalize("\n".join(map(whole_text, context.messages)))
        for kind, values in list_checks(case):
            for value in values:
                tally.setdefault((cycle, kind, contender), Counter())[
                    _normalize(value) in text
                ] += 1


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _line(material: Material, role: str, rng: random.Random, count: int = 1) -> str:
    return " ".join(rng.sample(material["distractors"][role], count))


def _normalize(text: str) -> str:
    """Normalize a text as the package's own checks do: lower case, single spaces."""
    return " ".join(text.lower().split())


def _join_tallies(tallies: Sequence[Tally]) -> Tally:
    total: Tally = {}
    for tally in tallies:
        for key, counts in tally.items():
            total.setdefault(key, Counter()).update(counts)
    return total


def _rows(name: str, tally: Tally) -> Iterator[Row]:
    for kind in sorted(
        {kind for _, kind, _ in tally},
        key=lambda kind: (kind != RULES, kind != DECISIONS, kind),
    ):
        shares: dict[str, list[float]] = {}
        totals = []
        for cycle in CYCLES:
            totals.append(sum(tally[cycle, kind, OURS].values()))
            for contender in dict.fromkeys(contender for _, _, contender in tally):
                contender_shares = tally[cycle, kind, contender]
                shares.setdefault(contender, []).append(
                    contender_shares[True] / sum(contender_shares.values())
                )
        figures = "; ".join(
            f"{contender_name} {'/'.join(f'{100 * share:.0f}' for share in contender_shares)} %"
            for contender_name, contender_shares in shares.items()
        )
        has_goal = kind in (RULES, DECISIONS)
        yield Row(
            f"{name}: {kind} (of {'/'.join(map(str, totals))}) after {'/'.join(map(str, CYCLES))}",
            figures,
            f"≥ {MIN_SHARE:.0%}" if has_goal else "",
            min(shares[OURS]) >= MIN_SHARE if has_goal else None,
        )
