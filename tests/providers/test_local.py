"""The real thing: a small model in this process, reached by each of the three protocols."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.messages import text_of
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.providers.catalog import ask_endpoint
from everthread.providers.local import LocalModel
from tests.apis import APIS
from tests.providers.http_models import collect_pieces, failure_of

HELLO = ModelRequest(
    "smollm2", [{"role": "user", "content": "Say hello."}], params={"temperature": 0}
)


@pytest.mark.parametrize("api", APIS)
async def test_answers_streams_and_refuses_an_overflow(local_file: Path, api: Api) -> None:
    model = LocalModel(local_file, name="smollm2", window=512, api=api, max_tokens=8)
    try:
        whole = await model.complete(HELLO)
        deltas, [streamed] = await collect_pieces(model, HELLO)
        assert text_of(whole.message)
        assert text_of(streamed.message) == text_of(whole.message)
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == text_of(
            whole.message
        )
        for reply in (whole, streamed):
            usage = normalize_usage(reply.usage, api=api)
            assert usage.prompt_tokens > 10
            assert 1 <= usage.output_tokens <= 8
        long = replace(HELLO, messages=[{"role": "user", "content": "word " * 2_000}])
        for stream in (False, True):
            verdict = classify_error(await failure_of(model, long, stream=stream))
            assert (verdict.kind, verdict.context_limit) == ("prompt_too_long", 512)
            assert (verdict.input_tokens or 0) > 2_000
        await _asked_by_a_stranger(model)
    finally:
        await model.aclose()


async def _asked_by_a_stranger(model: LocalModel) -> None:
    """Another process on this machine has no key, and learns nothing."""
    client = await model.start()
    report = await ask_endpoint(client.base_url, "smollm2", api=model.api, api_key="wrong")
    assert report.window is None


async def test_answers_after_a_stream_was_left_early(
    local_file: Path,
) -> None:
    async def run() -> ModelReply:
        model = LocalModel(local_file, window=1_024)
        try:
            story = ModelRequest("any", [{"role": "user", "content": "Tell a very long story."}])
            async for _ in model.stream(story):
                break
            return await model.complete(replace(HELLO, params={"max_tokens": 4, "temperature": 0}))
        finally:
            await model.aclose()

    assert (await run()).stop == "length"


async def test_starts_once_and_again_after_it_was_closed(
    local_file: Path,
) -> None:
    model = LocalModel(local_file, window=512, max_tokens=2)
    try:
        replies = await asyncio.gather(*(model.complete(HELLO) for _ in range(3)))
        assert len({text_of(reply.message) for reply in replies}) == 1
        first = await model.start()
        await model.aclose()
        assert (await model.complete(HELLO)).stop
        assert await model.start() is not first
        assert model.base_url == f"local:{local_file.name}"
    finally:
        await model.aclose()


async def test_names_a_file_that_is_not_a_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    for path, words in (
        (broken, "cannot be loaded"),
        (tmp_path / "missing.gguf", "no such model file"),
    ):
        error = await failure_of(LocalModel(path), HELLO, stream=False)
        assert words in str(error)
        assert str(path) in str(error)


def test_names_the_extra_to_install(tmp_path: Path) -> None:
    """In a process of its own, in which the package cannot be found."""
    program = (
        "import asyncio, sys; sys.modules['xllamacpp'] = None\n"
        "from pathlib import Path\n"
        "from everthread.core.types import ModelRequest\n"
        "from everthread.providers.local import LocalModel\n"
        "asyncio.run(LocalModel(Path(sys.argv[1])).complete(ModelRequest('m', [])))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.gguf")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MissingPackageError" in result.stderr
    assert "pip install 'everthread[local]'" in result.stderr
