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
from tests.chat_messages import (
    assistant_message,
    call_block,
    calls_message,
    custom_call,
    function_call,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.shared_data import shared_path


def call(call_id: Any = "a", name: str = "f") -> Any:
    return function_call(call_id, name)


def result(call_id: str = "a", content: Any = "ok") -> Any:
    return result_message(call_id, content)


def use(call_id: str = "a") -> Any:
    return assistant_message([call_block(call_id, "f", {})])


def block(call_id: str = "a") -> Any:
    return result_block(call_id, "ok")


def parts(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    return [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []


HI: dict[str, Any] = user_message("hi")
SYSTEM: dict[str, Any] = {"role": "system", "content": "s"}

CASES: list[tuple[str, str, list[Any], list[tuple[int, str]]]] = [
    (
        "fine",
        "openai",
        [
            SYSTEM,
            HI,
            calls_message(call()),
            result(),
            assistant_message("x"),
        ],
        [],
    ),
    ("no message", "openai", [HI, "text"], [(1, "not-an-object")]),
    ("role", "openai", [HI, {"role": "robot", "content": "x"}], [(1, "unknown-role")]),
    ("no content", "openai", [{"role": "user"}], [(0, "content-missing")]),
    ("number", "openai", [user_message(4)], [(0, "content-type")]),
    (
        "part",
        "openai",
        [user_message(["x", {"text": "y"}])],
        [(0, "part-type"), (0, "part-type")],
    ),
    (
        "null assistant",
        "openai",
        [HI, assistant_message(None)],
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
        [
            HI,
            {
                "role": "assistant",
                "content": "x",
                "tool_calls": [],
            },
        ],
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
        [HI, use(), user_message([block()])],
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
        [HI, assistant_message([])],
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
            calls_message(
                {
                    **call(),
                    "function": {"name": "f", "arguments": {"x": 1}},
                }
            ),
            result(),
        ],
        [(1, "call-shape")],
    ),
    (
        "a free-form call",
        "openai",
        [
            HI,
            calls_message(custom_call("a", "f", "x")),
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
    ("blocks", "anthropic", [HI, use(), user_message([block()])], []),
    ("converted", "anthropic", [SYSTEM, HI, calls_message(call()), result()], []),
    (
        "assistant first",
        "anthropic",
        [SYSTEM, assistant_message("hi"), HI],
        [(1, "starts-with-assistant")],
    ),
    (
        "a compaction first",
        "anthropic",
        [assistant_message([{"type": "compaction"}]), HI],
        [],
    ),
    (
        "blank",
        "anthropic",
        [HI, assistant_message(" \n")],
        [(1, "empty-content")],
    ),
    (
        "only an image",
        "anthropic",
        [user_message([{"type": "image", "source": {}}])],
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
        [HI, use("a:b"), user_message([block("a:b")])],
        [(1, "call-id")],
    ),
    (
        "text first",
        "anthropic",
        [
            HI,
            use(),
            user_message([text_part("x"), block()]),
        ],
        [(2, "result-after-text")],
    ),
    (
        "blocks of another role",
        "anthropic",
        [
            user_message([*use()["content"], *parts(HI)]),
            assistant_message([block()]),
        ],
        [
            (0, "misplaced-block"),
            (1, "orphan-result"),
            (1, "misplaced-block"),
        ],
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
    repaired = repair(messages)
    native = any(p.get("type") in ("tool_use", "tool_result") for m in messages for p in parts(m))
    assert validate_messages(repaired.messages, api="anthropic") == []
    assert native or validate_messages(repaired.messages, api="openai") == []
    assert messages == before
    fine_as_it_is = not validate_messages(messages, api="anthropic") and (native or not problems)
    if fine_as_it_is:
        assert all(new is old for new, old in zip(repaired.messages, messages, strict=True))
        assert repaired.actions == []
    else:
        assert repaired.actions


def test_responses_limits_the_length_of_ids() -> None:
    def history(call_id: str) -> list[Any]:
        called = function_call(call_id, "ls")
        return [
            user_message("Look."),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [called],
            },
            result_message(call_id, "a"),
        ]

    assert validate_messages(history("c" * 64), api="openai_responses") == []
    assert [
        problem.rule for problem in validate_messages(history("c" * 65), api="openai_responses")
    ] == ["call-id"]
    assert validate_messages(history("c" * 65), api="openai") == []
    assert [
        problem.rule for problem in validate_messages(history("c")[:2], api="openai_responses")
    ] == ["missing-result"]


def test_refuses_an_unknown_api() -> None:
    with pytest.raises(InputError, match="gemini"):
        validate_messages([], api="gemini")


class TestRepair:
    def test_adds_stub_results_and_drops_orphan_results(
        self,
    ) -> None:
        repaired = repair([HI, calls_message(call("a"), call("b")), result("b"), result("z"), HI])
        assert repaired.messages == [
            HI,
            calls_message(call("a"), call("b")),
            result("b"),
            result("a", STUB_RESULT),
            HI,
        ]
        assert repaired.actions == [
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
            user_message(""),
            calls_message(call("a"), call("b")),
            result("b"),
        ]
        repaired = repair(messages, in_flight=True)
        assert repaired.messages == [HI, *messages[2:]]
        assert repaired.original_indexes == [0, 2, 3]
        assert repair_messages([result("b")], in_flight=True) == []

    def test_reports_original_indexes(self) -> None:
        sound = [SYSTEM, HI, calls_message(call("a")), result("a")]
        assert repair(sound).original_indexes == [0, 1, 2, 3]
        moved = [
            calls_message(call("a")),
            HI,
            result("a"),
            user_message(4),
        ]
        assert repair(moved).original_indexes == [None, 0, 2, 1, None]

    def test_in_flight_answers_older_calls(self) -> None:
        repaired = repair_messages([HI, calls_message(call("a")), HI], in_flight=True)
        assert repaired == [HI, calls_message(call("a")), result("a", STUB_RESULT), HI]

    def test_calls_before_a_user_message_are_not_in_flight(self) -> None:
        words = text_part("stop")
        both = assistant_message([*use("a")["content"], *use("b")["content"]])
        repaired = repair_messages([HI, both, user_message([block("a"), words])], in_flight=True)
        stub = result_block("b", STUB_RESULT)
        assert repaired[2:] == [user_message([block("a"), stub, words])]

    def test_error_flag_survives_conversion(self) -> None:
        failed = {**block("a"), "is_error": True}
        repaired = repair_messages([HI, calls_message(call("a")), user_message([failed])])
        assert repaired[2] == {**result("a"), "is_error": True}
        repaired = repair_messages([HI, use("a"), {**result("a"), "is_error": True}])
        assert repaired[2] == user_message([failed])

    def test_moves_a_late_result_to_its_call(self) -> None:
        repaired = repair([HI, calls_message(call()), HI, result()])
        assert repaired.messages == [HI, calls_message(call()), result(), HI]
        assert repaired.actions == ["message 3: result of 'a' moved to its call"]

    def test_opening_is_not_a_user_message(self) -> None:
        first, *_ = repair_messages([assistant_message("Hi! How can I help?"), HI])
        assert first == user_message(OPENING_TEXT)
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
        repaired = repair_messages(messages)
        assert [m["tool_call_id"] for m in repaired if m["role"] == "tool"] == [
            "c0",
            "c0_2",
            "call_1",
        ]
        assert [m["content"] for m in repaired if m["role"] == "tool"] == [
            "1",
            "2",
            "ok",
        ]

    def test_keeps_text_beside_results(self) -> None:
        messages = [
            HI,
            use(),
            HI,
            user_message([block(), block("z"), text_part("and this")]),
        ]
        repaired = repair_messages(messages)
        assert repaired[2:] == [
            user_message([block()]),
            HI,
            user_message([text_part("and this")]),
        ]

    def test_moves_text_after_results(self) -> None:
        text = text_part("x")
        assert repair_messages([HI, use(), user_message([text, block()])])[2]["content"] == [
            block(),
            text,
        ]

    def test_accepts_mixed_forms(self) -> None:
        repaired = repair_messages(
            [
                HI,
                calls_message(call("a")),
                user_message([block("a")]),
                use("b"),
                result("b"),
            ]
        )
        assert repaired == [
            HI,
            calls_message(call("a")),
            result_message("a", "ok"),
            use("b"),
            user_message([block("b")]),
        ]

    @pytest.mark.parametrize(
        ("dirty", "clean"),
        [
            ({"role": "human", "content": "x"}, user_message("x")),
            (user_message(7), user_message("7")),
            (
                user_message(["x"]),
                user_message([text_part("x")]),
            ),
            (
                user_message([{"text": "x"}]),
                user_message([{"text": "x", "type": "text"}]),
            ),
            (
                {"role": "assistant", "content": "x", "tool_calls": None},
                assistant_message("x"),
            ),
            (
                {
                    "role": "assistant",
                    "content": "x",
                    "tool_calls": ["?"],
                },
                assistant_message("x"),
            ),
            (
                user_message([None, "x"]),
                user_message([text_part("x")]),
            ),
            (
                user_message([block(), "x"]),
                user_message([text_part("x")]),
            ),
        ],
    )
    def test_corrects_shapes(self, dirty: dict[str, Any], clean: dict[str, Any]) -> None:
        assert repair_messages([HI, dirty])[1:] == [clean]

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "user"},
            assistant_message(None),
            {"role": "assistant", "tool_calls": []},
            {"role": "?", "content": "x"},
            {"role": ["x"], "content": "x"},
            None,
        ],
    )
    def test_drops_empty_messages_and_unknown_roles(self, message: Any) -> None:
        repaired = repair([HI, message])
        assert repaired.messages == [HI]
        assert "message 1: removed" in repaired.actions[-1]

    def test_replaces_a_nameless_call_by_text(self) -> None:
        (_, repaired) = repair_messages([HI, assistant_message([{"type": "tool_use", "id": "a"}])])
        assert repaired["content"] == [text_part("[a tool call without a name was here]")]

    def test_drops_results_without_a_call(self) -> None:
        assert repair_messages([HI, use(), user_message([{"type": "tool_result"}, block()])])[
            2:
        ] == [user_message([block()])]


ids = st.sampled_from(["a", "b", "c", "", "x:y"])
texts = st.sampled_from(["", "hi", " ", "修复", "<system-reminder>r</system-reminder>"])
result_blocks = st.builds(block, ids)
text_blocks = st.builds(text_part, texts)
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
        user_message,
        st.lists(st.one_of(result_blocks, text_blocks), max_size=3),
    ),
)


