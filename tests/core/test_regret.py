"""What a compaction took out and is fetched again: told from the calls alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.core.messages import Call, Message, Result
from everthread.core.regret import MOST, NONE, Regret, Removed, Tally, calls_in, keys_in

OUTPUT = "output:0123456789abcdef"


def called(name: str, call_id: str = "c", **arguments: Any) -> Call:
    return Call(call_id, name, json.dumps(arguments))


def history(*calls: Call, text: str = "the result") -> list[Message]:
    messages: list[Message] = []
    for number, call in enumerate(calls):
        function = {"name": call.name, "arguments": call.arguments}
        wanted: Any = [{"id": f"h{number}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": None, "tool_calls": wanted})
        messages.append({"role": "tool", "tool_call_id": f"h{number}", "content": text})
    return messages


def without(*calls: Call, still: tuple[Call, ...] = (), text: str = "the result") -> Removed:
    """What is known after a compaction took these calls' results out; `still` are shown elsewhere."""
    removed = Removed()
    gone, shown = history(*calls, text=text), history(*still)
    removed.take_out("one", keys_in(gone, calls_in(gone)), keys_in(shown, calls_in(shown)))
    return removed


def heard(removed: Removed, call: Call, text: str = "", covered: dict[int, str] | None = None) -> Regret | None:
    return removed.heard(call, Result("c", call.name, text), {} if covered is None else covered)


READ = called("read_file", path="src/a.py")
PART = called("read_file", path="src/a.py", offset=10)
TESTS = called("terminal", command="make test")


@pytest.mark.parametrize(
    ("gone", "asked", "kind"),
    [
        (READ, called("view", path="./src/a.py"), "read"),
        (PART, PART, "read"),
        (PART, READ, "read"),
        (READ, PART, "read"),
        (PART, called("read_file", path="src/a.py", offset=99), None),
        (READ, called("read_file", path="src/b.py"), None),
        (TESTS, called("bash", command="make test"), "run"),
        (TESTS, called("bash", command="make lint"), None),
        (called("grep", pattern="x", path="a"), called("search_files", pattern="x", path="a"), "run"),
        (called("grep", pattern="x", path="a"), called("search_files", pattern="x", path="b"), None),
        (called("web_fetch", url="http://a"), called("web_fetch", url="http://a"), "run"),
        (called("todo", items=[]), called("todo", items=[]), None),
        (called("", path="a"), called("", path="a"), None),
        (called("note", text="x"), called("note", text="x"), None),
    ],
)
def test_the_same_again_is_told_from_something_else(gone: Call, asked: Call, kind: str | None) -> None:
    regret = heard(without(gone), asked)
    assert (regret.kind if regret else None) == kind
    assert regret is None or regret.session == "one"


def test_each_thing_counts_once_and_what_is_shown_elsewhere_never() -> None:
    removed = without(READ, PART, TESTS)
    assert heard(removed, READ)
    assert heard(removed, READ) is None
    assert heard(removed, PART) is None  # the whole is in view
    assert heard(removed, TESTS)
    assert heard(removed, TESTS) is None
    assert heard(without(READ, still=(READ,)), READ) is None


def test_what_was_changed_since_is_asked_for_anew_for_a_reason() -> None:
    change = called("patch", path="src/a.py", old_str="x", new_str="y")
    removed = without(READ, PART, TESTS, called("read_file", path="other"))
    assert heard(removed, called("patch", path="new.py", old_str="x", new_str="y")) is None
    assert heard(removed, change) is None
    assert heard(removed, PART) is None
    assert heard(removed, READ) is None
    assert heard(removed, TESTS) is None
    assert heard(removed, called("read_file", path="other"))


def test_lookups_count_where_they_reach_what_was_taken_out() -> None:
    covered = {12: "one", 13: "two"}
    assert heard(Removed(), called("recall", id="message:13"), covered=covered) == Regret(
        "recall", "two", "message:13", "message:13"
    )
    found = heard(Removed(), called("lcm_grep", pattern="x y"), "[message:99] user:\n[message:12] tool: …", covered)
    assert found == Regret("recall", "one", "message:12", "x y")
    assert heard(Removed(), called("recall", query="x"), "[message:12]", covered) is None  # counted
    assert heard(Removed(), called("mcp__everthread__expand", id="message:7"), covered={7: "s"})
    assert heard(Removed(), called("terminal", command="echo message:7"), covered={7: "s"}) is None
    removed = without(TESTS, text=f"<persisted-output> {OUTPUT}")
    found = heard(removed, called("read_file", path=OUTPUT))
    assert found == Regret("recall", "one", OUTPUT, OUTPUT)
    removed = Removed({"message:5": "one"})
    assert heard(removed, called("recall", id="message:5"))
    assert heard(removed, called("recall", query="nothing"), "Nothing was found.") is None


def test_a_later_compaction_takes_over_and_the_oldest_are_forgotten() -> None:
    removed = without(READ)
    keys = list(removed.keys)
    removed.changed = True
    removed.take_out("two", keys, ())
    assert set(removed.keys.values()) == {"two"}
    assert not removed.changed
    removed.take_out("three", (f"run:{index}" for index in range(MOST)), ())
    assert len(removed.keys) == MOST
    assert not set(keys) & removed.keys.keys()


def test_it_goes_on_in_another_process() -> None:
    removed = without(READ, TESTS)
    removed.changed = True
    assert Removed.load(json.loads(json.dumps(removed.dump()))) == removed
    assert Removed.load(None) == Removed.load({"keys": 3}) == Removed()


def test_a_tally_is_told_in_words() -> None:
    assert str(Tally.of(["read", "read", "run"])) == "2 files read, 1 command run again"
    assert str(Tally.of(["recall"] * 1_200)) == "1,200 messages recalled again"
    assert (NONE.total, str(NONE)) == (0, "nothing was fetched again")
    assert Tally(1, 2, 3).total == 6
