"""Lines of an output that stand out and tell a figure."""

from __future__ import annotations

import pytest

from everthread.core.figures import FEWEST, figures, shape, states_exit

NOISE = "\n".join(
    f"2026-03-{day:02d}T09:1{day % 10}:07Z INFO node-{day} {what} id={day * 7919:08x} ms={day}"
    for day, what in enumerate(["ping", "lease renewed", "ping", "cache refreshed", "lease renewed", "ping"] * 3, 1)
)


@pytest.mark.parametrize(
    "line",
    [
        "exporter[77]: wrote 90211 rows, 14 skipped, 3.2 s",
        "WARN volume /dev/sdb2 is 91% full, 812 MB left",
        "Out of memory: Killed process 4711 (java) rss:812kB",
        "app.9c1f.js 812 kB (gzip 212 kB)",
    ],
)
def test_what_looks_like_no_other_line_stands_out(line: str) -> None:
    assert figures(f"{NOISE}\n{line}\n{NOISE}\n[exit code 0]") == [line]


def test_two_lines_of_a_kind_stand_out_too() -> None:
    lines = ["app.9c1f.js 812 kB (gzip 212 kB)", "lib.0d2e.js 1,912 kB (gzip 512 kB)"]
    assert figures("\n".join([NOISE, *lines])) == lines


@pytest.mark.parametrize(
    "text",
    [
        NOISE,
        "one line with 1 figure",
        f"{NOISE}\nnothing to count here at all",
        "\n".join(f"const value{n} = {n};" for n in range(9)) + "\ntotal of 7 things, maybe 8",
        "\n".join("a " * n + "0 " * n + "b1 c" * (n % 3) for n in range(1, 14)),
        f"{NOISE}\n" + "x 1 " * 80,
    ],
)
def test_noise_code_and_mixed_text_have_none(text: str) -> None:
    assert figures(text) == []


def test_few_lines_have_none() -> None:
    assert figures("\n".join(["same 1"] * (FEWEST - 2) + ["other words 22 and more"])) == []


def test_shapes_differ_in_figures_only() -> None:
    assert shape("12 of 30 done") == shape("7 of 1 done") != shape("12 of 30 left")
    assert states_exit("[exit code 3]")
    assert not states_exit("exit the loop after 3 tries, then wait for a while until done")
