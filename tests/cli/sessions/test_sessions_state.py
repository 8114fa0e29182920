"""`everthread sessions state`."""

from __future__ import annotations

import json
from typing import Any

from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call, result_message
from tests.cli.conftest import Command, RunOnStore
from tests.cli.sessions.stored_thread import text_message


def test_state_lists_files_commands_and_errors(
    everthread: Command, run_on_store: RunOnStore
) -> None:
    def called(name: str, arguments: dict[str, Any], result: str, call_id: str) -> list[NewMessage]:
        call: Any = calls_message(function_call(call_id, name, json.dumps(arguments)))
        answer: Any = result_message(call_id, result)
        return [NewMessage(call), NewMessage(answer)]

    async def work(store: Store) -> None:
        await store.create_session(NewSession(id="t"))
        await store.append(
            "t",
            [
                text_message("user", "Mend it."),
                *called(
                    "write_file",
                    {"path": "src/a.py", "content": "x"},
                    "Written.",
                    "c1",
                ),
                *called(
                    "terminal",
                    {"command": "pytest -q"},
                    "exit code: 1\nE  ValueError: no\n1 failed",
                    "c2",
                ),
            ],
        )

    run_on_store(work)
    report = everthread.json("sessions state t")
    assert [(file["path"], file["last"]) for file in report["files"]] == [("src/a.py", "changed")]
    assert [(run["command"], run["ok"]) for run in report["commands"]] == [("pytest -q", False)]
    assert "ValueError: no" in " ".join(report["open_errors"][0]["lines"])
    for columns in (60, 80, 120):
        output = everthread("sessions state t", columns=columns).stdout
        for words in ("src/a.py", "pytest -q", "open errors", "ValueError"):
            assert words in output
    assert everthread("sessions state nobody").returncode == 2
