"""Each rule a provider enforces is found at its message, and repair mends it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.message_repair import (
    OPENING_TEXT,
    STUB_RESULT,
    repair,
    repair_messages,
    with_call_ids,
)
from everthread.core.turns import is_user_message
from everthread.core.validation import validate_messages
from everthread.errors import InputError
from tests.shared_data import shared_path

Dirt = dict[str, Any]


def call(call_id: Any = "a", name: str = "f") -> Dirt:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": "{}"},
    }


def calls_message(*calls: Any) -> Dirt:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str = "a", content: Any = "ok") -> Dirt:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def use(call_id: str = "a") -> Dirt:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": call_id, "name": "f", "input": {}}],
    }


def block(call_id: str = "a") -> Dirt:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}


def parts(message: Any) -> list[Dirt]:
    content = message.get("content") if isinstance(message, dict) else None
    return (
        [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []
    )


HI: Dirt = {"role": "user", "content": "hi"}
SYSTEM: Dirt = {"role": "system", "content": "s"}

CASES: list[tuple[str, str, list[Any], list[tuple[int, str]]]] = [
    (
        "fine",
        "openai",
        [
            SYSTEM,
            HI,
            calls_message(call()),
            result(),
            {"role": "assistant", "content": "x"},
        ],
        [],
    ),
    ("no message", "openai", [HI, "text"], [(1, "not-an-object")]),
    ("role", "openai", [HI, {"role": "robot", "content": "x"}], [(1, "unknown-role")]),
    ("no content", "openai", [{"role": "user"}], [(0, "content-missing")]),
    ("number", "openai", [{"role": "user", "content": 4}], [(0, "content-type")]),
    (
        "part",
        "openai",
        [{"role": "user", "content": ["x", {"text": "y"}]}],
        [(0, "part-type"), (0, "part-type")],
    ),
    (
        "null assistant",
        "openai",
        [HI, {"role": "assistant", "content": None}],
        [(1, "content-missing")],
    ),
    (
        "refusal",
        "openai",
        [HI, {"role": "assistant", "content": None, "refusal": "no"}],
        [],
    ),
    (
        "empty calls",
        "openai",
        [HI, {"role": "assistant", "content": "x", "tool_calls": []}],
        [(1, "empty-tool-calls")],
    ),
    (
        "no id",
        "openai",
        [HI, calls_message(call(""))],
        [(1, "call-without-id"), (1, "missing-result")],
    ),
    (
        "twice",
        "openai",
        [HI, calls_message(call(), call()), result()],
        [(1, "duplicate-call")],
    ),
    (
        "no name",
        "openai",
        [HI, calls_message(call(name="")), result()],
        [(1, "call-without-name")],
    ),
    ("orphan", "openai", [HI, result("z")], [(1, "orphan-result")]),
    (
        "answered twice",
        "openai",
        [HI, calls_message(call()), result(), result()],
        [(3, "duplicate-result")],
    ),
    (
        "missing",
        "openai",
        [HI, calls_message(call("a"), call("b")), result("a"), HI],
        [(1, "missing-result")],
    ),
    (
        "missing at the end",
        "openai",
        [HI, calls_message(call())],
        [(1, "missing-result")],
    ),
    (
        "missing before calls",
        "openai",
        [HI, calls_message(call("a")), calls_message(call("b")), result("b")],
        [(1, "missing-result")],
    ),
    (
        "late",
        "openai",
        [HI, calls_message(call()), HI, result()],
        [(1, "missing-result"), (3, "misplaced-result")],
    ),
    (
        "foreign",
        "openai",
        [HI, use(), {"role": "user", "content": [block()]}],
        [(1, "foreign-block"), (2, "foreign-block")],
    ),
    (
        "no part",
        "openai",
        [HI, calls_message(call()), result(content=[])],
        [(2, "content-missing")],
    ),
    (
        "nothing but calls",
        "openai",
        [HI, {**calls_message(call()), "content": []}, result()],
        [],
    ),
    (
        "nothing at all",
        "openai",
        [HI, {"role": "assistant", "content": []}],
        [(1, "content-missing")],
    ),
    (
        "no call",
        "openai",
        [HI, calls_message(call(), "?"), result()],
        [(1, "call-shape")],
    ),
    (
        "no text",
        "openai",
        [
            HI,
            calls_message({**call(), "function": {"name": "f", "arguments": {"x": 1}}}),
            result(),
        ],
        [(1, "call-shape")],
    ),
    (
        "a free-form call",
        "openai",
        [
            HI,
            calls_message(
                {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}
            ),
            result(),
        ],
        [],
    ),
    (
        "ids may return",
        "openai",
        [HI, calls_message(call()), result(), calls_message(call()), result()],
        [],
    ),
    ("blocks", "anthropic", [HI, use(), {"role": "user", "content": [block()]}], []),
    ("converted", "anthropic", [SYSTEM, HI, calls_message(call()), result()], []),
    (
        "assistant first",
        "anthropic",
        [SYSTEM, {"role": "assistant", "content": "hi"}, HI],
        [(1, "starts-with-assistant")],
    ),
    (
        "a compaction first",
        "anthropic",
        [{"role": "assistant", "content": [{"type": "compaction"}]}, HI],
        [],
    ),
    (
        "blank",
        "anthropic",
        [HI, {"role": "assistant", "content": " \n"}],
        [(1, "empty-content")],
    ),
    (
        "only an image",
        "anthropic",
        [{"role": "user", "content": [{"type": "image", "source": {}}]}],
        [],
    ),
    (
        "ids return",
        "anthropic",
        [HI, calls_message(call()), result(), calls_message(call()), result()],
        [(3, "reused-call-id")],
    ),
    (
        "id letters",
        "anthropic",
        [HI, use("a:b"), {"role": "user", "content": [block("a:b")]}],
        [(1, "call-id")],
    ),
    (
        "text first",
        "anthropic",
        [
            HI,
            use(),
            {"role": "user", "content": [{"type": "text", "text": "x"}, block()]},
        ],
        [(2, "result-after-text")],
    ),
    (
        "blocks of another role",
        "anthropic",
        [
            {"role": "user", "content": [*use()["content"], *parts(HI)]},
            {"role": "assistant", "content": [block()]},
        ],
        [(0, "misplaced-block"), (1, "orphan-result"), (1, "misplaced-block")],
    ),
    ("nothing", "anthropic", [], []),
]


@pytest.mark.parametrize(
    ("api", "messages", "problems"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_reports_each_broken_rule(
    api: str, messages: list[Any], problems: list[tuple[int, str]]
) -> None:
    found = validate_messages(messages, api=api)
    assert [(problem.index, problem.rule) for problem in found] == problems
    assert all(f"message {p.index}" in str(p) and p.rule in str(p) for p in found)


@pytest.mark.parametrize(
    ("api", "messages", "problems"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_repair_fixes_every_problem(
    api: str, messages: list[Any], problems: list[tuple[int, str]]
) -> None:
    before = copy.deepcopy(messages)
    mended = repair(messages)
    native = any(
        p.get("type") in ("tool_use", "tool_result") for m in messages for p in parts(m)
    )
    assert validate_messages(mended.messages, api="anthropic") == []
    assert native or validate_messages(mended.messages, api="openai") == []
    assert messages == before
    fine_as_it_is = not validate_messages(messages, api="anthropic") and (
        native or not problems
    )
    if fine_as_it_is:
        assert all(
            new is old for new, old in zip(mended.messages, messages, strict=True)
        )
        assert mended.actions == []
    else:
        assert mended.actions


def test_responses_limits_the_length_of_ids() -> None:
    def history(call_id: str) -> list[Any]:
        called = {
            "id": call_id,
            "type": "function",
            "function": {"name": "ls", "arguments": "{}"},
        }
        return [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call_id, "content": "a"},
        ]

    assert validate_messages(history("c" * 64), api="openai_responses") == []
    assert [
        problem.rule
        for problem in validate_messages(history("c" * 65), api="openai_responses")
    ] == ["call-id"]
    assert validate_messages(history("c" * 65), api="openai") == []
    assert [
        problem.rule
        for problem in validate_messages(history("c")[:2], api="openai_responses")
    ] == ["missing-result"]


def test_refuses_an_unknown_api() -> None:
    with pytest.raises(InputError, match="gemini"):
        validate_messages([], api="gemini")


class TestRepair:
    def test_adds_stub_results_and_drops_orphan_results(
        self,
    ) -> None:
        mended = repair(
            [HI, calls_message(call("a"), call("b")), result("b"), result("z"), HI]
        )
        assert mended.messages == [
            HI,
            calls_message(call("a"), call("b")),
            result("b"),
            result("a", STUB_RESULT),
            HI,
        ]
        assert mended.actions == [
            "message 3: result of 'z' removed: no open call has that id",
            "message 1: call 'a' got a stub result: it has none",
        ]

    def test_in_flight_keeps_trailing_open_calls(self) -> None:
        messages = [HI, calls_message(call("a"), call("b")), result("b")]
        assert repair_messages(messages, in_flight=True) == messages
        assert repair_messages([HI, use("a")], in_flight=True) == [HI, use("a")]

    def test_in_flight_keeps_open_calls_in_a_broken_list(self) -> None:
        messages = [
            HI,
            {"role": "user", "content": ""},
            calls_message(call("a"), call("b")),
            result("b"),
        ]
        mended = repair(messages, in_flight=True)
        assert mended.messages == [HI, *messages[2:]]
        assert mended.original_indexes == [0, 2, 3]
        assert repair_messages([result("b")], in_flight=True) == []

    def test_reports_original_indexes(self) -> None:
        sound = [SYSTEM, HI, calls_message(call("a")), result("a")]
        assert repair(sound).original_indexes == [0, 1, 2, 3]
        moved = [
            calls_message(call("a")),
            HI,
            result("a"),
            {"role": "user", "content": 4},
        ]
        assert repair(moved).original_indexes == [None, 0, 2, 1, None]

    def test_in_flight_answers_older_calls(self) -> None:
        mended = repair_messages([HI, calls_message(call("a")), HI], in_flight=True)
        assert mended == [HI, calls_message(call("a")), result("a", STUB_RESULT), HI]

    def test_calls_before_a_user_message_are_not_in_flight(self) -> None:
        words = {"type": "text", "text": "stop"}
        both = {
            "role": "assistant",
            "content": [*use("a")["content"], *use("b")["content"]],
        }
        mended = repair_messages(
            [HI, both, {"role": "user", "content": [block("a"), words]}], in_flight=True
        )
        stub = {"type": "tool_result", "tool_use_id": "b", "content": STUB_RESULT}
        assert mended[2:] == [{"role": "user", "content": [block("a"), stub, words]}]

    def test_error_flag_survives_conversion(self) -> None:
        failed = {**block("a"), "is_error": True}
        mended = repair_messages(
            [HI, calls_message(call("a")), {"role": "user", "content": [failed]}]
        )
        assert mended[2] == {**result("a"), "is_error": True}
        mended = repair_messages([HI, use("a"), {**result("a"), "is_error": True}])
        assert mended[2] == {"role": "user", "content": [failed]}

    def test_moves_a_late_result_to_its_call(self) -> None:
        mended = repair([HI, calls_message(call()), HI, result()])
        assert mended.messages == [HI, calls_message(call()), result(), HI]
        assert mended.actions == ["message 3: result of 'a' moved to its call"]

    def test_opening_is_not_a_user_message(self) -> None:
        first, *_ = repair_messages(
            [{"role": "assistant", "content": "Hi! How can I help?"}, HI]
        )
        assert first == {"role": "user", "content": OPENING_TEXT}
        assert not is_user_message(first)

    def test_makes_reused_ids_unique(self) -> None:
        messages = [
            HI,
            calls_message(call("c0")),
            result("c0", "1"),
            calls_message(call("c0")),
            result("c0", "2"),
            calls_message(call("")),
            result(""),
        ]
        mended = repair_messages(messages)
        assert [m["tool_call_id"] for m in mended if m["role"] == "tool"] == [
            "c0",
            "c0_2",
            "call_1",
        ]
        assert [m["content"] for m in mended if m["role"] == "tool"] == ["1", "2", "ok"]

    def test_keeps_text_beside_results(self) -> None:
        messages = [
            HI,
            use(),
            HI,
            {
                "role": "user",
                "content": [block(), block("z"), {"type": "text", "text": "and this"}],
            },
        ]
        mended = repair_messages(messages)
        assert mended[2:] == [
            {"role": "user", "content": [block()]},
            HI,
            {"role": "user", "content": [{"type": "text", "text": "and this"}]},
        ]

    def test_moves_text_after_results(self) -> None:
        text = {"type": "text", "text": "x"}
        assert repair_messages(
            [HI, use(), {"role": "user", "content": [text, block()]}]
        )[2]["content"] == [
            block(),
            text,
        ]

    def test_accepts_mixed_forms(self) -> None:
        mended = repair_messages(
            [
                HI,
                calls_message(call("a")),
                {"role": "user", "content": [block("a")]},
                use("b"),
                result("b"),
            ]
        )
        assert mended == [
            HI,
            calls_message(call("a")),
            {"role": "tool", "tool_call_id": "a", "content": "ok"},
            use("b"),
            {"role": "user", "content": [block("b")]},
        ]

    @pytest.mark.parametrize(
        ("dirty", "clean"),
        [
            ({"role": "human", "content": "x"}, {"role": "user", "content": "x"}),
            ({"role": "user", "content": 7}, {"role": "user", "content": "7"}),
            (
                {"role": "user", "content": ["x"]},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
            ),
            (
                {"role": "user", "content": [{"text": "x"}]},
                {"role": "user", "content": [{"text": "x", "type": "text"}]},
            ),
            (
                {"role": "assistant", "content": "x", "tool_calls": None},
                {"role": "assistant", "content": "x"},
            ),
            (
                {"role": "assistant", "content": "x", "tool_calls": ["?"]},
                {"role": "assistant", "content": "x"},
            ),
            (
                {"role": "user", "content": [None, "x"]},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
            ),
            (
                {"role": "user", "content": [block(), "x"]},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
            ),
        ],
    )
    def test_corrects_shapes(self, dirty: Dirt, clean: Dirt) -> None:
        assert repair_messages([HI, dirty])[1:] == [clean]

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "user"},
            {"role": "assistant", "content": None},
            {"role": "assistant", "tool_calls": []},
            {"role": "?", "content": "x"},
            {"role": ["x"], "content": "x"},
            None,
        ],
    )
    def test_drops_empty_messages_and_unknown_roles(self, message: Any) -> None:
        mended = repair([HI, message])
        assert mended.messages == [HI]
        assert "message 1: removed" in mended.actions[-1]

    def test_replaces_a_nameless_call_by_text(self) -> None:
        (_, mended) = repair_messages(
            [HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]
        )
        assert mended["content"] == [
            {"type": "text", "text": "[a tool call without a name was here]"}
        ]

    def test_drops_results_without_a_call(self) -> None:
        assert repair_messages(
            [HI, use(), {"role": "user", "content": [{"type": "tool_result"}, block()]}]
        )[2:] == [{"role": "user", "content": [block()]}]


ids = st.sampled_from(["a", "b", "c", "", "x:y"])
texts = st.sampled_from(["", "hi", " ", "修复", "<system-reminder>r</system-reminder>"])
result_blocks = st.builds(block, ids)
text_blocks = st.builds(lambda t: {"type": "text", "text": t}, texts)
openai_messages = st.one_of(
    st.builds(
        lambda r, t: {"role": r, "content": t},
        st.sampled_from(["user", "assistant", "system", "robot"]),
        texts,
    ),
    st.builds(lambda c: calls_message(*c), st.lists(st.builds(call, ids), max_size=3)),
    st.builds(result, ids, st.one_of(texts, st.none())),
)
anthropic_messages = st.one_of(
    st.builds(
        lambda r, b: {"role": r, "content": b},
        st.sampled_from(["user", "assistant"]),
        st.lists(text_blocks, max_size=2),
    ),
    st.builds(use, ids),
    st.builds(
        lambda b: {"role": "user", "content": b},
        st.lists(st.one_of(result_blocks, text_blocks), max_size=3),
    ),
)


@given(st.lists(openai_messages, max_size=12), st.booleans())
def test_any_history_becomes_valid(messages: list[Dirt], in_flight: bool) -> None:
    before = copy.deepcopy(messages)
    mended = repair_messages(messages, in_flight=in_flight)
    allowed = {"missing-result"} if in_flight else set()
    for api in ("openai", "anthropic"):
        assert {
            problem.rule for problem in validate_messages(mended, api=api)
        } <= allowed
    assert repair_messages(mended, in_flight=in_flight) == mended
    assert messages == before


call_groups = st.builds(
    lambda made_ids, answered: [
        calls_message(*map(call, made_ids)),
        *map(result, made_ids[:answered]),
    ],
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3, unique=True),
    st.integers(0, 3),
)
histories = st.lists(
    st.one_of(call_groups, call_groups, st.lists(openai_messages, max_size=1)),
    max_size=5,
)


def test_keeps_valid_messages_unchanged() -> None:
    messages = [
        HI,
        calls_message(call("a")),
        result("a"),
        calls_message(call("b")),
        HI,
        calls_message(call("c")),
        result("c"),
        HI,
    ]
    mended = repair(messages)
    assert mended.original_indexes == [0, 1, 2, 3, None, 4, 5, 6, 7]
    assert mended.actions == ["message 3: call 'b' got a stub result: it has none"]


def test_new_ids_do_not_collide_with_later_ones() -> None:
    messages = [
        HI,
        *(
            m
            for name in ("a", "a", "a_2", "d")
            for m in (calls_message(call(name)), result(name))
        ),
    ]
    mended = repair(messages)
    assert [m["tool_call_id"] for m in mended.messages if m["role"] == "tool"] == [
        "a",
        "a_2",
        "a_2_2",
        "d",
    ]
    assert mended.original_indexes == [0, 1, 2, None, None, None, None, 7, 8]
    assert validate_messages(mended.messages, api="anthropic") == []


@given(st.lists(st.one_of(anthropic_messages, openai_messages), max_size=12))
def test_any_history_of_blocks_becomes_valid(messages: list[Dirt]) -> None:
    mended = repair_messages(messages)
    assert validate_messages(mended, api="anthropic") == []
    assert repair_messages(mended) == mended


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["role", "content", "tool_calls", "type"]), x
            )
        ),
    )
)
def test_reports_and_repairs_garbage(garbage: Any) -> None:
    messages = garbage if isinstance(garbage, list) else [garbage]
    validate_messages(messages)
    assert validate_messages(repair_messages(messages)) == []


def test_recorded_histories_become_valid() -> None:
    for path in sorted(shared_path("transcripts").glob("*.json")):
        messages = json.loads(path.read_text("utf-8"))["messages"]
        mended = repair_messages(messages)
        assert validate_messages(mended) == [], path.name
        assert validate_messages(mended, api="anthropic") == [], path.name


def test_assigns_new_ids_to_calls_of_both_forms() -> None:
    message: Any = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "name": "read", "input": {}},
        ],
        "tool_calls": ["broken", {"function": {"name": "list", "arguments": "{}"}}],
    }
    named: Any = with_call_ids(message, ["a", "b"])
    assert named["content"][1]["id"] == "a"
    assert named["tool_calls"][0] == "broken"
    assert named["tool_calls"][1]["id"] == "b"
