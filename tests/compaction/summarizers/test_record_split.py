"""Splitting: chunks fit, keep the order, and lose nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.summarizers.conversation_record import (
    RecordEntry,
    count_entry_tokens,
    cut_text,
    pack_chunks,
)
from tests.compaction.histories import COUNT

TEXTS = st.text(st.sampled_from("ab \n你é-{"), max_size=400)
PIECES = st.lists(
    st.lists(st.builds(RecordEntry, st.just("7 user"), TEXTS), max_size=4), max_size=6
)


@given(PIECES, st.integers(60, 300))
def test_chunks_fit_and_lose_nothing(pieces: list[list[RecordEntry]], room: int) -> None:
    chunks = pack_chunks(pieces, room, COUNT)
    for chunk in chunks:
        assert chunk
        assert count_entry_tokens(chunk, COUNT) <= room
    packed = "".join(entry.text for chunk in chunks for entry in chunk)
    assert packed == "".join(entry.text for piece in pieces for entry in piece)


@given(PIECES, st.integers(60, 300))
def test_a_call_and_its_results_stay_together_if_they_fit(
    pieces: list[list[RecordEntry]], room: int
) -> None:
    chunks = pack_chunks(pieces, room, COUNT)
    for piece in pieces:
        if piece and count_entry_tokens(piece, COUNT) <= room:
            chunks_by_entry = {id(entry): chunk for chunk in chunks for entry in chunk}
            chunk = chunks_by_entry[id(piece[0])]
            for entry in piece:
                assert chunks_by_entry[id(entry)] is chunk


def test_chunks_are_filled() -> None:
    pieces = [[RecordEntry("1 user", "word " * 20)] for _ in range(10)]
    each = count_entry_tokens(pieces[0], COUNT)
    chunks = pack_chunks(pieces, 3 * each, COUNT)
    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 1]


def test_a_large_group_is_cut_between_its_entries_first() -> None:
    piece = [
        RecordEntry("1 assistant calls ls", "{}"),
        RecordEntry("2 result of ls", "word " * 80),
        RecordEntry("3 result of ls", "x"),
    ]
    room = count_entry_tokens(piece, COUNT) - 1
    assert pack_chunks([piece], room, COUNT) == [piece[:2], piece[2:]]


def test_parts_of_an_entry_are_labelled() -> None:
    chunks = pack_chunks([[RecordEntry("1 user", "some words\n" * 200)]], 200, COUNT)
    labels = [entry.label for chunk in chunks for entry in chunk]
    assert labels == [f"1 user, part {n} of {len(labels)}" for n in range(1, len(labels) + 1)]
    assert len(labels) > 1
    for chunk in chunks[:-1]:
        for entry in chunk:
            assert entry.text.endswith("\n"), "cut at the ends of lines"


@given(TEXTS, st.integers(1, 50))
def test_cut_parts_join_to_the_text(text: str, room: int) -> None:
    parts = cut_text(text, room, COUNT)
    assert "".join(parts) == text
    for part in parts:
        assert COUNT(part) <= room or len(part) == 1


def test_text_is_cut_between_words() -> None:
    for part in cut_text("word " * 500, 100, COUNT):
        assert part.endswith("word ")


def test_a_huge_text_without_a_break_is_cut_too() -> None:
    parts = cut_text("x" * 2_000_000, 10_000, COUNT)
    assert sum(map(len, parts)) == 2_000_000
    assert max(map(COUNT, parts)) <= 10_000
