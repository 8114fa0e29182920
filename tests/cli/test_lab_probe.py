"""`everthread lab probe` and `everthread lab sweep` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.replayed import talk


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "messages": talk(8, words=60)}), "utf-8")
    return path


def test_a_transcript_is_probed(everthread: Any, file: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked.json"
    asked.write_text(
        json.dumps([{"question": "Why does part 1 fail?", "evidence": "because of value 919", "category": "why"}]),
        "utf-8",
    )
    answer = everthread("lab", "probe", str(file), "--questions", str(asked), "--chain", "2", "--k", "3")
    assert answer.returncode == 0, answer.stderr
    for words in ("compressor:", "in view after 2 compactions", "or in the first 3", "tokens of 3", "why", "Probed in"):
        assert words in answer.stdout
    answer = everthread(
        "lab", "probe", str(file), str(file), "--engine", "compressor,lossless", "--window", "2500", "--json"
    )
    found = json.loads(answer.stdout)
    assert [one["engine"] for one in found] == ["compressor"] * 2 + ["lossless"] * 2
    assert {one["all"]["questions"] for one in found} == {9}
    assert all(one["all"]["lost"] == 0 for one in found)


def test_canaries(everthread: Any) -> None:
    answer = everthread(
        "lab", "probe", "--canaries", "--depth", "0.2", "--chain", "1..2", "--window", "16000", "--engine", "compressor"
    )
    assert answer.returncode == 0, answer.stderr
    for words in (
        "near-identical names",
        "superseded decisions",
        "at depth 0.2",
        "tokens in view",
        "tokens of a recall",
    ):
        assert words in answer.stdout


def test_a_grid_with_its_page(everthread: Any, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "sweep.html"
    arguments = (str(file), "--window", "4000", "--thresholds", "0.3,0.6", "--no-recall", "--workers", "1")
    answer = everthread("lab", "sweep", *arguments, "--html", str(target))
    assert answer.returncode == 0, answer.stderr
    assert "Best for claude-sonnet-4-5: compressor, threshold 0." in answer.stdout
    assert f"The page with the trade-off: {target}" in answer.stdout
    assert '<svg id="tradeoff-1"' in target.read_text("utf-8")
    found = json.loads(everthread("lab", "sweep", *arguments, "--json").stdout)
    assert [point["threshold"] for point in found["points"]] == [0.3, 0.6]
    assert found["best"]["claude-sonnet-4-5"]["ratio"] == 0.2


def test_what_cannot_be_done_is_one_line(everthread: Any, file: Path) -> None:
    for arguments, told in (
        (["probe"], "give files to probe, or --canaries"),
        (["probe", str(file), "--canaries"], "give files to probe, or --canaries, not both"),
        (
            ["probe", str(file), str(file), "--questions", "q.json"],
            "--questions belongs to one transcript; 2 were given",
        ),
        (["probe", str(file), "--chain", "1..3"], "spans are for canaries"),
        (["probe", str(file), "--k", "0"], "--k '0': '0' is not a number or a span (1..3) from 1 to 100"),
        (["probe", str(file), "--depth", "0.5"], "give --canaries too"),
        (["probe", "--canaries", "--depth", "2"], "--depth '2': '2' is not a number from 0 to 1"),
        (["probe", "--canaries", "--window", "2000"], "use a larger window, or fewer depths"),
        (["probe", "absent.json"], "absent.json: cannot be read: No such file or directory"),
        (["sweep", str(file), "--thresholds", "half"], "--thresholds 'half': 'half' is not a number from 0.05 to 0.95"),
        (["sweep", str(file), "--engines", ","], "--engines ',' names nothing"),
        (["sweep", str(file), "--engines", "nobodys"], "nobodys"),
    ):
        answer = everthread("lab", *arguments)
        assert answer.returncode in (1, 2), arguments
        assert told in answer.stderr
        assert "Traceback" not in answer.stderr
