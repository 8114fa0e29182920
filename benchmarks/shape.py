"""Measure how the code reads: size, packing, names, texts, and the functions that a request runs.

A function counts for a flow if it runs between the request and its answer, in any thread; work at import does not
count. The engine runs in a worker process, so its functions are counted in a compaction of the same messages here.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.code_shape.flows import PACKAGE, measure_flows
from benchmarks.code_shape.reading import measure_reading
from benchmarks.table import Row


def run() -> Iterator[Row]:
    yield from measure_reading(PACKAGE)
    yield from measure_flows()
