"""Trace two flows and count the functions and modules they run."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import everthread
from benchmarks.table import Row

PACKAGE = Path(everthread.__file__).parent
MAX_FUNCTIONS = 700
MODEL = "claude-sonnet-4-5"


@dataclass
class Trail:
    """Record the functions that run until it is stopped."""

    on: bool = False
    codes: set[CodeType] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.on and event == "call":
            self.codes.add(frame.f_code)

    def functions(self) -> set[CodeType]:
        """Return the recorded functions of the package."""
        return {
            code
            for code in self.codes
            if Path(code.co_filename).is_relative_to(PACKAGE) and _is_function(code)
        }


def _module_name(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()


def _is_function(code: CodeType) -> bool:
    """Return whether this is a function, and not the body of a module or class or a comprehension."""
    is_comprehension = code.co_name.startswith("<") and code.co_name != "<lambda>"
    return not is_comprehension and bool(code.co_flags & inspect.CO_OPTIMIZED)


def measure_flows() -> Iterator[Row]:
    """Count the functions of each flow, the engine's included."""
    for name, flow in (
        ("a managed gateway request with a compaction", _gateway_request),
        ("`Conversation.send` with a compaction", _conversation_send),
    ):
        trail = Trail()
        threading.setprofile(trail)
        sys.setprofile(trail)
        try:
            asyncio.run(flow(trail))
            asyncio.run(_compress_in_process(trail))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        functions = trail.functions()
        modules = Counter(_module_name(code).split("/")[0] for code in functions)
        each = ", ".join(f"{room} {count}" for room, count in modules.most_common())
        yield Row(
            f"distinct functions that {name} runs",
            f"{len(functions):,} ({each})",
            f"≤ {MAX_FUNCTIONS}",
            len(functions) <= MAX_FUNCTIONS,
        )
        passed = {_module_name(code) for code in functions}
        yield Row(f"modules that {name} passes", str(len(passed)))


def _history(count: int) -> list[dict[str, Any]]:
    """Return an agent's work: requests, calls, results, answers, and an error."""
    messages: list[dict[str, Any]] = []
    for number in range(count):
        call = {
            "type": "tool_use",
            "id": f"call_{number}",
            "name": "Bash",
            "input": {"command": f"pytest tests/{number}"},
        }
        outcome = f"tests/{number}: {'1 failed, ' if number % 5 == 4 else ''}{number} passed\n" * 12
        messages += [
            {
                "role": "user",
                "content": f"Mend ledger {number}; entry {number} of it was settled twice.",
            },
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "I run its tests first."}, call],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": f"call_{number}",
                        "content": outcome,
                    }
                ],
            },
            {
                "role": "assistant",
                "content": f"Ledger {number} is mended: the entry is compared before it is settled.",
            },
        ]
    return messages


async def _compress_in_process(trail: Trail) -> None:
    """Run the engine in this process, because the flows run it in a worker process."""
    messages: list[Any] = [
        *_chat_history(60),
        {"role": "user", "content": "What is left?"},
    ]
    trail.on = True
    made = await everthread.acompress(messages, window=20_000, force=True)
    trail.on = False
    assert made.changed, made.reason


def _chat_history(count: int) -> list[dict[str, Any]]:
    """Return the same work as plain chat messages."""
    messages: list[dict[str, Any]] = []
    for message in _history(count):
        content = message["content"]
        if isinstance(content, str):
            messages.append(message)
        elif content[0]["type"] == "tool_result":
            block = content[0]
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": block["tool_use_id"],
                    "content": block["content"],
                }
            )
        else:
            note, call = content
            function = {"name": call["name"], "arguments": json.dumps(call["input"])}
            messages.append(
                {
                    "role": "assistant",
                    "content": note["text"],
                    "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
                }
            )
    return messages


async def _gateway_request(trail: Trail) -> None:
    import httpx2  # noqa: PLC0415 - only this flow needs it

    from everthread.config import parse_config  # noqa: PLC0415 - as above
    from everthread.factory.gateways import open_gateway  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        async with _upstream() as url:
            config = parse_config(
                "gateway:\n  port: 0\n  limits: {manage_seconds: 600}\n"
                f"  upstreams: [{{name: direct, url: '{url}', mode: managed}}]\n"
                f"store: {{url: 'sqlite:///{folder}/store.db'}}\n"
                "compression: {threshold_tokens: 10000, background: false, economics: false}\n"
            )
            async with (
                open_gateway(config) as gateway,
                httpx2.AsyncClient(timeout=600) as client,
            ):
                compactions = "0"
                for turns in (10, 60):
                    trail.codes.clear()
                    trail.on = True
                    messages = [
                        *_history(turns),
                        {"role": "user", "content": "What is left?"},
                    ]
                    body = {"model": MODEL, "max_tokens": 100, "messages": messages}
                    answer = await client.post(
                        f"{gateway.url}/v1/messages",
                        json=body,
                        headers={"x-api-key": "any"},
                    )
                    assert answer.status_code == 200, answer.text
                    compactions = answer.headers["x-everthread-compactions"]
                assert compactions != "0", "nothing was compacted"
                trail.on = False


@asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    """Answer every request with the same short answer."""
    answer = json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "Nothing."}],
            "usage": {"input_tokens": 9, "output_tokens": 1},
        }
    ).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: *(\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(answer), answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _conversation_send(trail: Trail) -> None:
    from everthread.config import parse_config  # noqa: PLC0415 - only this flow needs it
    from everthread.testing import ScriptedModel  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        config = parse_config("compression: {threshold_tokens: 6000, background: false}\n")
        model = ScriptedModel(
            lambda _request: "It is mended: the entry is compared before it is settled."
        )
        conversation = await everthread.open_conversation(
            model,
            config=config,
            store=Path(folder) / "store.db",
            system="You keep the books.",
        )
        first = conversation.session.id
        for number in range(400):
            text = (
                f"Mend ledger {number}; "
                + f"entry {number} was settled twice and compared with its receipt. " * 8
            )
            trail.on = True
            trail.codes.clear()
            await conversation.send(text)
            trail.on = False
            if conversation.session.id != first:
                break
        assert conversation.session.id != first, "nothing was compacted"
        await conversation.close()
