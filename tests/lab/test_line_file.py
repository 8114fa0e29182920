"""Files of JSON lines are read a line at a time, more than once, plain or packed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from everthread.errors import TranscriptError
from everthread.lab.importers.line_file import LineFile
from everthread.lab.importers.read_logs import (
    open_lines,
    parse_log,
    read_log,
)

SESSION = [
    {
        "type": role,
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}" if number else None,
        "sessionId": "s1",
        "message": {"role": role, "content": f"{role} says {number}"},
    }
    for number, role in enumerate(("user", "assistant", "user", "assistant"))
]
LINES = "\n".join(
    ["\ufeff" + json.dumps(SESSION[0]), "", *map(json.dumps, SESSION[1:])]
)


@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_read_again_for_each_pass(tmp_path: Path, *, packed: bool) -> None:
    file = tmp_path / "session.jsonl"
    content = f"{LINES}\n[1]\n{{broken\n".encode()
    file.write_bytes(gzip.compress(content) if packed else content)
    lines = open_lines(str(file))
    assert lines is not None
    assert list(lines) == list(lines)
    assert [number for number, _ in lines] == [1, 3, 4, 5]
    assert lines.bad_lines == {6, 7}
    assert lines.first_object == SESSION[0]


def test_a_log_is_the_same_as_from_its_text(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(f"{LINES}\nnoise\n", "utf-8")
    log = read_log(str(file))
    assert log == parse_log(file.read_text("utf-8-sig"), str(file))
    assert log.warnings == ["line 6: no JSON object; skipped"]


@pytest.mark.parametrize("text", ["{}", "[1]\n[2]\n", "", "{\n}\n"])
def test_other_forms_are_not_files_of_lines(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, "utf-8")
    assert open_lines(str(file)) is None
    assert open_lines(str(tmp_path / "absent")) is None
    assert open_lines("-") is None


def test_a_packed_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl.gz"
    noise = [json.dumps({"n": number * 7919 % 104729}) for number in range(50_000)]
    file.write_bytes(gzip.compress("\n".join(noise).encode())[:-2_000])
    with pytest.raises(TranscriptError, match="cannot be unpacked"):
        list(LineFile(file, str(file)))
