"""`everthread run` in a script: one task, exit codes, events as lines of JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everthread.cli.main import COMMANDS, load_command
from everthread.core.messages import text_of
from everthread.lab.provider import Fault, ServedModel
from tests.agent.process_checks import are_gone
from tests.chat_messages import call_reply
from tests.cli.conftest import Command, CommandResult, configure, environment
from tests.cli.fork_server import ForkServer
from tests.cli.provider_thread import configured_provider, provider_in_thread
from tests.cli.terminal import CTRL_C, Terminal

WRITE = ("write_file", {"path": "a.txt", "content": "hello\n"})
ECHO = ("terminal", {"command": "echo hi"})


RunTask = Callable[..., CommandResult]


@pytest.fixture
def run_task(everthread: Command, workspace: Path) -> RunTask:
    """Run a task in the workspace."""

    def run(*arguments: str, **more: Any) -> CommandResult:
        return everthread(f"run -w {workspace}", *arguments, **more)

    return run


def json_lines(answer: CommandResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_only_the_answer_is_printed_on_standard_output(
    run_task: RunTask, home: Path, workspace: Path
) -> None:
    with configured_provider(home, [call_reply(WRITE, text="I write."), "It is **written**."]):
        result = run_task("'write hello' --yes")
    assert (result.returncode, result.stdout) == (0, "It is **written**.\n"), result.stderr
    assert "✓ write_file a.txt" in result.stderr, "tool lines are printed on standard error"
    assert (workspace / "a.txt").read_text("utf-8") == "hello\n"


def test_a_resumed_thread_keeps_its_model(run_task: RunTask, home: Path) -> None:
    models = [ServedModel("first", 64_000), ServedModel("second", 64_000)]
    with configured_provider(home, ["One.", "Two."], models, model="first") as provider:
        assert run_task("begin -m second").stdout == "One.\n"
        assert run_task("'go on' --continue").stdout == "Two.\n"
    assert [entry.request.model for entry in provider.log if entry.request] == [
        "second",
        "second",
    ]


def test_a_thread_whose_model_cannot_be_reached_names_it_and_the_way_back(
    run_task: RunTask,
) -> None:
    with provider_in_thread(
        ["One.", *[Fault("server_error")] * 4], [ServedModel("gpt-4o", 64_000)]
    ) as provider:
        url = f"{provider.url}/v1"
        route = f"--base-url {url}"
        assert run_task(f"begin -m gpt-4o {route}").stdout == "One.\n"
        failure = run_task("'go on' --continue", route)
    assert f"--base-url {url}" in failure.stderr, "the resume command has the server's address"
    retries, _, rest = failure.stderr.partition("no more retries, tried 4 times.")
    assert retries.count("retry in") == 3
    assert rest.count("status 500") == 1, "the error itself is printed once"
    result = run_task("'go on' --continue")
    assert result.returncode == 2
    assert result.stderr.startswith("everthread: gpt-4o needs a key"), result.stderr
    assert "--base-url http" in result.stderr


def test_quiet_prints_the_answer_only(run_task: RunTask, home: Path) -> None:
    with configured_provider(home, [call_reply(ECHO), "Done."]):
        result = run_task("do --yes --quiet")
    assert (result.stdout, result.stderr) == ("Done.\n", "")


def test_the_task_comes_from_standard_input(run_task: RunTask, home: Path) -> None:
    with configured_provider(home) as provider:
        answer = run_task("-", stdin="Grüße\nan alle\n".encode())
        assert answer.stdout == "You said: Grüße\nan alle\n"
        request = provider.log[0].request
    assert request is not None
    assert text_of(request.messages[-1]) == "Grüße\nan alle"


def test_every_event_is_a_line_of_json(run_task: RunTask, home: Path) -> None:
    with configured_provider(home, [call_reply(ECHO), "Done."]):
        events = json_lines(run_task("do --yes --json"))
    kinds = [line["event"] for line in events]
    assert kinds[0] == "start"
    assert kinds[-1] == "answer"
    for kind in (
        "request",
        "usage",
        "tool_started",
        "tool_finished",
        "text",
        "turn_ended",
    ):
        assert kind in kinds
    assert events[0]["window"] == 64_000
    assert events[-1]["text"] == "Done."
    assert events[-1]["usage"]["prompt"] > 0
    assert events[-1]["thread"] == events[0]["thread"]
    (finished,) = [line for line in events if line["event"] == "tool_finished"]
    assert (finished["tool"], finished["failed"]) == ("terminal", False)


def test_without_a_terminal_only_rules_approve(
    run_task: RunTask, home: Path, workspace: Path
) -> None:
    both = call_reply(ECHO, WRITE)
    with configured_provider(home, [both, "Refused.", both, "Half.", both, "All."]):
        refused = [
            line["refused"]
            for line in json_lines(run_task("do --json"))
            if line["event"] == "tool_finished"
        ]
        assert refused == [True, True]
        (home / "approvals.txt").write_text("command: echo *\n", "utf-8")
        refused_by_tool = {
            line["tool"]: line["refused"]
            for line in json_lines(run_task("do --json"))
            if "refused" in line
        }
        assert refused_by_tool == {"terminal": False, "write_file": True}
        assert not (workspace / "a.txt").exists()
        assert run_task("do --yes").returncode == 0
        assert (workspace / "a.txt").exists()


def test_a_thread_is_continued(run_task: RunTask, home: Path) -> None:
    with configured_provider(home) as provider:
        first = json_lines(run_task("'remember the harbour' --json"))
        run_task("'by its id' --resume", first[0]["thread"][:10])
        run_task("'the last' --continue")
        request = provider.log[-1].request
    assert request is not None
    users = [text_of(message) for message in request.messages if message["role"] == "user"]
    assert users == ["remember the harbour", "by its id", "the last"]


def test_a_provider_that_fails_is_exit_code_1(run_task: RunTask, home: Path) -> None:
    with configured_provider(home, [Fault("stream_error", message="the cellar is flooded")]):
        result = run_task("do --json")
    assert result.returncode == 1
    assert json_lines(result)[-1]["event"] == "error"
    assert "the cellar is flooded" in json_lines(result)[-1]["error"]


def test_rounds_without_end_are_exit_code_1(run_task: RunTask, home: Path) -> None:
    with configured_provider(
        home, lambda _request: call_reply(ECHO), config="agent: {max_rounds: 2}\n"
    ):
        result = run_task("do --yes")
    assert result.returncode == 1
    assert "stopped after 2 rounds" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        ("''", b"", "the task is empty"),
        ("-", b" \n", "the task is empty"),
        ("-", b"\xff\xfe", "not UTF-8"),
        ("do --workspace /nowhere", b"", "there is no such directory"),
        ("do --resume feed", b"", "feed"),
        ("do --continue", b"", "no thread to continue"),
    ],
)
def test_bad_input_is_exit_code_2(
    everthread: Command, home: Path, arguments: str, given: bytes, words: str
) -> None:
    configure(
        home,
        "model: {default: mine, base_url: 'http://127.0.0.1:9/v1', context_length: 9000}\n",
    )
    result = everthread(f"run {arguments}", stdin=given)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stdout == ""


class TestAtATerminal:
    def test_a_user_at_a_terminal_is_asked(
        self, home: Path, workspace: Path, fork_server: ForkServer
    ) -> None:
        with (
            configured_provider(home, [call_reply(WRITE), "Written."]),
            Terminal(fork_server, f"run write -w {workspace}", environment(home)) as terminal,
        ):
            assert "+hello" in terminal.wait_for("[a]lways")
            terminal.type("y")
            terminal.wait_for("Written.")
            assert terminal.wait_for_exit() == 0
        assert (workspace / "a.txt").exists()

    def test_ctrl_c_is_exit_code_1_and_shows_the_resume_command(
        self, home: Path, workspace: Path, fork_server: ForkServer
    ) -> None:
        with configured_provider(
            home, [call_reply(("terminal", {"command": "echo began; sleep 60"}))]
        ):
            command = f"run wait -w {workspace} --yes --json"
            with Terminal(fork_server, command, environment(home)) as terminal:
                terminal.wait_for("tool_started")
                terminal.type("", CTRL_C)
                terminal.wait_for("stopped by Ctrl-C")
                assert terminal.wait_for_exit() == 1


def test_a_signal_ends_running_tools_and_is_reported(home: Path, workspace: Path) -> None:
    command = {"command": "(sleep 60 & echo $!) > pid; sleep 60"}
    with configured_provider(home, [call_reply(("terminal", command))]):
        arguments = [
            sys.executable,
            "-m",
            "everthread",
            "run",
            "wait",
            "-w",
            str(workspace),
            "--yes",
            "--json",
        ]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, env=environment(home), text=True
        ) as process:
            assert process.stdout is not None
            events = (json.loads(line) for line in process.stdout)
            next(event for event in events if event["event"] == "tool_started")
            while (
                not (workspace / "pid").exists()
                or not (workspace / "pid").read_text("utf-8").strip()
            ):
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            last = list(events)[-1]
            assert (last["event"], last["error"]) == ("error", "ended by SIGTERM")
            assert process.wait(timeout=120) == 143
    assert asyncio.run(are_gone(int((workspace / "pid").read_text("utf-8"))))


class TestStart:
    def test_help_loads_no_sdk_and_none_of_our_own_parts(self) -> None:
        heavy = (
            "{'openai', 'anthropic', 'httpx', 'httpx2', 'pydantic', 'apsw', "
            "'prompt_toolkit', 'starlette', 'asyncio'}"
        )
        code = (
            "import sys\nfrom everthread.cli.main import main\nsys.argv = ['everthread', '--help']\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            f"loaded = {heavy} & set(sys.modules)\n"
            "ours = {name for name in sys.modules if name.startswith('everthread.')}\n"
            "print(sorted(loaded), sorted(ours), file=sys.stderr)"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert result.stderr.strip() == (
            "[] ['everthread._version', 'everthread.cli', 'everthread.cli.main', 'everthread.errors']"
        )

    @pytest.mark.parametrize("name", COMMANDS)
    def test_the_command_list_matches_each_commands_help(self, name: str) -> None:
        assert " ".join(load_command(name).help.split()).startswith(COMMANDS[name])


def test_the_first_run_says_once_what_to_do(everthread: Command) -> None:
    error = everthread.refuses("run hello")
    lines = error.strip().splitlines()
    assert len(lines) == 2
    assert error.count("everthread init") == 1
    named = everthread("run --model gpt-5 hello").stderr
    assert "gpt-5 needs a key, and OPENAI_API_KEY is not set" in named


def test_an_unknown_engine_leaves_no_thread_behind(everthread: Command, home: Path) -> None:
    configure(home, "context: {engine: nope}\nmodel: {default: gpt-4o}\n")
    result = everthread(
        "run hello",
        env={"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
    )
    assert result.returncode == everthread("plugins use nope").returncode == 2
    assert everthread.json("sessions list --all")["sessions"] == []
