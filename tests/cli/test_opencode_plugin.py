"""The plug-in for opencode, run as its host runs it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.manager_setup import text_of_tokens

PLUGINS = Path(__file__).parents[2] / "plugins"
RULE = "Never push to main."
TURNS = 14


async def run(*command: str, program: str, home: Path) -> tuple[str, str]:
    """Run the plug-in with this Everthread; return its output and its errors."""
    environment = {
        **os.environ,
        "EVERTHREAD_COMMAND": program,
        "EVERTHREAD_HOME": str(home),
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0, err.decode()
    return out.decode(), err.decode()


HARNESS = """
const { Everthread } = await import(process.argv[2])
const data = JSON.parse(process.argv[3])
const message = async ({ path }) => ({ data: { info: { summary: path.messageID === "summary" } } })
const hooks = await Everthread({ client: { session: { messages: async () => ({ data }), message } } })
await hooks["experimental.session.compacting"]({ sessionID: "s1" }, { context: [] })
const texts = []
for (const messageID of ["title", "summary", "answer"]) {
  const output = { text: "Parts were made." }
  await hooks["experimental.text.complete"]({ sessionID: "s1", messageID }, output)
  texts.push(output.text)
}
console.log(JSON.stringify(texts))
"""


async def test_the_users_words_follow_opencodes_own_summary(
    tmp_path: Path,
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    (tmp_path / "harness.mjs").write_text(HARNESS, "utf-8")
    shutil.copy(PLUGINS / "opencode" / "everthread.js", tmp_path / "everthread.mjs")
    data: list[Any] = [
        {
            "info": {"role": "user"},
            "parts": [{"type": "text", "text": RULE}],
        }
    ]
    for turn in range(TURNS):
        state = {
            "status": "completed",
            "input": {"command": f"make part{turn}"},
            "output": text_of_tokens(900, f"part {turn}"),
        }
        tool = {
            "type": "tool",
            "callID": f"c{turn}",
            "tool": "bash",
            "state": state,
        }
        text_part = {"type": "text", "text": f"I make part {turn}."}
        data.append(
            {
                "info": {"role": "assistant", "modelID": "gpt-4o"},
                "parts": [text_part, tool],
            }
        )
        own = {
            "type": "text",
            "text": "Continue if you have next steps",
            "synthetic": True,
        }
        data.append(
            {
                "info": {"role": "user"},
                "parts": [{"type": "text", "text": f"Now part {turn + 1}."}, own],
            }
        )
    command = [
        node,
        str(tmp_path / "harness.mjs"),
        str(tmp_path / "everthread.mjs"),
        json.dumps(data),
    ]
    program = f"{sys.executable} -m everthread"
    printed, _ = await run(*command, program=program, home=tmp_path / "home")
    title, summary, answer = json.loads(printed)
    assert title == answer == "Parts were made."
    assert summary.startswith("Parts were made.\n\n")
    assert "Now part 2." in summary
    assert "make part2" in summary
    assert "Continue if you have" not in summary, "the message is opencode's, not the user's"
    printed, problem = await run(*command, program="/no/such/program", home=tmp_path)
    assert json.loads(printed) == ["Parts were made."] * 3
    assert "the command /no/such/program is not found" in problem
    assert "uv tool install ./everthread" in problem
