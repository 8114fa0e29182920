"""The window in force, and the windows that servers report."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from everthread.core.types import Api
from everthread.lab.provider import Provider
from everthread.lab.provider.served_models import ServedModel, WindowField
from everthread.providers.catalog import (
    EndpointReport,
    ask_endpoint,
    make_learnt_window,
    make_models_url,
    read_window_betas,
    resolve_window,
)
from tests.wire.recording import Scripted, json_reply, recording_server

MISSING = json_reply({"error": "no"}, status=404)


async def report_9000() -> EndpointReport:
    return EndpointReport(9_000, "http://x/v1/models (context_length)")


async def report_nothing() -> EndpointReport:
    return EndpointReport(None, note="The server did not tell the window.")


async def fail_if_asked() -> EndpointReport:
    raise AssertionError("the server need not be asked")


LONG_CONTEXT = read_window_betas({"Anthropic-Beta": "context-1m-2025-08-07, other"})
KNOWN_LIMIT = {
    "learnt_window": make_learnt_window(40_000, "the provider stated it"),
    "ask_server": fail_if_asked,
}


@pytest.mark.parametrize(
    ("model", "options", "tokens", "source"),
    [
        ("gpt-4o", {"setting": 50_000, **KNOWN_LIMIT}, 40_000, "learnt"),
        ("gpt-4o", {"setting": 30_000, **KNOWN_LIMIT}, 30_000, "setting"),
        (
            "gpt-4o",
            {"setting": 30_000, "ask_server": fail_if_asked},
            30_000,
            "setting",
        ),
        ("gpt-4o", KNOWN_LIMIT, 40_000, "learnt"),
        ("gpt-4o", {"ask_server": report_9000}, 9_000, "endpoint"),
        ("gpt-4o", {"ask_server": report_nothing}, 128_000, "catalogue"),
        ("gpt-4o", {"betas": LONG_CONTEXT}, 128_000, "catalogue"),
        ("claude-sonnet-4-5", {}, 200_000, "catalogue"),
        (
            "claude-sonnet-4-5",
            {"ask_server": report_9000, "betas": LONG_CONTEXT},
            1_000_000,
            "request",
        ),
        (
            "claude-sonnet-4-5",
            {"setting": 50_000, "betas": LONG_CONTEXT},
            50_000,
            "setting",
        ),
        ("nobody-knows-me", {"ask_server": report_nothing}, 128_000, "default"),
    ],
)
async def test_chooses_the_window_by_the_most_reliable_source(
    model: str, options: dict[str, Any], tokens: int, source: str
) -> None:
    window = await resolve_window(model, **options)
    assert (window.tokens, window.source) == (tokens, source)
    assert f"{tokens:,}" in str(window)


async def test_explains_a_guessed_window() -> None:
    guess = await resolve_window("nobody-knows-me", ask_server=report_nothing)
    assert "nobody-knows-me" in guess.sentence
    assert "model.context_length" in guess.sentence
    assert guess.fallback_reason == "The server did not tell the window."


async def test_reads_long_context_headers() -> None:
    beta = {"Anthropic-Beta": "prompt-caching-2024-07-31, context-1m-2025-08-07"}
    assert read_window_betas(beta) == "context-1m-2025-08-07"
    assert read_window_betas({"X-Title": "x"}) == read_window_betas(None) == ""


@pytest.mark.parametrize("shows", get_args(WindowField))
@pytest.mark.parametrize("api", ["openai_chat", "anthropic"])
async def test_reads_the_window_from_the_list_of_models(shows: WindowField, api: Api) -> None:
    async def run() -> EndpointReport:
        served = [
            ServedModel("a/b", 7_777, shows=shows),
            ServedModel("other", 5_555, shows=shows),
        ]
        async with Provider(served) as provider:
            base = provider.url if api == "anthropic" else f"{provider.url}/v1"
            return await ask_endpoint(base, "a/b", api=api, api_key="k")

    report = await run()
    assert report.window == 7_777
    assert "/v1/models/a/b" in report.source


async def asked(
    *replies: Scripted, model: str = "m", api: Api = "openai_chat", **options: Any
) -> EndpointReport:
    with recording_server(replies) as server:
        base = server.url if api == "anthropic" else f"{server.url}/v1"
        return await ask_endpoint(base, model, api=api, **options)


def listing(*entries: dict[str, Any]) -> Scripted:
    return json_reply({"object": "list", "data": list(entries)})


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"context_length": 9_000}, 9_000),
        ({"max_model_len": 9_000}, 9_000),
        ({"max_context_length": 9_000}, 9_000),
        ({"context_window": "9000"}, 9_000),
        ({"max_input_tokens": 9_000}, 9_000),
        ({"meta": {"n_ctx": 9_000, "n_ctx_train": 70_000}}, 9_000),
        ({"context_length": 9_000, "top_provider": {"context_length": 6_000}}, 6_000),
        ({"max_context_length": 70_000, "loaded_context_length": 9_000}, 9_000),
        ({"context_length": True}, None),
        ({"context_length": -1}, None),
        ({"context_length": None}, None),
        ({"context_length": 12}, None),
    ],
)
async def test_reads_window_fields(entry: dict[str, Any], window: int | None) -> None:
    other = {"id": "n", "context_length": 1_111}
    assert (await asked(MISSING, listing(other, {"id": "m", **entry}), MISSING)).window == window


async def test_prefers_the_running_window_to_the_trained_one() -> None:
    trained = listing({"id": "m", "meta": {"n_ctx_train": 70_000}})
    props = json_reply({"default_generation_settings": {"n_ctx": 4_096}, "total_slots": 1})
    assert (await asked(MISSING, trained, props)).window == 4_096
    assert (await asked(MISSING, trained, MISSING)).window == 70_000


async def test_takes_the_only_model_of_a_server() -> None:
    assert (
        await asked(MISSING, listing({"id": "/models/x.gguf", "max_model_len": 4_096}))
    ).window == 4_096
    several = listing({"id": "x", "max_model_len": 4_096}, {"id": "y", "max_model_len": 4_096})
    assert (await asked(MISSING, several, MISSING)).window is None


@pytest.mark.parametrize(
    "strange",
    [
        Scripted((b"<html>",)),
        json_reply([1, 2]),
        json_reply({"data": "x"}),
        json_reply({"data": [1, None]}),
        MISSING,
    ],
)
async def test_reports_no_window_for_an_unusable_answer(
    strange: Scripted,
) -> None:
    report = await asked(strange, strange, strange)
    assert report.window is None
    assert report.note


async def test_names_an_unreachable_server() -> None:
    with recording_server([]) as server:
        url = server.url
    report = await ask_endpoint(f"{url}/v1", "m")
    assert report.window is None
    assert url in report.note
    assert "ConnectError" in report.note


async def test_does_not_ask_providers_that_state_no_windows() -> None:
    report = await ask_endpoint("https://api.openai.com/v1", "gpt-5")
    assert (report.window, "api.openai.com" in report.note) == (None, True)


async def test_sends_the_key_in_the_header_of_the_protocol() -> None:
    answer = json_reply({"id": "m", "max_input_tokens": 9_000})
    for api, header, value in (
        ("openai_chat", "authorization", "Bearer k"),
        ("anthropic", "x-api-key", "k"),
    ):
        with recording_server([answer]) as server:
            base = server.url if api == "anthropic" else f"{server.url}/v1"
            report = await ask_endpoint(base, "m", api=api, api_key="k")  # type: ignore[arg-type] # a literal
        assert server.requests[0].headers[header] == value
        assert json.dumps(report.window) == "9000"


def test_models_url_with_and_without_a_version() -> None:
    for base in (
        "https://models.example",
        "https://models.example/v1",
        "https://models.example/v1/",
    ):
        assert make_models_url(base, "anthropic") == "https://models.example/v1/models"
    assert (
        make_models_url("https://models.example/v1/", "openai_chat")
        == "https://models.example/v1/models"
    )


MISSING = json_reply({"error": "not found"}, status=404)
OLLAMA_LIST = listing({"id": "m", "object": "model", "owned_by": "library"})


@pytest.mark.parametrize(
    ("shown", "window", "where"),
    [
        (
            {
                "parameters": "stop x\nnum_ctx                        8192",
                "model_info": {"llama.context_length": 131_072},
            },
            8_192,
            "num_ctx",
        ),
        (
            {"model_info": {"llama.context_length": 131_072}},
            131_072,
            "llama.context_length",
        ),
        ({"model_info": {"general.architecture": "llama"}}, None, ""),
        ([], None, ""),
    ],
)
async def test_asks_ollama_for_the_window(shown: Any, window: int | None, where: str) -> None:
    report = await asked(OLLAMA_LIST, OLLAMA_LIST, MISSING, json_reply(shown))
    assert report.window == window
    assert where in report.source


async def test_reports_no_window_if_the_server_is_not_ollama() -> None:
    report = await asked(OLLAMA_LIST, OLLAMA_LIST, MISSING, MISSING)
    assert report.window is None
