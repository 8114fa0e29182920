"""A sweep: the figures of single replays, in any number of processes; what is best is cheap and keeps enough."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest

from everthread.errors import EngineError
from everthread.lab.logs.base import Log, Said
from everthread.lab.replay import Facts, replay
from everthread.lab.report.scatter import Dot, Scatter, scatter
from everthread.lab.sweep import Point, Run, Setting, Sweep, sweep
from everthread.lab.sweep_page import sweep_page
from tests.lab.replayed import PLAIN, talk

CLAUDE = "claude-sonnet-4-5"
WINDOW = 6_000


def _log(turns: int, model: str = CLAUDE) -> Log:
    return Log(f"{turns} turns", "openai_chat", [Said(message) for message in talk(turns, words=100)], model=model)


def test_a_grid_gives_what_single_replays_give_in_any_number_of_processes() -> None:
    logs = [_log(6), _log(7, "gpt-4o")]
    steps: list[tuple[int, int]] = []
    found = sweep(
        logs, thresholds=(0.3,), window=WINDOW, options=PLAIN, workers=2, progress=lambda *step: steps.append(step)
    )
    assert [step for step in dict.fromkeys(steps) if step[0]] == [(1, 2), (2, 2)]
    assert found.models == [CLAUDE, "gpt-4o"]
    for point, log in zip(found.points, logs, strict=True):
        alone = replay(log, window=WINDOW, options=replace(PLAIN, threshold=0.3), compared=False, judged=True)
        facts = alone.ours.facts
        assert facts is not None
        assert point.compactions
        assert (point.compactions, point.peak) == (len(alone.compactions), alone.ours.peak)
        assert (point.cost, point.retained) == (alone.ours.cost, facts.retained / facts.total)


def test_conversations_with_one_model_are_added_up_for_every_setting() -> None:
    logs = [_log(2), _log(3, "gpt-4o")]
    grid = sweep(
        logs, thresholds=(0.3, 0.9), ratios=(0.2, 0.5), engines=("compressor", "lossless"), models=(CLAUDE,),
        window=WINDOW, options=PLAIN, workers=1,
    )  # fmt: skip
    assert grid.models == [CLAUDE]
    assert len({point.setting for point in grid.points}) == len(grid.points) == 8
    for point in grid.points:
        assert [run.source for run in point.runs] == ["2 turns", "3 turns"]
        assert point.cost == sum(run.cost or 0 for run in point.runs)


def _point(
    price: str | None, retained: int, *, threshold: float = 0.5, refused: bool = False, tokens: int = 1
) -> Point:
    setting = Setting(threshold, 0.2, "compressor")
    facts = Facts({"rules": (retained, 100 - retained, 0)})
    cost = None if price is None else Decimal(price)
    return Point(setting, CLAUDE, [Run("one", setting, CLAUDE, 9, refused, cost, tokens, 5, 1, facts, 0.1)])


def test_the_best_is_the_cheapest_of_those_that_keep_nearly_as_much() -> None:
    poor, fair, good, dear = _point("1.0", 40), _point("1.5", 92), _point("2.5", 96), _point("9", 90)
    refused = _point("0.1", 100, refused=True)
    found = Sweep([good, dear, refused, poor, fair])
    assert found.front(CLAUDE) == [poor, fair, good]
    assert found.best(CLAUDE) is fair
    assert Sweep([refused]).best(CLAUDE) is None
    unpriced = [_point(None, 50, tokens=10), _point(None, 50, tokens=5)]
    assert Sweep(unpriced).best(CLAUDE) is unpriced[1]
    figures = found.as_dict()
    assert figures["best"][CLAUDE] == {"threshold": 0.5, "ratio": 0.2, "engine": "compressor"}
    assert json.loads(json.dumps(figures))["points"][2]["refused"] == 1


def test_the_page_plots_every_setting_and_marks_the_best() -> None:
    points = [_point("1.0", 40, threshold=0.3), _point("1.5", 92), _point("1.5", 92, threshold=0.7)]
    text = sweep_page(Sweep(points))
    HTMLParser().feed(text)
    assert text.count('<circle class="dot"') == 3
    assert text.count('<circle class="ring"') == 1
    assert ">2, 3</text>" in text  # upon each other, so named together
    assert '<polyline class="front"' in text
    assert "Best: compressor, threshold 0.5, ratio 0.2. It costs $1.50 and keeps 92.0% of the facts" in text
    assert not re.search(r"https?://|@import|url\(", text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    unpriced = sweep_page(Sweep([_point(None, 50)]))
    assert "What this costs is unknown" in unpriced
    assert "<svg" not in unpriced
    assert "No setting got every conversation to its end" in sweep_page(Sweep([_point("1", 50, refused=True)]))


def test_points_are_drawn_within_the_chart_and_their_words_are_harmless() -> None:
    for values in ([(0.0, 100.0)], [(0.2604, 10.0), (0.2611, 90.0)], [(5.0, 5.0), (5.0, 5.0)]):
        dots = [Dot("<1>", "</title><b>", x, y, "<g>") for x, y in values]
        text = scatter(Scatter("c", "Title", "Told", "dollars", "facts", dots))
        HTMLParser().feed(text)
        assert "<b>" not in text
        assert "<1>" not in text
        for cx, cy in re.findall(r'class="dot" cx="([\d.-]+)" cy="([\d.-]+)"', text):
            assert 64 <= float(cx) <= 944
            assert 18 <= float(cy) <= 266
    ticks = re.findall(r">(\$[\d.]+)</text>", scatter(Scatter("c", "", "", "", "", [
        Dot("1", "", 0.2604, 1.0, "g"), Dot("2", "", 0.2611, 2.0, "g"),
    ])))  # fmt: skip
    assert len(ticks) == len(set(ticks)) > 2


def test_an_engine_nobody_has_is_told_before_anything_is_replayed() -> None:
    with pytest.raises(EngineError, match="nobodys"):
        sweep([_log(2)], engines=("nobodys",))
