"""Ids, logs, figures and spans show the gateway's work, and never message text or a credential."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from everthread.config import parse_config
from everthread.factory.gateways import open_gateway
from everthread.gateway.contracts import IncomingRequest, Outgoing
from everthread.gateway.filters.telemetry import TelemetryFeature
from everthread.gateway.monitoring.log_lines import JsonLines
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.raw_http import (
    JSON,
    PassThroughManager,
    fixed_answer,
    raw_gateway,
    send_get,
    send_post,
)

KEY = "sk-proj-0123456789abcdefghijABCDEFGHIJ0123456789abcdefghij"
SECRET = "the ledger of the northern branch"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def log_lines() -> Iterator[list[dict[str, Any]]]:
    """The log lines, parsed."""
    lines: list[Any] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    handler = Listening()
    logger = logging.getLogger("everthread")
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    yield lines
    logger.setLevel(before)
    logger.removeHandler(handler)


async def test_every_answer_has_an_id(log_lines: list[dict[str, Any]]) -> None:
    """The upstream's id stays; the gateway's is beside it, and in the log."""
    theirs = [*JSON, (b"X-Request-Id", b"theirs")]
    async with raw_gateway(fixed_answer(200, theirs, b"{}")) as (url, _):
        passed = await send_post(url, "/v1/messages", b"{}", *JSON)
        ours = await send_get(url, "/healthz")
        refused = await send_get(url, "/v1/models", host="evil.example")
    assert passed.header_values["x-request-id"] == "theirs"
    ids = [response.header_values["x-everthread-request"] for response in (passed, ours, refused)]
    assert len(set(ids)) == 3
    assert [response.header_values["x-request-id"] for response in (ours, refused)] == ids[1:]
    [line] = [line for line in log_lines if line.get("path") == "/v1/messages"]
    assert line["request"] == ids[0]
    assert line["status"] == 200
    assert line["level"] == "info"


async def test_logs_figures_and_records_of_a_compacted_thread(
    tmp_path: Path, log_lines: list[dict[str, Any]]
) -> None:
    async with Provider([ServedModel("claude-sonnet-5", 6_000, shows="max_model_len")]) as provider:
        config = parse_config(
            f"gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}], native: {{enabled: false}}}}\n"
            f"store: {{url: 'sqlite:///{tmp_path / 'seen.db'}'}}\n"
        )
        async with open_gateway(config) as running:
            client = anthropic.AsyncAnthropic(
                base_url=running.url,
                api_key=KEY,
                max_retries=0,
            )
            history: list[Any] = []
            headers: Any = {}
            for number in range(12):
                history.append(
                    {
                        "role": "user",
                        "content": f"Entry {number}: {f'{SECRET} was settled. ' * 60}",
                    }
                )
                answer = await client.messages.with_raw_response.create(
                    model="claude-sonnet-5", messages=history, max_tokens=100
                )
                headers = answer.headers
                history.append({"role": "assistant", "content": (await answer.parse()).content})
            await client.close()
            async with httpx2.AsyncClient(timeout=60) as http:
                figures = (await http.get(f"{running.url}/metrics")).text
    compaction_count = int(headers["x-everthread-compactions"])
    assert compaction_count >= 2
    assert 'everthread_compactions_total{author="journal",background="' in figures
    assert 'everthread_compaction_tokens_total{side="after"}' in figures
    assert 'everthread_tokens_total{bucket="input",task="main"}' in figures
    assert 'everthread_cost_dollars_total{task="main"}' in figures
    thread = headers["x-everthread-thread"]
    rewrites = [line for line in log_lines if line.get("event") == "compaction_done"]
    threads = {line["thread"] for line in rewrites}
    assert threads == {thread}
    assert [line["count"] for line in rewrites][:2] == [1, 2]
    answered = [line for line in log_lines if line.get("path") == "/v1/messages"]
    assert len(answered) == 12
    threads = {line["thread"] for line in answered}
    assert threads == {thread}
    assert answered[-1]["request"] == headers["x-everthread-request"]
    all_output = json.dumps(log_lines) + figures
    assert SECRET not in all_output
    assert KEY not in all_output


class Compacted(PassThroughManager):
    thread = "t1"

    async def outgoing(self, incoming: IncomingRequest) -> Outgoing:
        return Outgoing(incoming.body.raw, compaction_count=2)


async def test_spans_and_metrics_have_the_names_for_generative_ai() -> None:
    spans = InMemorySpanExporter()
    reader = InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = TelemetryFeature.from_providers(tracers, MeterProvider([reader]))
    texts = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": SECRET},
            }
        ],
        "usage": {
            "prompt_tokens": 30,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 10},
        },
    }
    for status, body in (
        (200, json.dumps(texts).encode()),
        (429, b'{"error": {"message": "slow down"}}'),
    ):
        async with (
            raw_gateway(fixed_answer(status, JSON, body), Compacted(), telemetry=telemetry) as (
                url,
                upstream,
            ),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
        ):
            headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            messages: Any = [{"role": "user", "content": SECRET}]
            create = client.chat.completions.create
            try:
                await create(model="gpt-4o", messages=messages, extra_headers=headers)
            except openai.RateLimitError:
                assert status == 429
            assert upstream.received[0].header_values["traceparent"] == headers["traceparent"], (
                "passed on as it came"
            )
    fine, failed = spans.get_finished_spans()
    assert fine.name == "chat gpt-4o"
    assert fine.kind == SpanKind.CLIENT
    assert f"{fine.context.trace_id:032x}" == TRACE
    attributes = dict(fine.attributes or {})
    assert attributes.pop("everthread.request.id")
    assert attributes.pop("server.port")
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o-2024",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.conversation.id": "t1",
        "gen_ai.conversation.compacted": True,
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 10,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
    }
    assert (failed.attributes or {})["error.type"] == "429"
    assert not failed.status.is_ok
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    points: Any = metrics["gen_ai.client.token.usage"].data.data_points
    assert {(point.attributes["gen_ai.token.type"], point.sum) for point in points} == {
        ("input", 30),
        ("output", 4),
    }
    durations: Any = metrics["gen_ai.client.operation.duration"].data.data_points
    assert sum(point.count for point in durations) == 2
    assert SECRET not in str([span.to_json() for span in (fine, failed)])
