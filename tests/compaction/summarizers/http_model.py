"""A model over real HTTP: the official SDK against the recording server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from everthread.core.types import ModelReply, ModelRequest
from everthread.wire import openai_chat
from tests.wire.recording import RecordingServer, Scripted, json_reply, recording_server

USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}


@dataclass(frozen=True, slots=True)
class HttpModel:
    client: AsyncOpenAI
    name: str = "gpt-4o"
    window: int = 128_000

    async def complete(self, request: ModelRequest) -> ModelReply:
        body = openai_chat.encode_request(request)
        raw = await self.client.chat.completions.with_raw_response.create(**body)
        return openai_chat.decode_reply(json.loads(raw.content), model=request.model)


@asynccontextmanager
async def serve_model(
    *replies: Scripted, window: int = 128_000, name: str = "gpt-4o"
) -> AsyncIterator[tuple[HttpModel, RecordingServer]]:
    """Yield a model that gets these replies in turn, and the record of its requests."""
    with recording_server(replies) as server:
        async with client_for(server.url) as client:
            yield HttpModel(client, name, window), server


def client_for(url: str, *, timeout: float = 30.0) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="sk-test", base_url=f"{url}/v1", max_retries=0, timeout=timeout)


def completion_reply(text: str | None, *, stop: str = "stop", **message: Any) -> Scripted:
    """Return a chat completion with this text."""
    return json_reply(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "gpt-4o-2024",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": stop,
                    "message": {"role": "assistant", "content": text, **message},
                }
            ],
            "usage": USAGE,
        }
    )


def error_reply(status: int, message: str, **error: Any) -> Scripted:
    """Return an error in OpenAI's form."""
    return json_reply({"error": {"message": message, "type": "error", **error}}, status=status)


def prompts_sent(server: RecordingServer) -> list[str]:
    """Return the user message of every request."""
    return [str(request.body["messages"][-1]["content"]) for request in server.requests]
