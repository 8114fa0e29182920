"""Spans and metrics of each call, with OpenTelemetry's names for generative AI. Imported where its package is there.

Who runs the gateway decides where they go, as with every program: by the SDK and its `OTEL_…` variables. No words of a
conversation are told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry.metrics import Histogram
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from everthread._version import __version__
from everthread.gateway.base import Outcome, Outgoing
from everthread.gateway.observability import request_id
from everthread.gateway.router import Family, Upstream

_NAME = "everthread.gateway"
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


@dataclass(frozen=True, slots=True)
class Telemetry:
    tracer: Tracer
    tokens: Histogram
    seconds: Histogram

    @classmethod
    def of_process(cls) -> Telemetry | None:
        """By the providers that were set up for the process; None where none was."""
        tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        if any(hasattr(provider, "shutdown") for provider in (tracers, meters)):  # as all have that do something
            return cls.by(tracers, meters)
        return None

    @classmethod
    def by(cls, tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> Telemetry:
        meter = meters.get_meter(_NAME, __version__)
        return cls(
            tracers.get_tracer(_NAME, __version__),
            meter.create_histogram(
                "gen_ai.client.token.usage", "{token}", "Tokens used by a call.",
                explicit_bucket_boundaries_advisory=_TOKENS,
            ),
            meter.create_histogram(
                "gen_ai.client.operation.duration", "s", "How long a call took.",
                explicit_bucket_boundaries_advisory=_SECONDS,
            ),
        )  # fmt: skip

    def begin(self, upstream: Upstream, family: Family, model: str | None, headers: Mapping[str, str]) -> ObservedCall:
        """A call to an upstream; a client's own trace goes on with it."""
        address = urlsplit(upstream.root)
        common: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": family,
            "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
        }
        if model:
            common["gen_ai.request.model"] = model
        attributes = {**common, "everthread.request.id": request_id()}
        name = f"chat {model}" if model else "chat"
        span = self.tracer.start_span(name, extract(headers), SpanKind.CLIENT, attributes)
        return ObservedCall(self, span, common, time.monotonic())


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One call, with all its tries."""

    telemetry: Telemetry
    span: Span
    common: dict[str, Any]
    started_at: float

    def end(self, sent: Outgoing, outcome: Outcome, thread: str) -> None:
        """The client has its answer, or has none."""
        common, reply = dict(self.common), outcome.reply
        if reply is not None and reply.model:
            common["gen_ai.response.model"] = reply.model
        if not 200 <= outcome.status < 300:
            common["error.type"] = str(outcome.status or "no_answer")
            self.span.set_status(Status(StatusCode.ERROR))
        seconds = time.monotonic() - self.started_at
        if self.span.is_recording():
            self.span.set_attributes({**common, **_span_attributes(sent, outcome, thread)})
        self.telemetry.seconds.record(seconds, common)
        if outcome.usage is not None:
            used = {"input": outcome.usage.prompt_tokens, "output": outcome.usage.output_tokens}
            for kind, number in used.items():
                self.telemetry.tokens.record(number, {**common, "gen_ai.token.type": kind})
        self.span.end()


def _span_attributes(sent: Outgoing, outcome: Outcome, thread: str) -> dict[str, Any]:
    """Attributes for the span only: metrics would have a series for each value."""
    reply, usage = outcome.reply, outcome.usage
    attributes: dict[str, Any] = {
        "http.response.status_code": outcome.status,
        "gen_ai.conversation.id": thread,
        "gen_ai.conversation.compacted": sent.compactions > 0,
        "gen_ai.response.id": reply.id if reply is not None else "",
        "gen_ai.response.finish_reasons": [reply.stop] if reply is not None and reply.stop else [],
    }
    known = {name: value for name, value in attributes.items() if value}
    if usage is None:
        return known
    return known | {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }
