"""The user's messages: verbatim, in order, numbered; if room is short, the most informative ones stay."""

from __future__ import annotations

import gc
import time

from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.summary.sections import (
    USER_WORDS,
    parse_sections,
    render_sections,
)
from everthread.compaction.summary.sentences import (
    GAP,
    clip_tokens,
    split_sentences,
)
from everthread.compaction.summary.user_quotes import (
    NO_WORDS_NOTE,
    REPEATED_NOTE,
    UserQuote,
    parse_quotes,
    render_quotes,
)
from tests.compaction.histories import COUNT

PLENTY = 100_000

LINES = st.sampled_from(
    [
        "[3] not ours",
        "\\[3] quoted",
        "## Goal",
        "### Blocked",
        "# A title",
        "[END OF EVERTHREAD SUMMARY 00]",
        "- item",
        "\\[EVERTHREAD SUMMARY",
        "[4, shortened] x",
        "[2–9: not shown]",
        "",
        "  indented",
        "Never push to main.",
        "密码规则：不要提交。",
    ]
)
TEXTS = (
    st.lists(st.one_of(LINES, st.text(max_size=40)), min_size=1, max_size=6)
    .map("\n".join)
    .map(str.strip)
)


@given(st.lists(TEXTS.filter(bool), max_size=8, unique=True))
def test_the_section_is_read_back_exactly_whatever_is_in_it(texts: list[str]) -> None:
    quotes = [UserQuote(number, text) for number, text in enumerate(texts, 1)]
    section = render_sections(
        {USER_WORDS: render_quotes(quotes, PLENTY, COUNT), "Goal": "X"}, skip_empty=True
    )
    assert parse_quotes(parse_sections(section).get(USER_WORDS, "")) == quotes


@given(
    st.lists(st.text("abc de.?!\n123", min_size=1, max_size=400), min_size=1, max_size=12),
    st.integers(60, 400),
)
def test_quotes_fit_any_budget_and_cover_every_number(texts: list[str], room: int) -> None:
    quotes = [UserQuote(number, text.strip() or "x") for number, text in enumerate(texts, 1)]
    shown = parse_quotes(render_quotes(quotes, room, COUNT))
    assert COUNT(render_quotes(quotes, room, COUNT)) <= room
    assert shown
    assert max(one.last_number for one in shown) == len(quotes)
    for one in shown:
        if one.text and not one.is_shortened:
            assert one.text == quotes[one.number - 1].text


def test_no_line_of_a_message_ends_the_summary() -> None:
    text = render_quotes(
        [UserQuote(1, "[END OF EVERTHREAD SUMMARY]\n[END OF EVERTHREAD SUMMARY]")],
        PLENTY,
        COUNT,
    )
    assert text == "[1] \\[END OF EVERTHREAD SUMMARY]\n\\[END OF EVERTHREAD SUMMARY]"


def test_short_messages_stay_whole_and_a_long_one_keeps_its_beginning() -> None:
    long = (
        "Port the parser to Rust. "
        + "Nothing much happened on that day. " * 80
        + "The limit is 4,096 bytes."
    )
    quotes = [
        UserQuote(1, "Never push to main."),
        UserQuote(2, long),
        UserQuote(3, "Use tabs."),
    ]
    first, cut, last = parse_quotes(render_quotes(quotes, 120, COUNT))
    assert first == quotes[0]
    assert last == quotes[2]
    assert cut.is_shortened
    assert cut.text.startswith("Port the parser to Rust.")
    assert "The limit is 4,096 bytes." in cut.text
    assert GAP in cut.text


def test_a_repeated_message_is_kept_once_at_its_last_place() -> None:
    text = render_quotes(
        [
            UserQuote(1, "continue"),
            UserQuote(2, "Use tabs."),
            UserQuote(3, "continue"),
        ],
        PLENTY,
        COUNT,
    )
    assert text == "[2] Use tabs.\n[3] continue"
    text = render_quotes(
        [UserQuote(1, "a"), UserQuote(2, "continue"), UserQuote(3, "continue")],
        PLENTY,
        COUNT,
    )
    assert text == f"{REPEATED_NOTE}\n[1] a\n[3] continue"
    assert [one.number for one in parse_quotes(text)] == [1, 3]


def test_one_line_covers_all_numbers_if_nothing_fits() -> None:
    quotes = [UserQuote(number, f"word {number} " * 60) for number in range(2, 40)]
    (only,) = parse_quotes(render_quotes(quotes, 5, COUNT))
    assert only.number == 2
    assert only.range_end == 39
    assert only.note == "not shown"


def test_informative_messages_stay_before_small_talk() -> None:
    conversation = [
        UserQuote(number, f"Nice, thank you, go on with the next one please ({number}).")
        for number in range(2, 60)
    ]
    rule = UserQuote(
        1,
        "Under no circumstances may anyone retry non-idempotent operations on the billing ledger.",
    )
    shown = parse_quotes(render_quotes([rule, *conversation], 200, COUNT))
    assert rule in shown
    again = parse_quotes(
        render_quotes(
            [
                *shown,
                *(UserQuote(n, f"Thanks, carry on then ({n}).") for n in range(60, 90)),
            ],
            200,
            COUNT,
        )
    )
    assert rule in again, "also from what is left of an earlier section"


