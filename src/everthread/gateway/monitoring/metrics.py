"""The gateway's metrics for Prometheus."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("Requests answered, by protocol and status.", ("api", "status")),
    "rewrites": ("Requests that were changed before they were sent upstream, by kind.", ("kind",)),
    "failed_open": (
        "Decisions that failed, so that the original was forwarded, by step.",
        ("step",),
    ),
    "recalls": ("Calls of the tool `recall` that were answered here.", ()),
    "unmanaged": (
        "Requests forwarded unmanaged, by reason.",
        ("why",),
    ),
    "upstream_errors": (
        "Errors of upstreams, by upstream and status or kind.",
        ("upstream", "status"),
    ),
    "tokens": (
        "Tokens as reported by upstreams, by bucket and task.",
        ("bucket", "task"),
    ),
    "cost_dollars": ("Cost of the calls with a known price, by task.", ("task",)),
    "compactions": (
        "Compactions, by the author of the summary and whether they ran in the background.",
        ("author", "background"),
    ),
    "compaction_tokens": (
        "Tokens of histories before and after they were compacted.",
        ("side",),
    ),
    "compaction_failures": (
        "Compactions that failed or changed nothing, by kind.",
        ("kind",),
    ),
    "keepalives": ("Comments sent to clients that waited for a stream.", ()),
}
"""Counters by name, with their help text and labels."""


METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder of metrics that several processes share; prometheus-client reads it."""


class Metrics:
    """Metrics since the gateway started, in a registry of their own, because a process may run several gateways.

    The workers of one gateway share a folder (`METRICS_VARIABLE`), and each worker reports the sums of all.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._folder = os.environ.get(METRICS_VARIABLE)
        self._counters = {
            name: Counter(f"everthread_{name}", help_text, labels, registry=self._registry)
            for name, (help_text, labels) in _COUNTERS.items()
        }
        self._series: dict[tuple[Any, ...], Counter] = {}
        """A cache of counters by name and labels, because prometheus-client looks them up under a lock."""
        self._in_flight = Gauge(
            "everthread_in_flight",
            "Requests being answered now.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._first_byte = Histogram(
            "everthread_first_byte_seconds",
            "Time until the first byte of an answer, upstream included.",
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to `everthread_<name>_total`."""
        if not labels:
            self._counters[name].inc(amount)
            return
        key = (name, *labels.items())
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._counters[name].labels(**labels)
        series.inc(amount)

    def value(self, name: str, **labels: str) -> float:
        """Return the sum over all series with these labels."""
        pairs = labels.items()
        source = self._collect_workers() if self._folder else self._counters[name]
        return sum(
            sample.value
            for family in source.collect()
            for sample in family.samples
            if sample.name == f"everthread_{name}_total" and pairs <= sample.labels.items()
        )

    def set_in_flight(self, number: int) -> None:
        self._in_flight.set(number)

    def observe_first_byte(self, seconds: float) -> None:
        """Record the seconds until the first byte of an answer was sent."""
        self._first_byte.observe(seconds)

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._collect_workers() if self._folder else self._registry).decode()

    def _collect_workers(self) -> CollectorRegistry:
        """Return the metrics of all workers."""
        shared = CollectorRegistry()
        MultiProcessCollector(shared, path=self._folder)  # type: ignore[no-untyped-call]
        return shared
