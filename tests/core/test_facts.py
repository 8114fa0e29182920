"""Facts of a conversation: what is read from which message, and what comes first."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.facts import (
    KIND_WEIGHTS,
    MAX_ARGUMENT,
    MAX_ARGUMENTS,
    PER_KIND,
    SCANNED,
    Fact,
    MessageFacts,
    extract_facts,
    facts_in_text,
    facts_of_message,
    rank,
)
from everthread.core.messages import FunctionCall, Message, ToolCall, calls_of
from everthread.core.summary import SUMMARY_END, SUMMARY_START
from tests.shared_data import shared


def call(name: str, identity: str = "c1", **arguments: Any) -> Message:
    function = FunctionCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False))
    return Message(role="assistant", tool_calls=[ToolCall(id=identity, type="function", function=function)])


def result(text: str, identity: str = "c1") -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def named(facts: Sequence[Fact], kind: str) -> list[str]:
    return [fact.value for fact in facts if fact.kind == kind]


def test_kinds_of_a_text() -> None:
    text = "We decided to use src/db.py from https://x.io (3f2a9c1, timeout=30, user_name, port 5433)."
    assert [(fact.kind, fact.value) for fact in facts_in_text(text)] == [
        ("value", "timeout=30"),
        ("value", "port 5433"),
        ("url", "https://x.io"),
        ("path", "src/db.py"),
        ("hash", "3f2a9c1"),
        ("identifier", "user_name"),
        ("decision", text),
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "We decided to use PostgreSQL.",
        "Let's use Redis instead of Memcached.",
        "I chose asyncpg over psycopg because it is faster.",
        "Wir haben uns für PostgreSQL entschieden.",
        "Wir nehmen Redis statt Memcached.",
        "Hemos decidido usar PostgreSQL.",
        "Vamos a usar Redis en lugar de Memcached.",
        "我们决定使用 PostgreSQL。",
        "那就用 Redis 吧。",
        "PostgreSQLを使うことにしました。",
        "PostgreSQL을 사용하기로 했습니다.",
    ],
)
def test_decisions(sentence: str) -> None:
    assert named(facts_in_text(f"Thanks.\n{sentence}\nNext."), "decision") == [sentence]


@pytest.mark.parametrize(
    "text",
    [
        "Should we use PostgreSQL?",
        "What did we decide?",
        'It says "we decided to use X".',
        "```\nwe decided to use X\n```",
        "Sollen wir Redis nehmen?",
        "¿Vamos a usar Redis?",
        "我们要不要用 Redis？",
        "Redisを使いますか？",
        "Redis를 쓸까요?",
        "I'll run the tests now.",
    ],
)
def test_questions_and_quotations_decide_nothing(text: str) -> None:
    assert named(facts_in_text(text), "decision") == []


def test_calls_give_commands_files_and_definitions() -> None:
    body = (
        "import x\n" + "\n".join(f"def handler_{n}(): ..." for n in range(40)) + "\nexport async function loadAll() {}"
    )
    facts = [
        *facts_of_message(call("bash", command="cd app && pytest tests/unit")).facts,
        *facts_of_message(call("read_file", path="./Makefile.local")).facts,
        *facts_of_message(call("write_file", path="src/new", content=body)).facts,
        *facts_of_message(call("fetch", url="https://x.io/a", tags=["user_id", 3, {"k": "order_id"}])).facts,
    ]
    assert len(body) > MAX_ARGUMENT
    assert named(facts, "command") == ["cd app && pytest tests/unit"]
    assert {"Makefile.local", "src/new"} <= set(named(facts, "path"))
    assert {"handler_0", "handler_39", "loadAll", "user_id", "order_id"} <= set(named(facts, "identifier"))
    assert named(facts, "url") == ["https://x.io/a"]


def test_a_call_without_a_name_or_with_countless_arguments() -> None:
    assert facts_of_message({"role": "assistant", "tool_calls": [{"id": "x"}]}).facts == ()
    facts = facts_of_message(call("tool", items=[f"name_{n}" for n in range(MAX_ARGUMENTS * 2)])).facts
    assert len(named(facts, "identifier")) == MAX_ARGUMENTS


def test_errors_of_an_output_name_the_call_they_came_from() -> None:
    messages = [call("bash", command="pytest -x"), result("collected 3\nE   ValueError: bad port\n1 failed in 2.5s")]
    errors = [fact for fact in extract_facts(messages) if fact.kind == "error"]
    assert [(fact.value, fact.source) for fact in errors] == [
        ("E   ValueError: bad port", "bash: pytest -x"),
        ("1 failed in 2.5s", "bash: pytest -x"),
    ]


def test_a_file_that_is_shown_fails_only_as_a_whole() -> None:
    shown = [call("read_file", path="a.log"), result("line one\nfatal: not here\n")]
    assert named(extract_facts(shown), "error") == []
    failed = [call("read_file", path="a.log"), result("Error: no such file a.log")]
    assert named(extract_facts(failed), "error") == ["Error: no such file a.log"]


def test_output_wrapped_in_json() -> None:
    body = json.dumps({"output": "ok\nfatal: gone\n", "stderr": "warning\nboom happened\n", "exit_code": 1})
    assert named(facts_of_message(result(body)).facts, "error") == ["fatal: gone", "boom happened"]


def test_both_wire_forms_are_read() -> None:
    anthropic: list[Any] = [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "make"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "fatal: gone"}]},
                {"type": "text", "text": "never push to main, see src/a.py"},
            ],
        },
    ]
    openai: list[Any] = [
        call("bash", command="make"),
        result("fatal: gone"),
        {"role": "user", "content": "never push to main, see src/a.py"},
    ]
    flat = {(fact.kind, fact.value, fact.source, fact.by_user) for fact in extract_facts(anthropic)}
    assert flat == {(fact.kind, fact.value, fact.source, fact.by_user) for fact in extract_facts(openai)}
    assert ("error", "fatal: gone", "bash: make", False) in flat
    assert ("rule", "never push to main, see src/a.py", "", True) in flat
    assert ("path", "src/a.py", "", True) in flat


def test_summaries_injections_and_system_prompts_are_no_source() -> None:
    summary = f"{SUMMARY_START}]\nsee src/old.py\n{SUMMARY_END}"
    messages: list[Message] = [
        {"role": "system", "content": "use src/system.py"},
        {"role": "user", "content": f"{summary}\n<system-reminder>src/injected.py</system-reminder>\nsrc/user.py"},
        {"role": "assistant", "content": f"{summary}\nsrc/assistant.py"},
    ]
    assert set(named(extract_facts(messages), "path")) == {"src/user.py", "src/assistant.py"}


def test_user_errors_count_as_the_users() -> None:
    (fact,) = facts_of_message({"role": "user", "content": "it says\nfatal: not a git repository"}).facts
    assert (fact.kind, fact.value, fact.by_user) == ("error", "fatal: not a git repository", True)


def test_values_come_with_their_line() -> None:
    facts = facts_of_message(
        {"role": "assistant", "content": "first\nthe pool was raised to 37 connections\nlast"}
    ).facts
    assert [(fact.value, fact.quote) for fact in facts] == [("37 connections", "the pool was raised to 37 connections")]


def test_a_huge_output_is_read_at_both_ends_and_says_what_was_left() -> None:
    middle = "src/middle.py " * SCANNED
    found = facts_of_message(result(f"src/first.py {middle} src/last.py\nfatal: gone"))
    assert {"src/first.py", "src/last.py"} <= set(named(found.facts, "path"))
    assert named(found.facts, "error") == ["fatal: gone"]
    assert found.unread == len(middle) + len("src/first.py  src/last.py\nfatal: gone") - 2 * SCANNED


def test_rules_that_were_replaced_are_no_facts() -> None:
    messages: list[Message] = [{"role": "user", "content": text} for text in ("answer in German", "answer in English")]
    assert named(extract_facts(messages), "rule") == ["answer in English"]


def score(facts: list[Fact], value: str) -> float:
    return next(fact.weight for fact in facts if fact.value == value)


def test_ranking() -> None:
    messages: list[Message] = [
        {"role": "assistant", "content": "early_name and again_name"},
        {"role": "assistant", "content": "again_name; src/a.py"},
        {"role": "user", "content": "user_name"},
        result(" ".join(f"listed_{n}" for n in range(50))),
        {"role": "assistant", "content": "late_name alone_x"},
    ]
    facts = extract_facts(messages)
    assert score(facts, "again_name") > score(facts, "early_name"), "mentioned again"
    assert score(facts, "late_name") > score(facts, "early_name"), "later"
    assert score(facts, "user_name") > score(facts, "late_name"), "named by the user"
    assert score(facts, "late_name") > score(facts, "listed_0"), "not one of many"
    assert facts == sorted(facts, key=lambda fact: -fact.weight)
    again = next(fact for fact in facts if fact.value == "again_name")
    assert (again.mentions, again.where) == (2, 1)


def test_what_is_known_of_a_fact_is_kept_when_it_comes_again() -> None:
    first = Fact("error", "boom", 0.8, source="bash: make", quote="q")
    again = Fact("error", "boom", 2.0, by_user=True)
    (fact,) = rank([MessageFacts((first, first)), MessageFacts((again,))])
    assert (fact.source, fact.quote, fact.by_user, fact.mentions, fact.where) == ("bash: make", "q", True, 2, 1)
    assert fact.weight == pytest.approx(KIND_WEIGHTS["error"] * 2.0 * 1.5)


def test_one_text_gives_only_so_many_of_a_kind() -> None:
    assert len(facts_in_text(" ".join(f"name_{n}" for n in range(PER_KIND * 3)))) == PER_KIND


def test_messages_can_be_read_one_by_one() -> None:
    messages = [call("bash", command="make"), result("fatal: gone"), Message(role="user", content="never use src/a.py")]
    calls = {made.id: made for message in messages for made in calls_of(message)}
    found = [facts_of_message(message, calls) for message in messages]
    assert rank(found) == extract_facts(messages)
    assert rank([]) == extract_facts([]) == []


@pytest.mark.parametrize(
    "message",
    [
        None,
        3,
        "text",
        [],
        {},
        {"role": 3},
        {"role": "user", "content": 5},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "tool"},
    ],
)
def test_garbage_raises_nothing(message: Any) -> None:
    assert isinstance(extract_facts([message]), list)
    assert facts_in_text(message) == []


names = st.sampled_from(
    ["src/a.py", "user_name", "https://x.io/b", "3f2a9c1", "timeout=30", "fatal: x\n", "never push", "\n", "10 files"]
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.lists(names, max_size=6).map(" ".join)), max_size=8
    )
)
def test_ranking_is_deterministic_without_doubles_and_mutates_nothing(said: list[tuple[str, str]]) -> None:
    messages: list[Any] = [{"role": role, "content": text, "tool_call_id": "1"} for role, text in said]
    before = copy.deepcopy(messages)
    facts = extract_facts(messages)
    assert facts == extract_facts(messages)
    assert messages == before
    assert len({(fact.kind, fact.value) for fact in facts}) == len(facts)
    everything = " ".join(text.replace("\n", " ") for _, text in said)
    assert all(fact.value in everything and fact.where < len(messages) for fact in facts)


def test_files_and_commands_of_a_real_session_are_found() -> None:
    data = json.loads(shared("transcripts", "coding-long-claude.json").read_text("utf-8"))
    messages = data["messages"]
    facts = extract_facts(messages)
    paths, commands = set(named(facts, "path")), set(named(facts, "command"))
    arguments = [made.parsed for message in messages for made in calls_of(message)]
    given_paths = {value for item in arguments if isinstance(value := item.get("path"), str)}
    given_commands = {
        " ".join(value.split())[:MAX_ARGUMENT] for item in arguments if isinstance(value := item.get("command"), str)
    }
    assert len(given_paths - paths) <= 0.02 * len(given_paths)
    assert len(given_commands - commands) <= 0.1 * len(given_commands)


def test_the_id_a_call_is_about_is_held_on_to() -> None:
    facts = facts_of_message(call("get_order", order="W8321", user="ana_li_77", note="ship it", count=3)).facts
    assert [fact.value for fact in facts if fact.held] == ["W8321", "ana_li_77"]


def test_names_that_look_alike_are_held_on_to_where_somebody_tells_them_apart() -> None:
    text = "`grey_level` is the old one, `gray_level` the new one, other_name is neither."
    for role in ("user", "assistant"):
        facts = extract_facts([{"role": role, "content": text}, {"role": role, "content": "grey_level again"}])
        assert {fact.value for fact in facts if fact.held} == {"grey_level", "gray_level"}
    assert not any(fact.held for fact in facts_of_message(result("grey_level gray_level")).facts)


def test_figures_stand_out_of_an_output() -> None:
    noise = "\n".join(f"12:00:{n:02d} worker idle n={n}" for n in range(9))
    line = "sync done: 4411 rows, 12 conflicts"
    logged = [call("bash", command="cat sync.log"), result(f"{noise}\n{line}\nTests: 3 failed\nKeyError: 7 of 8")]
    assert named(extract_facts(logged), "figure") == [line]
    shown = [call("read_file", path="sync.log"), result(f"{noise}\n{line}")]
    assert named(extract_facts(shown), "figure") == []


def test_what_a_user_tells_weighs_more_than_what_a_request_names() -> None:
    facts = extract_facts([{"role": "user", "content": "The test host is db_seven. Add parse_all to it."}])
    weights = {fact.value: fact.weight for fact in facts}
    assert weights["db_seven"] == 2 * weights["parse_all"]


def test_a_failed_command_tells_why_in_its_last_words() -> None:
    failed = [call("bash", command="apply"), result("ok\nThe Route is invalid: host: Required value\n[exit code 1]")]
    assert "The Route is invalid: host: Required value" in named(extract_facts(failed), "error")
