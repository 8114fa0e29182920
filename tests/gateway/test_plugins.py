"""The plug-ins for other agents, run as their hosts run them, against a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.clients import words
from tests.gateway.house import house

PLUGINS = Path(__file__).parents[2] / "plugins"
RULE = "Never push to main."
TURNS = 14


async def run(*command: str, url: str, given: str = "", folder: Path | None = None) -> tuple[str, str]:
    """What a program prints, and what it complains of."""
    environment = {**os.environ, "EVERTHREAD_URL": url, "TMPDIR": str(folder or "/tmp")}  # noqa: S108
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(given.encode()), 180)
    assert process.returncode == 0, err.decode()
    return out.decode(), err.decode()


def transcript(folder: Path) -> Path:
    """A log as Claude Code writes it: an answer is several lines with one id."""
    lines: list[Any] = [
        {"type": "summary", "summary": "Parsers"},
        {"type": "user", "message": {"role": "user", "content": RULE}},
    ]
    for turn in range(TURNS):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "Bash", "input": {"command": f"make part{turn}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": words(900, f"part {turn}")}
        said = {"type": "text", "text": f"I make part {turn}."}
        for part in (said, {"type": "thinking", "thinking": "…", "signature": "s"}, call):
            message = {"role": "assistant", "id": f"m{turn}", "model": "claude-sonnet-5", "content": [part]}
            lines.append({"type": "assistant", "message": message})
        lines.append({"type": "user", "message": {"role": "user", "content": [result]}})
    lines.append({"type": "user", "isMeta": True, "message": {"role": "user", "content": "<local-command-caveat>"}})
    lines.append({"type": "user", "message": {"role": "user", "content": "And now?"}})
    file = folder / "log.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file


async def test_claude_codes_hooks_bring_the_users_words_back_after_a_compaction(tmp_path: Path) -> None:
    script = [sys.executable, str(PLUGINS / "claude-code" / "everthread_compact.py")]
    given = {"session_id": "s1", "transcript_path": str(transcript(tmp_path)), "trigger": "auto"}
    async with house(tmp_path) as place:
        url = await place.gateway("none", key=None)
        before = json.dumps({**given, "hook_event_name": "PreCompact"})
        assert await run(*script, url=url, given=before, folder=tmp_path) == ("", "")
        after = json.dumps({**given, "hook_event_name": "SessionStart", "source": "compact"})
        told, _ = await run(*script, url=url, given=after, folder=tmp_path)
        assert "make part3" in told
        assert (await run(*script, url=url, given=after, folder=tmp_path))[0] == "", "once"
    _, problem = await run(*script, url="http://127.0.0.1:9", given=before, folder=tmp_path)
    assert problem.startswith("everthread: "), "a gateway that is away stops nothing"


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


async def test_opencodes_hooks_put_what_the_user_said_behind_its_own_summary(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    (tmp_path / "harness.mjs").write_text(HARNESS, "utf-8")
    shutil.copy(PLUGINS / "opencode" / "everthread.js", tmp_path / "everthread.mjs")
    data: list[Any] = [{"info": {"role": "user"}, "parts": [{"type": "text", "text": RULE}]}]
    for turn in range(TURNS):
        state = {"status": "completed", "input": {"command": f"make part{turn}"}, "output": words(900, f"part {turn}")}
        tool = {"type": "tool", "callID": f"c{turn}", "tool": "bash", "state": state}
        said = {"type": "text", "text": f"I make part {turn}."}
        data.append({"info": {"role": "assistant", "modelID": "gpt-4o"}, "parts": [said, tool]})
        own = {"type": "text", "text": "Continue if you have next steps", "synthetic": True}
        data.append({"info": {"role": "user"}, "parts": [{"type": "text", "text": f"Now part {turn + 1}."}, own]})
    async with house(tmp_path) as place:
        url = await place.gateway("none", key=None)
        command = [node, str(tmp_path / "harness.mjs"), str(tmp_path / "everthread.mjs"), json.dumps(data)]
        told, _ = await run(*command, url=url)
        title, summary, answer = json.loads(told)
        assert title == answer == "Parts were made."
        assert summary.startswith("Parts were made.\n\nFrom the whole session, made by Everthread")
        assert "Now part 2." in summary
        assert "make part2" in summary
        assert "Continue" not in summary, "what opencode says in the user's name"
    told, problem = await run(*command, url="http://127.0.0.1:9")
    assert json.loads(told) == ["Parts were made."] * 3
    assert "everthread: " in problem
