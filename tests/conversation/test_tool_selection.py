"""The choice of tools to leave out if all of them would take too much room."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from everthread.conversation.tool_selection import (
    MAX_DESCRIPTION_CHARS,
    ToolCard,
    choose_left_out,
    compute_max_tool_tokens,
    exceeds_share,
    find_matching,
    make_card,
    score_cards,
    tool_name,
)


def tool(name: str, description: Any = "", *parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in parameters},
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": schema,
        },
    }


CARDS = [
    make_card(tool("create_invoice", "Make an invoice for a customer.", "customer"), 100),
    make_card(tool("sendEmail", "Send a message by mail.", "recipient"), 100),
    make_card(tool("weather", "The weather at a place.", "city"), 100),
    make_card(tool("refund", "Pay money back for an invoice.", "payment_id"), 100),
]


def left_out_names(
    max_tokens: int,
    task_text: str = "",
    used_names: tuple[str, ...] = (),
    previous: tuple[str, ...] = (),
) -> tuple[str, ...]:
    return choose_left_out(
        CARDS,
        max_tokens=max_tokens,
        used_names=used_names,
        task_text=task_text,
        previously_left_out=previous,
    )


def test_reads_both_tool_formats_and_keeps_unnamed_tools() -> None:
    anthropic = {
        "name": "a",
        "description": "word " * 100,
        "input_schema": {"properties": {"zip_code": {}}},
    }
    card = make_card(anthropic)
    assert tool_name(anthropic) == "a"
    assert card.name == "a"
    assert len(card.description) == MAX_DESCRIPTION_CHARS
    assert card.description[-1] == "…"
    assert {"zip", "code"} <= card.words
    nameless = {
        "name": 3,
        "description": 4,
        "input_schema": {"properties": []},
    }
    odd: list[dict[str, Any]] = [
        {"type": "web_search"},
        nameless,
        tool("b", None),
    ]
    cards = [make_card(each, 50) for each in odd]
    assert [card.name for card in cards] == ["", "", "b"]
    assert choose_left_out(
        cards,
        max_tokens=0,
        used_names=(),
        task_text="",
    ) == ("b",)


def test_limits_tools_by_their_share_and_by_the_remaining_tokens() -> None:
    assert not exceeds_share(250, threshold=1_000, other_tokens=100)
    assert exceeds_share(251, threshold=1_000, other_tokens=100)
    assert exceeds_share(200, threshold=1_000, other_tokens=800)
    assert not exceeds_share(
        900,
        threshold=1_000,
        other_tokens=0,
        share=1.0,
    )
    assert compute_max_tool_tokens(1_000, 100) == 250
    assert compute_max_tool_tokens(1_000, 600) == 150
    assert compute_max_tool_tokens(1_000, 5_000) == 0


def test_tools_that_match_the_task_or_are_in_use_stay() -> None:
    assert left_out_names(400) == ()
    assert left_out_names(200, "Refund the two invoices, please.") == (
        "sendEmail",
        "weather",
    )
    assert left_out_names(200, "Email them about the weather in town.") == (
        "create_invoice",
        "refund",
    )
    assert left_out_names(200, "Refund the two invoices.", used_names=("weather",)) == (
        "create_invoice",
        "sendEmail",
    )
    assert left_out_names(0, "refund", used_names=("weather", "refund")) == (
        "create_invoice",
        "sendEmail",
    )
    assert left_out_names(200) == ("weather", "refund")


def test_keeps_the_previous_choice_while_the_other_tools_fit() -> None:
    assert left_out_names(300, "weather", previous=("weather",)) == ("weather",)
    assert left_out_names(
        300,
        used_names=("weather",),
        previous=("weather",),
    ) == ("refund",)
    assert left_out_names(200, "weather", previous=("weather",)) == (
        "sendEmail",
        "refund",
    )
    assert left_out_names(400, previous=("weather",)) == ()


def test_a_search_finds_words_in_any_form_the_rarest_first() -> None:
    assert [card.name for card in find_matching(CARDS, "mailing customers")] == [
        "create_invoice",
        "sendEmail",
    ]
    assert [card.name for card in find_matching(CARDS, "invoices")] == [
        "create_invoice",
        "refund",
    ]
    assert [card.name for card in find_matching(CARDS, "send_email")] == ["sendEmail"]
    assert find_matching(CARDS, "the of a") == []
    assert find_matching(CARDS, "quantum") == []
    assert find_matching([], "x") == []


NAMES = st.sampled_from([f"tool_{index}" for index in range(12)])


@given(
    st.dictionaries(NAMES, st.integers(1, 200)),
    st.integers(0, 1_000),
    st.sets(NAMES),
    st.sets(NAMES),
    st.text("tol_ 123"),
)
def test_the_offered_tools_fit_unless_all_are_used(
    sizes: dict[str, int], room: int, used: set[str], before: set[str], wanted: str
) -> None:
    cards = [make_card(tool(name), size) for name, size in sizes.items()]
    gone = choose_left_out(
        cards,
        max_tokens=room,
        used_names=used,
        task_text=wanted,
        previously_left_out=before,
    )
    rest: list[ToolCard] = [card for card in cards if card.name not in gone]
    assert not set(gone) & used
    assert sum(card.tokens for card in rest) <= room or all(card.name in used for card in rest)
    again = choose_left_out(
        cards, max_tokens=room, used_names=used, task_text="", previously_left_out=gone
    )
    assert set(again) == set(gone)
    assert len(score_cards(cards, wanted)) == len(cards)
