"""Counters and a histogram, in the text form Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_HELP = {
    "everthread_requests_total": "Requests answered, by protocol and status.",
    "everthread_rewrites_total": "Requests that did not go upstream as they came, by kind.",
    "everthread_failed_open_total": "Decisions that failed, so that the original was forwarded, by step.",
    "everthread_unmanaged_total": "Requests passed on without a look into them, by the reason.",
    "everthread_upstream_errors_total": "Errors of upstreams, by upstream and status or kind.",
    "everthread_tokens_total": "Tokens as reported by upstreams, by bucket and task.",
    "everthread_cost_dollars_total": "Dollars, of the calls whose price is known, by task.",
    "everthread_compactions_total": "Rewrites made, by who wrote the summary and whether anybody waited for it.",
    "everthread_compaction_tokens_total": "Tokens of histories before and after they were compacted.",
    "everthread_compaction_failures_total": "Compactions that failed or came to nothing, by kind.",
    "everthread_keepalives_total": "Comments sent to clients that waited for a stream.",
}
_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """What happened since the process started."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[_Labels, float]] = {name: {} for name in _HELP}
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self.in_flight = 0

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to `everthread_<name>_total`."""
        counts = self._counts[f"everthread_{name}_total"]
        key = tuple(sorted(labels.items()))
        counts[key] = counts.get(key, 0) + by

    def value(self, name: str, **labels: str) -> float:
        """The sum of what has at least these labels."""
        wanted = set(labels.items())
        counts = self._counts[f"everthread_{name}_total"]
        return sum(number for key, number in counts.items() if wanted <= set(key))

    def took(self, seconds: float) -> None:
        """Until the first byte of an answer went to the client."""
        at = next((index for index, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))
        self._buckets[at] += 1
        self._seconds += seconds

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, words in _HELP.items():
            yield f"# HELP {name} {words}"
            yield f"# TYPE {name} counter"
            for labels, number in sorted(self._counts[name].items()):
                yield f"{name}{_shown(labels)} {number}"
        yield "# HELP everthread_in_flight Requests being answered now."
        yield "# TYPE everthread_in_flight gauge"
        yield f"everthread_in_flight {self.in_flight}"
        name = "everthread_first_byte_seconds"
        yield f"# HELP {name} Time until the first byte of an answer, upstream included."
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, number in zip([*map(str, _BOUNDS), "+Inf"], self._buckets, strict=True):
            total += number
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._seconds:.6f}"
        yield f"{name}_count {total}"


def _shown(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