@given(st.lists(openai_messages, max_size=12), st.booleans())
def test_any_history_becomes_valid(messages: list[dict[str, Any]], in_flight: bool) -> None:
    before = copy.deepcopy(messages)
    repaired = repair_messages(messages, in_flight=in_flight)
    allowed = {"missing-result"} if in_flight else set()
    for api in ("openai", "anthropic"):
        assert {problem.rule for problem in validate_messages(repaired, api=api)} <= allowed
    assert repair_messages(repaired, in_flight=in_flight) == repaired
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
    repaired = repair(messages)
    assert repaired.original_indexes == [0, 1, 2, 3, None, 4, 5, 6, 7]
    assert repaired.actions == ["message 3: call 'b' got a stub result: it has none"]


def test_new_ids_do_not_collide_with_later_ones() -> None:
    messages = [
        HI,
        *(m for name in ("a", "a", "a_2", "d") for m in (calls_message(call(name)), result(name))),
    ]
    repaired = repair(messages)
    assert [m["tool_call_id"] for m in repaired.messages if m["role"] == "tool"] == [
        "a",
        "a_2",
        "a_2_2",
        "d",
    ]
    assert repaired.original_indexes == [0, 1, 2, None, None, None, None, 7, 8]
    assert validate_messages(repaired.messages, api="anthropic") == []


@given(st.lists(st.one_of(anthropic_messages, openai_messages), max_size=12))
def test_any_history_of_blocks_becomes_valid(messages: list[dict[str, Any]]) -> None:
    repaired = repair_messages(messages)
    assert validate_messages(repaired, api="anthropic") == []
    assert repair_messages(repaired) == repaired


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "type"]), x)
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
        repaired = repair_messages(messages)
        assert validate_messages(repaired) == [], path.name
        assert validate_messages(repaired, api="anthropic") == [], path.name


def test_assigns_new_ids_to_calls_of_both_forms() -> None:
    message: Any = {
        "role": "assistant",
        "content": [
            text_part("I look."),
            {"type": "tool_use", "name": "read", "input": {}},
        ],
        "tool_calls": ["broken", {"function": {"name": "list", "arguments": "{}"}}],
    }
    named: Any = with_call_ids(message, ["a", "b"])
    assert named["content"][1]["id"] == "a"
    assert named["tool_calls"][0] == "broken"
    assert named["tool_calls"][1]["id"] == "b"
