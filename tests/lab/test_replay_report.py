"""The page: whole, self-contained, readable without colours, eyes or scripts, and safe with any name in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from everthread.gateway.dashboard.charts import Chart, Line, draw_chart, format_tick
from everthread.lab.replay import Replay, replay
from everthread.lab.replay.report import render_report
from tests.lab.recorded_histories import PLAIN, make_history

HOSTILE = '</script><script>alert("x")</script>&<b>.json'
VOID = frozenset({"meta", "line", "path", "polyline", "polygon"})


class _Page(HTMLParser):
    """Everything a test asks a page for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        name = attributes.get("id")
        if name:
            self.ids.append(name)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def found() -> Replay:
    return replay(make_history(30), model="claude-sonnet-4-5", window=12_000, options=PLAIN)


def test_the_page_is_self_contained(found: Replay) -> None:
    text = render_report([found, replace(found, source=HOSTILE)])
    read = _Page(text)
    assert read.open == []
    assert len(read.ids) == len(set(read.ids))
    assert not re.search(r"https?://|@import|url\(", text)
    assert not any(
        {"src", "onclick", "onload"} & attributes.keys() for _, attributes in read.elements
    )
    assert all(
        str(attributes["href"]).startswith("#")
        for _, attributes in read.elements
        if "href" in attributes
    )
    assert "alert" not in "".join(
        text
        for text in re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
        if "JSON.parse" not in text
    )
    assert HOSTILE in read.texts
    assert "default-src 'none'" in str(read.of("meta"))
    assert read.of("html")[0]["lang"] == "en"
    assert "prefers-color-scheme: dark" in text


def test_every_chart_has_a_text_and_its_values(found: Replay) -> None:
    text = render_report([found])
    read = _Page(text)
    charts = [attributes for attributes in read.of("svg") if attributes["class"] == "chart wide"]
    assert [chart["id"] for chart in charts] == ["context-1", "cost-1", "cache-1"]
    for chart in charts:
        assert chart["role"] == "img"
        assert set(str(chart["aria-labelledby"]).split()) <= set(read.ids)
        held = re.search(
            rf'<script type="application/json" id="{chart["id"]}-data">(.*?)</script>',
            text,
        )
        assert held is not None
        lines = json.loads(held[1])["lines"]
        assert int(str(chart["data-count"])) == max(len(line["values"]) for line in lines) == 60
    text = "".join(piece.partition("</svg>")[0] for piece in text.split('class="chart wide"')[1:])
    marks = re.findall(r'<g class="mark"><title>compaction before call (\d+):', text)
    assert [int(mark) for mark in marks] == [made.call + 1 for made in found.compactions]
    assert text.count('<g class="miss">') == sum(
        bool(call.missed_tokens) for call in found.everthread.calls
    )
    shown = " ".join(read.texts)
    for words in (
        "Ways compared",
        "Compactions",
        "Cache misses",
        "Facts at the end",
        "then refused",
        "Notes",
    ):
        assert words in shown
    assert all(attributes.get("scope") == "col" for attributes in read.of("th"))


def test_the_headline_is_what_continued_then_facts_then_dollars(found: Replay) -> None:
    ours = found.everthread
    cached = found.strategy("cached")
    saved = found.share_saved_against(cached)
    assert saved is not None
    text = render_report(
        [found],
        command="everthread replay log.json --html page.html",
        date="2026-01-31 09:30 UTC",
    )
    read = _Page(text)
    figures = re.findall(
        r'<li( class="lead")?><b>([^<]+)</b><span class="label">([^<]+)</span>', text
    )
    beyond = len(ours.calls) - len(cached.calls)
    assert figures[0] == (' class="lead"', f"{beyond:,} calls", "beyond the window")
    assert "facts kept" in figures[1][2]
    assert figures[-1][2] == f"saved, {saved:.1%}"
    shown = " ".join(read.texts)
    assert "everthread replay log.json --html page.html" in shown
    assert "2026-01-31 09:30 UTC" in shown
    written = [one for one in found.compactions if one.summary]
    assert text.count("<summary>Summary before call") == len(written) > 0
    assert (
        "src/part_0.py" in shown.split("The facts by name")[1]
        or "part_0" in shown.split("The facts by name")[1]
    )
    assert "no caching" not in shown
    assert "no management, no caching" in " ".join(
        _Page(render_report([found], show_uncached=True)).texts
    )


def test_several_replays_begin_with_an_overview(found: Replay) -> None:
    text = render_report([found, replace(found, source="other.json")])
    head = text.split('<section id="replay-1"')[0]
    assert "All conversations" in head
    assert 'href="#replay-2">other.json</a>' in head
    assert 'class="lead"' in head


def test_a_page_without_prices_facts_or_compactions(found: Replay) -> None:
    short = replay(make_history(1, words=2), model="nobodys-model", window=12_000, options=PLAIN)
    ways = [replace(way, facts=None) for way in short.strategies]
    text = render_report([replace(short, strategies=ways)])
    read = _Page(text)
    assert [chart["id"] for chart in read.of("svg") if chart["class"] == "chart wide"] == [
        "context-1",
        "cache-1",
    ]
    assert "The cost is unknown" in text
    assert "Facts at the end" not in text
    assert "unknown" in text


def test_one_value_and_none_can_be_drawn() -> None:
    for values in ([5.0], [0.0], []):
        _Page(draw_chart(Chart("c", "Title", "Told", "tokens", [Line("one", "a", values)])))
    assert [format_tick(value, "$") for value in (0.0, 0.005, 0.5, 2.0, 1_200.0)] == [
        "$0",
        "$0.005",
        "$0.50",
        "$2",
        "$1,200",
    ]
    assert [format_tick(value, "tokens") for value in (0.0, 500, 12_500, 2_000_000)] == [
        "0",
        "500",
        "12.5k",
        "2M",
    ]
