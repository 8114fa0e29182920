"""Tool results as tables: the same values, the same bytes each time, only where that saves a third."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.outputs import as_table, table_results

ROWS = [{"identifier": number, "name_of_branch": f"branch {number}", "balance_total": None} for number in range(20)]
TEXT = json.dumps(ROWS)


def read_table(table: str) -> list[dict[str, Any]]:
    """What a reader of the table understands."""
    keys, *rows = ([_value(cell) for cell in line.split("|")] for line in table.split("\n")[1:])
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def test_keys_stand_once_and_every_value_is_there() -> None:
    table = as_table(TEXT)
    assert table is not None
    assert table.startswith("[20 rows, the same values as in the JSON result; cells are separated by |]\n")
    assert table.count("name_of_branch") == 1
    assert read_table(table) == ROWS
    assert as_table(TEXT) == table
    assert "stored as output:0123456789abcdef;" in (as_table(TEXT, "output:0123456789abcdef") or "")


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["1", "true", "a|b", " x"])
)
_CELLS = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))


@given(st.lists(st.tuples(_CELLS, _CELLS), min_size=2, max_size=6))
def test_a_table_is_read_back_as_it_was(cells: list[tuple[Any, Any]]) -> None:
    long = "a_key_that_is_so_long_that_it_pays_to_write_it_down_only_once_" * 4
    rows = [{f"{long}1": one, f"{long}2": other} for one, other in cells]
    table = as_table(json.dumps(rows))
    assert table is None or read_table(table) == rows


def test_numbers_stay_as_they_were_written() -> None:
    text = (
        "[" + ",".join('{"the_price_of_it": 1.50, "nested_figures_of_it": [2.0, {"a": 1e3}]}' for _ in range(9)) + "]"
    )
    assert '1.50|[2.0,{"a":1e3}]' in (as_table(text) or "")


@pytest.mark.parametrize(
    "text",
    [
        "short", "x" * 500, "[" + "x" * 500, json.dumps({"rows": ROWS}), json.dumps([*ROWS, 1]),
        json.dumps([*ROWS, {"identifier": 1}]), json.dumps([{}] * 300), json.dumps([{"a": "x" * 500}]),
        json.dumps([{"a": "x" * 300}, {"a": "y" * 300}]), TEXT.replace("null", "NaN"),
        TEXT.replace('"identifier"', '"balance_total": 1, "identifier"'), "[" * 100_000,
    ],
)  # fmt: skip
def test_whatever_is_no_such_list_stays_as_it_is(text: str) -> None:
    assert as_table(text) is None


def test_results_of_the_three_protocols() -> None:
    table = as_table(TEXT)
    assert table_results({"role": "tool", "content": TEXT}) == {"role": "tool", "content": table}
    item = {"type": "function_call_output", "call_id": "c", "output": TEXT}
    assert table_results(item) == {**item, "output": table}
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": TEXT}]}
    said = {"type": "text", "text": TEXT}
    made = table_results({"role": "user", "content": [block, said]})
    assert made["content"] == [{**block, "content": [{"type": "text", "text": table}]}, said]


@pytest.mark.parametrize(
    "value",
    [
        "text", {"role": "user", "content": TEXT}, {"role": "assistant", "content": None},
        {"role": "tool", "content": [{"type": "image"}]}, {"role": "tool", "content": [1, 2]},
        {"role": "tool", "content": None}, {"role": "user", "content": [{"type": "text", "text": TEXT}]},
    ],
)  # fmt: skip
def test_what_is_no_result_stays_the_same_object(value: Any) -> None:
    assert table_results(value) is value
