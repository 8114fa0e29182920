"""Record a span and metrics for each call, with OpenTelemetry's names for generative AI.

Imported only if the package `opentelemetry` is installed. The SDK and its `OTEL_…` variables decide where the data go.
No text of a conversation is recorded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry.metrics import Histogram
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from everthread._version import __version__
from everthread.gateway.features import Feature, Filter
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.monitoring.log_lines import get_request_id
from everthread.gateway.router import find_provider
from everthread.thread.caller.caller_request import Outcome

_METER_NAME = "everthread.gateway"
_TOKEN_BUCKETS = (
    1,
    4,
    16,
    64,
    256,
    1024,
    4096,
    16384,
    65536,
    262144,
    1048576,
    4194304,
    16777216,
    67108864,
)
_SECONDS_BUCKETS = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)


@dataclass(frozen=True, slots=True)
class TelemetryFeature(Feature):
    """The tracer and the histograms of this process."""

    tracer: Tracer
    tokens: Histogram
    seconds: Histogram

    @classmethod
    def from_global_providers(cls) -> TelemetryFeature | None:
        """Use the providers that were set up for the process; return None if there are none."""
        tracer_provider = trace.get_tracer_provider()
        meter_provider = metrics.get_meter_provider()
        # The default providers, which record nothing, have no `shutdown`.
        if any(hasattr(provider, "shutdown") for provider in (tracer_provider, meter_provider)):
            return cls.from_providers(tracer_provider, meter_provider)
        return None

    @classmethod
    def from_providers(
        cls,
        tracer_provider: trace.TracerProvider,
        meter_provider: metrics.MeterProvider,
    ) -> TelemetryFeature:
        meter = meter_provider.get_meter(_METER_NAME, __version__)
        return cls(
            tracer_provider.get_tracer(_METER_NAME, __version__),
            meter.create_histogram(
                "gen_ai.client.token.usage",
                unit="{token}",
                description="Tokens used by a call.",
                explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
            ),
            meter.create_histogram(
                "gen_ai.client.operation.duration",
                unit="s",
                description="How long a call took.",
                explicit_bucket_boundaries_advisory=_SECONDS_BUCKETS,
            ),
        )

    def make_managed_filter(self, managed_exchange: ManagedExchange) -> Filter:
        """Begin the span of a managed request; it continues the client's own trace."""
        request = managed_exchange.exchange.request
        model = request.model
        address = urlsplit(request.upstream.root_url)
        shared_attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": find_provider(managed_exchange.incoming.api),
            "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
        }
        if model:
            shared_attributes["gen_ai.request.model"] = model
        attributes = {**shared_attributes, "everthread.request.id": get_request_id()}
        name = f"chat {model}" if model else "chat"
        span = self.tracer.start_span(
            name, extract(managed_exchange.incoming.head.headers), SpanKind.CLIENT, attributes
        )
        return TelemetryFilter(self, managed_exchange, span, shared_attributes=shared_attributes)


class TelemetryFilter(Filter):
    """The span of one call, with all its attempts."""

    def __init__(
        self,
        telemetry: TelemetryFeature,
        managed_exchange: ManagedExchange,
        span: Span,
        *,
        shared_attributes: dict[str, Any],
    ) -> None:
        self._telemetry = telemetry
        self._managed_exchange = managed_exchange
        self._span = span
        self._shared_attributes = shared_attributes
        """Attributes of both the span and the metrics."""
        self._started_at = time.monotonic()

    def finish(self, outcome: Outcome) -> Outcome:
        """End the span and record the metrics."""
        shared_attributes = dict(self._shared_attributes)
        reply = outcome.reply
        if reply is not None and reply.model:
            shared_attributes["gen_ai.response.model"] = reply.model
        if not 200 <= outcome.status < 300:
            shared_attributes["error.type"] = str(outcome.status or "no_answer")
            self._span.set_status(Status(StatusCode.ERROR))
        seconds = time.monotonic() - self._started_at
        if self._span.is_recording():
            self._span.set_attributes(
                {**shared_attributes, **_make_span_attributes(self._managed_exchange, outcome)}
            )
        self._telemetry.seconds.record(seconds, shared_attributes)
        if outcome.usage is not None:
            token_counts = {
                "input": outcome.usage.prompt_tokens,
                "output": outcome.usage.output_tokens,
            }
            for kind, number in token_counts.items():
                self._telemetry.tokens.record(
                    number, {**shared_attributes, "gen_ai.token.type": kind}
                )
        self._span.end()
        return outcome


def _make_span_attributes(managed_exchange: ManagedExchange, outcome: Outcome) -> dict[str, Any]:
    """Return the attributes for the span only. As metric attributes they would create too many series."""
    reply = outcome.reply
    usage = outcome.usage
    attributes: dict[str, Any] = {
        "http.response.status_code": outcome.status,
        "gen_ai.conversation.id": managed_exchange.thread,
        "gen_ai.conversation.compacted": managed_exchange.outgoing.compaction_count > 0,
        "gen_ai.response.id": reply.id if reply is not None else "",
        "gen_ai.response.finish_reasons": [reply.stop] if reply is not None and reply.stop else [],
    }
    filled_attributes = {name: value for name, value in attributes.items() if value}
    if usage is None:
        return filled_attributes
    return filled_attributes | {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }
