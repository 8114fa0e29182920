"""A changed configuration file: the change is there, comments and everything else stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.config import parse_config
from everthread.config.file_edits import set_keys
from everthread.config.yaml_text import parse_yaml
from everthread.errors import ConfigError, EverthreadError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "context:\n  engine: mine\n"),
        ("# only words", "# only words\ncontext:\n  engine: mine\n"),
        ("store: {url: null}", "store: {url: null}\ncontext:\n  engine: mine\n"),
        ("store: {}\r\n", "store: {}\r\ncontext:\r\n  engine: mine\r\n"),
        (
            "context: {}  # empty\nstore: {}\n",
            "context:     # empty\n  engine: mine\nstore: {}\n",
        ),
        ("context: {engine: 'a b'} # c\n", "context: {engine: 'mine'} # c\n"),
        (
            '# first\ncontext:   # here\n\n  # which\n  engine: "old"   # why\n\n# last\nstore: {}\n',
            '# first\ncontext:   # here\n\n  # which\n  engine: "mine"  # why\n\n# last\nstore: {}\n',
        ),
        ("\ufeffcontext: {engine: 旧}\n", "\ufeffcontext: {engine: mine}\n"),
        (
            "engines: {old: {engine: 1}}\ncontext: {engine: old}\n",
            "engines: {old: {engine: 1}}\ncontext: {engine: mine}\n",
        ),
        ("gateway: {mode: off}\n", "gateway: {mode: off}\ncontext:\n  engine: mine\n"),
    ],
)
def test_set_keys_writes_the_file(file: Path, old: str, new: str) -> None:
    file.write_bytes(old.encode())
    assert set_keys(file, {"context.engine": "mine"})
    assert file.read_bytes().decode() == new
    assert not set_keys(file, {"context.engine": "mine"})


@pytest.mark.parametrize(
    "name", ["null", "true", "on", "1.5", "12", "1e3", "2024-01-01", "0x10", "a.b-c_d"]
)
@pytest.mark.parametrize("text", ["", "context: {engine: old}", "{}"])
def test_writes_names_as_text(file: Path, name: str, text: str) -> None:
    file.write_text(text, "utf-8")
    set_keys(file, {"context.engine": name})
    assert parse_config(file.read_text("utf-8")).context.engine == name


@pytest.mark.parametrize(
    "text",
    [
        "engines: {a: &x {engine: old}}\ncontext: *x\n",
        "context: &x {engine: old}\nengines: {a: *x}\n",
        "{store: {}}\n# a comment after braces\n",
    ],
)
def test_refuses_an_unsafe_change(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="cannot be changed safely"):
        set_keys(file, {"context.engine": "mine"})
    assert file.read_text("utf-8") == text
    assert [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "compression.threshold",
            2,
            r"compression\.threshold = 2: must be from 0 to 1",
        ),
        ("compression.treshold", 0.5, "did you mean threshold"),
        ("model.default.name", "x", "is not a section"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(file: Path, key: str, value: Any, words: str) -> None:
    file.write_text("model: {default: gpt-5}\n", "utf-8")
    with pytest.raises(ConfigError, match=words):
        set_keys(file, {key: value})
    assert file.read_text("utf-8") == "model: {default: gpt-5}\n"


def test_creates_a_missing_home(tmp_path: Path) -> None:
    file = tmp_path / "home" / "config.yaml"
    assert set_keys(
        file,
        {
            "compression.threshold": 0.3,
            "compression.models": {"claude-*": {"threshold": 0.2}},
        },
    )
    read = parse_config(file.read_text("utf-8")).compression
    assert (read.threshold, read.models["claude-*"].threshold) == (0.3, 0.2)


def test_keeps_a_symbolic_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    link = tmp_path / "config.yaml"
    real.write_text("", "utf-8")
    link.symlink_to(real)
    assert set_keys(link, {"context.engine": "mine"})
    assert link.is_symlink()
    assert parse_config(real.read_text("utf-8")).context.engine == "mine"


def test_refuses_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "config.yaml"
    binary.write_bytes(b"\xff\xfe")
    for file in (tmp_path, binary):
        with pytest.raises(ConfigError, match="cannot be changed"):
            set_keys(file, {"context.engine": "mine"})


@given(
    st.dictionaries(
        st.sampled_from(["compression", "store", "context", "engines", "prompt_caching"]),
        st.sampled_from(["{}", "{ }"]),
    ),
    st.booleans(),
    st.sampled_from(["", "\n", "# end", "\n# end\n"]),
)
def test_keeps_other_sections_in_any_arrangement(
    tmp_path_factory: pytest.TempPathFactory,
    sections: dict[str, str],
    flow: bool,
    end: str,
) -> None:
    file = tmp_path_factory.mktemp("home") / "config.yaml"
    lines = [f"{key}: {value}" for key, value in sections.items()]
    file.write_text(
        (f"{{{', '.join(lines)}}} " if flow else "\n".join(lines) + "\n") + end, "utf-8"
    )
    before = file.read_text("utf-8")
    try:
        set_keys(file, {"context.engine": "mine"})
    except ConfigError:
        assert flow, "only a comment after braces may be in the way"
        assert file.read_text("utf-8") == before
        return
    changed = file.read_text("utf-8")
    assert parse_config(changed).context.engine == "mine"
    rest = {key: value for key, value in parse_yaml(changed).items() if key != "context"}
    assert rest == {key: {} for key in sections if key != "context"}
    assert end.strip() in changed


def test_an_unwritable_folder_is_not_a_configuration_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(EverthreadError, match="cannot be written") as caught:
        set_keys(tmp_path / "file" / "config.yaml", {"context.engine": "mine"})
    assert not isinstance(caught.value, ConfigError)