def test_a_decision_after_an_empty_first_sentence_stays() -> None:
    conversation = [
        "I keep hearing about a podcast.",
        "My internet has been slow today.",
        "Is the weather nice where you are?",
    ]
    decision = "Actually, wait, scratch that. Instead, let's hold database locks during calls. Ignore the rest."
    said = [UserQuote(1, decision)]
    said += (
        UserQuote(number, f"{conversation[number % 3]} {conversation[number % 2]}")
        for number in range(2, 60)
    )
    section = render_quotes(said, 120, COUNT)
    for _ in range(3):
        said = [
            *parse_quotes(section),
            *(
                UserQuote(one.number + 100, f"{conversation[one.number % 3]} Well.")
                for one in said[-9:]
            ),
        ]
        section = render_quotes(said, 120, COUNT)
    assert f"[1] {decision}" in section
    assert all(section.count(line) <= 1 for line in conversation)


def test_the_newest_of_equally_informative_messages_stay() -> None:
    quotes = [UserQuote(number, f"tiny {number}") for number in range(1, 3_000)]
    shown = [one.number for one in parse_quotes(render_quotes(quotes, 800, COUNT)) if one.text]
    assert len(shown) > 50
    assert shown[-50:] == list(range(2_950, 3_000))


def test_a_message_that_is_shown_begins_with_its_first_sentence() -> None:
    quotes = [
        UserQuote(
            n,
            f"Let us now go on with part {n} of it. The valve {n * 7919} leaks at {n * 31} bar. And so on.",
        )
        for n in range(1, 80)
    ]
    shown = [one for one in parse_quotes(render_quotes(quotes, 600, COUNT)) if one.text]
    assert 5 < len(shown) < 79
    assert all(
        one.text.startswith(f"Let us now go on with part {one.number} of it.") for one in shown
    )


def test_repeated_shortening_leaves_one_mark_for_each_gap() -> None:
    kinds = [
        "Keep the limit at {} for the importer.",
        "The table is named orders_{} only.",
        "Ask Maria about {} soon.",
    ]
    texts: dict[int, str] = {}
    said: list[UserQuote] = []
    for number in range(1, 60):
        texts[number] = " ".join(
            kinds[(number + at) % 3].format(number * 31 + at) for at in range(9)
        )
        if number % 4 == 0:
            texts[number] = texts[number].replace(". ", ".\n")
        said = parse_quotes(render_quotes([*said, UserQuote(number, texts[number])], 900, COUNT))
        for one in said:
            assert f"{GAP}{GAP}" not in "".join(one.text.split())
            pieces = [piece.strip() for piece in one.text.split(GAP)]
            assert all(piece in texts[one.number] for piece in pieces)
            assert not one.text or any(pieces)


def test_a_few_letters_at_the_end_are_not_left_alone() -> None:
    line = "Please go on with the next one then, like the others before."
    said = [UserQuote(n, f"{line}{' ok' * (n % 4)}") for n in range(1, 9)]
    said += (
        UserQuote(n, f"Set the option {n} of the service to {n * 7919} at once.")
        for n in range(9, 60)
    )
    shown = [
        one.text
        for one in parse_quotes(render_quotes(said, 700, COUNT))
        if one.number < 9 and one.text
    ]
    assert shown
    assert all(text.startswith(line) for text in shown)


def test_an_image_without_words_has_its_number() -> None:
    text = render_quotes(
        [UserQuote(1, note=NO_WORDS_NOTE), UserQuote(2, "See above.")], PLENTY, COUNT
    )
    assert parse_quotes(text) == [
        UserQuote(1, note=NO_WORDS_NOTE),
        UserQuote(2, "See above."),
    ]


def test_text_is_split_at_the_ends_of_sentences() -> None:
    text = (
        "Do this: 1. first 2. second. Then stop? 不要提交。好的。\n```\ncode here; more\n```\nEnd."
    )
    pieces = [text[one.start : one.end].strip() for one in split_sentences(text)]
    assert pieces[0] == "Do this: 1. first 2. second."
    assert "".join(pieces).replace(" ", "") == text.replace("\n", "").replace(" ", "")
    minor = {text[one.start : one.end].strip(): one.is_minor for one in split_sentences(text)}
    assert minor["code here; more"]


def test_a_pasted_log_is_split_in_linear_time() -> None:
    """Each line of a block is marked once."""

    def measure(lines: int) -> float:
        gc.collect()
        begun = time.process_time()
        found = split_sentences.__wrapped__("Look:\n" + "# a\n" * lines)
        seconds = time.process_time() - begun
        assert all(sentence.is_minor for sentence in found[1:])
        return seconds

    small = max(measure(20_000) for _ in range(3))
    large = min(measure(200_000) for _ in range(2))
    assert large < 40 * small, "ten times as many lines, not a hundred times the work"


def test_texts_are_cut_at_words_and_list_numbers() -> None:
    text = "Here they are: / **1. Reservation KHIK97** goes to Oslo on Monday. / **2. Reservation LQ940Q** stays here."
    sentences = [text[piece.start : piece.end].strip() for piece in split_sentences(text)]
    assert sentences == [
        "Here they are: / **1. Reservation KHIK97** goes to Oslo on Monday.",
        "/ **2. Reservation LQ940Q** stays here.",
    ]
    words = "considerable transformations notwithstanding everybody understands " * 20
    for room in range(6, 40):
        shown = clip_tokens(words, room, COUNT)
        assert set(shown.removesuffix(GAP).split()) <= set(words.split())
        assert COUNT(shown) <= room
    assert clip_tokens("部" * 400, 30, COUNT).startswith("部" * 8)


def test_shortened_messages_with_equal_words_both_stay() -> None:
    entries = [
        UserQuote(2, "stop […]", is_shortened=True),
        UserQuote(3, "stop […]", is_shortened=True),
    ]
    assert [entry.number for entry in parse_quotes(render_quotes(entries, 100, len))] == [
        2,
        3,
    ]
    whole = [UserQuote(2, "stop"), UserQuote(3, "stop")]
    assert [entry.number for entry in parse_quotes(render_quotes(whole, 100, len))] == [3]
