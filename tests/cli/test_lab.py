"""`everthread lab provider` as a real process with real requests, ended by Ctrl-C."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import openai
import pytest
from openai import OpenAI

from tests.cli.conftest import Command


@contextmanager
def run_lab(options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command, yield it and the address it printed, and end it."""
    command = [
        sys.executable,
        "-m",
        "everthread",
        "lab",
        "provider",
        *shlex.split(options),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            first = process.stdout.readline()
            assert first, process.stderr.read() if process.stderr else ""
            yield (
                process,
                json.loads(first)["url"]
                if "--json" in options
                else first.split()[0].removesuffix("/v1"),
            )
        finally:
            process.kill()


def ask(url: str, text: str) -> str | None:
    with OpenAI(
        api_key="sk-lab",
        base_url=f"{url}/v1",
        max_retries=0,
    ) as client:
        completion = client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": text}]
        )
        return completion.choices[0].message.content


def test_the_provider_serves_until_ctrl_c() -> None:
    with run_lab("--model gpt-5=4_000:vllm --model other=9000") as (
        process,
        url,
    ):
        assert ask(url, "Anybody?") == "You said: Anybody?"
        with pytest.raises(
            openai.BadRequestError,
            match=r"decoder prompt .* maximum model length of 4000",
        ):
            ask(url, "word " * 5000)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    fine, refused = out.splitlines()
    assert fine.startswith("1  200  gpt-5  openai_chat  ")
    assert fine.endswith(" tokens, 0 cached")
    assert refused.startswith("2  400  gpt-5  openai_chat  5,0")
    assert "decoder prompt" in refused


def test_answers_from_a_script_with_faults_and_prints_json(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(
        json.dumps(["First.", {"fault": "server_error"}, {"content": "Third."}]),
        "utf-8",
    )
    with run_lab(f"--script {script} --json --requests 3") as (
        process,
        url,
    ):
        assert ask(url, "1") == "First."
        with pytest.raises(openai.InternalServerError):
            ask(url, "2")
        assert ask(url, "3") == "Third."
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert [
        (line["number"], line["status"], line["fault"])
        for line in map(json.loads, out.splitlines())
    ] == [
        (1, 200, ""),
        (2, 500, "server_error"),
        (3, 200, ""),
    ]


def test_a_transcript_and_a_plan_of_faults(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "How old?"},
        {"role": "assistant", "content": "Forty-two."},
    ]
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(talk), "utf-8")
    with run_lab(f"--transcript {file} --fault no_usage=1 --requests 1") as (
        process,
        url,
    ):
        assert ask(url, "How old?") == "Forty-two."
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.rstrip().endswith("no_usage")


def test_windows_are_listed_and_compactions_refused_on_request() -> None:
    with run_lab("--model gpt-5=4000 --shows context_length --no-compaction") as (
        _,
        url,
    ):
        listed = httpx2.get(f"{url}/v1/models", timeout=60).json()["data"]
        assert [model["context_length"] for model in listed] == [4_000]
        body = {
            "model": "gpt-5",
            "input": [{"role": "user", "content": "hi"}],
        }
        assert httpx2.post(f"{url}/v1/responses/compact", json=body, timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model gpt-5", "is not NAME=WINDOW"),
        ("--model gpt-5=many", "is not NAME=WINDOW"),
        ("--model gpt-5=5:klingon", "dialect 'klingon' is unknown"),
        ("--shows nothing", "--shows 'nothing' is unknown"),
        ("--fault weather", "'weather' is unknown"),
        ("--fault reset=2", "must be from 0 to 1"),
        ("--script absent.json", "absent.json: cannot be read"),
        ("--echo --script absent.json", "exclude each other"),
    ],
)
def test_bad_input_is_one_clear_line(everthread: Command, options: str, words: str) -> None:
    error = everthread.refuses(f"lab provider {options}")
    assert words in error
    assert error.count("\n") == 1
