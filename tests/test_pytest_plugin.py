"""The plugin in another project's suite: loaded automatically, quiet on success, clear on failure."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everthread import compress, open_conversation
from everthread.core.caching.claude_cache_marks import apply_cache_control
from everthread.core.types import ModelRequest
from everthread.pytest_plugin import assert_prefix_stable, assert_rules_survive
from everthread.testing import PrefixWatch, ScriptedModel
from tests.lab.recorded_histories import make_history

SUITE = """
import pytest

FIRST = [{"role": "user", "content": "Never push to main. Fix the parser."}]
SECOND = [*FIRST, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]


def test_good(assert_prefix_stable, assert_rules_survive):
    assert_prefix_stable([FIRST, SECOND])
    assert_rules_survive(FIRST, SECOND)


def test_cache_lost(assert_prefix_stable):
    assert_prefix_stable([FIRST, SECOND[1:]])


def test_rule_lost(assert_rules_survive):
    assert_rules_survive(FIRST, SECOND[1:])
"""
RULED: list[Any] = [
    {
        "role": "user",
        "content": "Never touch deploy/terraform, it is not ours. What is in src?",
    }
]


def test_pytest_loads_the_fixtures_and_shows_failures(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE, "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        ".",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert (
        'request 2 does not extend the one before: messages[0].role: "user" became "assistant"'
        in done.stdout
    )
    assert "the beginning of the prompt changed once; the cache is lost there" in done.stdout
    assert "1 of 1 rules are gone" in done.stdout
    assert "'Never push to main. Fix the parser.' (message 0)" in done.stdout
    # The failure is shown at the test's assertion.
    assert "pytest_plugin.py:" not in done.stdout


def test_accepts_requests_in_every_form() -> None:
    messages = make_history(3, words=5)
    chat = [{"model": "m", "messages": messages[:end]} for end in (1, 5, 9)]
    assert_prefix_stable(chat)
    assert_prefix_stable([ModelRequest("m", messages[:end]) for end in (1, 5, 9)])
    marked = [
        {
            "model": "m",
            "messages": apply_cache_control(messages[:end], native_anthropic=True),
        }
        for end in (1, 5, 9)
    ]
    assert_prefix_stable(marked)
    claude = [
        {
            "model": "m",
            "system": "Be kind.",
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hi"}],
                }
            ],
        }
    ]
    assert_prefix_stable(
        [
            *claude,
            {
                **claude[0],
                "messages": [
                    *claude[0]["messages"],
                    {"role": "assistant", "content": "Yes"},
                ],
            },
        ]
    )
    with pytest.raises(AssertionError, match=r"request 2 .* system"):
        assert_prefix_stable([*claude, {**claude[0], "system": "Be kind at 10:31."}])
    with pytest.raises(AssertionError, match="two requests are needed to compare; got 1"):
        assert_prefix_stable(chat[:1])


def test_allows_rewrites_and_ignores_injected_text() -> None:
    messages = make_history(3, words=5)
    reminder: Any = {
        "role": "user",
        "content": "<system-reminder>\nRecalled for this answer: …\n</system-reminder>",
    }
    assert_prefix_stable([[*messages[:5], reminder], messages[:9]])
    cut = [messages[:5], messages[4:9], messages[8:]]
    assert_prefix_stable(cut, rewrites=2)
    with pytest.raises(AssertionError, match=r"changed 2 times, 1 allowed"):
        assert_prefix_stable(cut, rewrites=1)


async def test_checks_a_model_and_a_watch(tmp_path: Path, prefix_watch: PrefixWatch) -> None:
    model = ScriptedModel(lambda request: f"Answer {len(request.messages)}.")
    async with await open_conversation(
        model, store=tmp_path / "s.db", listener=prefix_watch
    ) as conversation:
        for number in range(4):
            await conversation.send(f"Question {number}")
    assert len(model.requests) == 4
    assert_prefix_stable(model)
    assert_prefix_stable(prefix_watch)
    changed: Any = {"role": "user", "content": "Question 0, asked at 10:31"}
    model.requests[2] = replace(
        model.requests[2], messages=[changed, *model.requests[2].messages[1:]]
    )
    with pytest.raises(AssertionError, match="changed 2 times"):
        assert_prefix_stable(model)


def test_reports_rules_that_are_missing() -> None:
    messages = [
        *make_history(2),
        *RULED,
        {"role": "assistant", "content": "A parser."},
        *make_history(30),
    ]
    compaction = compress(messages, window=12_000, summarizer="journal")
    assert compaction.changed
    assert_rules_survive(messages, compaction)
    assert_rules_survive(messages, compaction.summary, rules=["Never touch deploy/terraform"])
    assert_rules_survive(RULED, {"system": RULED[0]["content"], "messages": messages[-1:]})
    with pytest.raises(
        AssertionError,
        match=r"'Never touch deploy/terraform, it is not ours\. What is in src\?'",
    ):
        assert_rules_survive(RULED, messages[-8:])
    with pytest.raises(AssertionError, match="'Say please' \\(given\\)"):
        assert_rules_survive(messages, compaction, rules=["Say please"])
    with pytest.raises(AssertionError, match="these messages have no text of the user"):
        assert_rules_survive([{"role": "assistant", "content": "Hi"}], make_history(2))
