"""Run an agent with OpenAI's client through LiteLLM's proxy, with or without the callback, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI

CALLBACK = """
from everthread.integrations.litellm import EverthreadLogger

handler = EverthreadLogger(store={store!r}, window={window})
"""
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "What the book says about an entry.",
        "parameters": {"type": "object", "properties": {"entry": {"type": "string"}}},
    },
}
TELLING = """
import logging

class Ear(logging.Handler):
    def emit(self, record):
        event = getattr(record, "everthread", {{}})
        with open({told!r}, "a") as file:
            file.write(str(event.get("event", "")) + "\\n")

logging.getLogger("LiteLLM").setLevel(logging.INFO)
logging.getLogger("LiteLLM").addHandler(Ear())
"""


def start(job: dict[str, Any], folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the proxy; return it and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = str(folder / "told.txt")
    code = CALLBACK.format(store=job["store"], window=job["window"]) + TELLING.format(told=told)
    (folder / "everthread_callback.py").write_text(code, "utf-8")
    behind = {
        "model": f"openai/{job['model']}",
        "api_base": f"{job['url']}/v1",
        "api_key": "any",
    }
    config: dict[str, Any] = {
        "model_list": [{"model_name": "books", "litellm_params": behind}],
        "router_settings": {
            "num_retries": 0,
            "retry_policy": {"BadRequestErrorRetries": 3 if job["managed"] else 0},
        },
    }
    if job["managed"]:
        config["litellm_settings"] = {"callbacks": "everthread_callback.handler"}
    (folder / "config.yaml").write_text(json.dumps(config), "utf-8")
    command = [
        str(Path(sys.executable).with_name("litellm")),
        "--config",
        str(folder / "config.yaml"),
    ]
    log = (folder / "proxy.log").open("wb")
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        stdout=log,
        stderr=log,
    )
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/health/liveliness", timeout=5):  # noqa: S310 - our own
                return process, address
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.5)
    raise SystemExit((folder / "proxy.log").read_text("utf-8")[-3_000:])


class Bookkeeper:
    """An agent's loop: ask, run the tool, ask again."""

    def __init__(self, job: dict[str, Any], address: str) -> None:
        self._job = job
        self._known: Any = {
            "base_url": f"{address}/v1",
            "api_key": "any",
            "max_retries": 0,
            "timeout": 120,
        }
        self.history: list[Any] = [{"role": "system", "content": job["system"]}]
        self.piece_count = 0

    async def ask(self, text: str, how: int) -> str:
        self.history.append({"role": "user", "content": text})
        while True:
            request = {"model": "books", "messages": self.history, "tools": [TOOL]}
            if how == 0:
                message = await self._streamed(request)
            elif how == 1:
                message = await self._whole(request)
            else:
                message = await asyncio.to_thread(self._alone, request)
            self.history.append(message)
            if not message.get("tool_calls"):
                return str(message["content"])
            for call in message["tool_calls"]:
                page = self._job["page"].format(**json.loads(call["function"]["arguments"]))
                self.history.append({"role": "tool", "tool_call_id": call["id"], "content": page})

    async def _whole(self, request: Any) -> Any:
        async with AsyncOpenAI(**self._known) as client:
            answer = await client.chat.completions.create(**request)
        return answer.choices[0].message.model_dump(exclude_none=True)

    def _alone(self, request: Any) -> Any:
        with OpenAI(**self._known) as client:
            return (
                client.chat.completions.create(**request)
                .choices[0]
                .message.model_dump(exclude_none=True)
            )

    async def _streamed(self, request: Any) -> Any:
        said = ""
        calls = dict[int, Any]()
        async with AsyncOpenAI(**self._known) as client:
            options: Any = {"stream": True, "stream_options": {"include_usage": True}}
            chunks: Any = await client.chat.completions.create(**request, **options)
            async for chunk in chunks:
                self.piece_count += 1
                for choice in chunk.choices:
                    said += choice.delta.content or ""
                    for call in choice.delta.tool_calls or ():
                        known = calls.setdefault(call.index, {"name": "", "arguments": ""})
                        known["id"] = call.id or known.get("id")
                        known["name"] += call.function.name or ""
                        known["arguments"] += call.function.arguments or ""
        made: Any = {"role": "assistant", "content": said or None}
        if calls:
            made["tool_calls"] = [
                {"id": call.pop("id"), "type": "function", "function": call}
                for call in calls.values()
            ]
        return made


async def main(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path.cwd()
    process, address = await asyncio.to_thread(start, job, folder)
    answers = []
    error_text = ""
    bookkeeper = Bookkeeper(job, address)
    try:
        for number, text in enumerate(job["texts"]):
            try:
                answers.append(await bookkeeper.ask(text, number % 3))
            except Exception as error:  # noqa: BLE001 - whatever the provider's refusal becomes
                error_text = str(error)
                break
    finally:
        process.terminate()
        process.wait(30)
    told = folder / "told.txt"
    events = told.read_text("utf-8").split() if told.exists() else []
    kept_count = len(bookkeeper.history)
    return {
        "answers": answers,
        "error_text": error_text,
        "kept_count": kept_count,
        "events": events,
        "piece_count": bookkeeper.piece_count,
        "recall": False,
    }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
