"""A strict provider: it refuses whatever breaks the rules of its protocol or its window.

It runs in threads of the standard library's HTTP server, and imports nothing of Everthread.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from tests.torture.strict import answers
from tests.torture.strict.answers import Event, Sizes
from tests.torture.strict.rules import CHECKS
from tests.torture.strict.story import StoryModel, prompt_text, tool_names

CHARS_PER_TOKEN = 3.6
APIS = {
    "/v1/messages": "anthropic",
    "/v1/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
}


@dataclass
class HandledRequest:
    """A request and the facts of its answer."""

    path: str
    api: str = ""
    prompt: int = 0
    cached: int = 0
    status: int = 200
    violations: Sequence[str] = ()
    is_main: bool = False


class StrictProvider:
    """Serve one model on loopback until the `with` block ends."""

    def __init__(self, story: StoryModel, model: str, window: int, *, states_window: bool) -> None:
        self.story = story
        self.model = model
        self.window = window
        self.states_window = states_window
        self.seen: list[HandledRequest] = []
        self.bodies: list[tuple[str, Any]] = []
        self._last_prompt = ""
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StrictProvider:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def models(self) -> dict[str, Any]:
        """Return the list of models, in a form that each client accepts."""
        entry: dict[str, Any] = {"id": self.model, "object": "model", "type": "model"}
        google: dict[str, Any] = {"name": f"models/{self.model}"}
        if self.states_window:
            entry["max_model_len"] = self.window
            google["inputTokenLimit"] = self.window
        return {
            "object": "list",
            "data": [entry],
            "models": [google],
            "has_more": False,
        }

    def respond(self, path: str, body: Any) -> tuple[int, Any, Iterable[Event] | None]:
        """Return the status, the whole answer and its events if it is streamed."""
        with self._lock:
            return self._respond(path, body)

    def _respond(self, path: str, body: Any) -> tuple[int, Any, Iterable[Event] | None]:
        api = _api_of(path)
        if path.endswith(("count_tokens", ":countTokens")):
            size = _size(body)
            return 200, {"input_tokens": size, "totalTokens": size}, None
        seen = HandledRequest(path, api or "")
        self.seen.append(seen)
        if api is None or not isinstance(body, Mapping):
            seen.status = 404
            return 404, {"error": {"message": f"unknown path {path}"}}, None
        names = tool_names(body)
        seen.is_main = not self.story.tools or any(n in self.story.tools for n in names)
        self.bodies.append((path, body))
        seen.violations = CHECKS[api](body)
        if seen.violations:
            seen.status = 400
            return 400, _error(api, "; ".join(seen.violations)), None
        sizes = self._measure(body, seen)
        if seen.prompt > self.window:
            seen.status = 400
            return 400, _error(api, _too_long(api, seen.prompt, self.window)), None
        told = self.story.answer(prompt_text(body), names)
        return (200, *_encode(api, path, body, told, sizes))

    def _measure(self, body: Mapping[str, Any], seen: HandledRequest) -> Sizes:
        seen.prompt = _size(body)
        text = json.dumps(_without_marks([body.get(key) for key in _PROMPT_KEYS]))
        shared = 0
        if seen.is_main:
            shared = _shared_length(self._last_prompt, text)
            self._last_prompt = text
        seen.cached = min(seen.prompt, int(shared / CHARS_PER_TOKEN)) // 128 * 128
        return Sizes(seen.prompt, seen.cached, output=80)


_PROMPT_KEYS = (
    "tools",
    "system",
    "systemInstruction",
    "instructions",
    "messages",
    "input",
    "contents",
)


def _api_of(path: str) -> str | None:
    path = path.partition("?")[0]
    if ":generateContent" in path or ":streamGenerateContent" in path:
        return "gemini"
    return next(
        (api for end, api in APIS.items() if path.endswith(end.removeprefix("/v1"))),
        None,
    )


def _size(body: Mapping[str, Any]) -> int:
    text = json.dumps([body.get(key) for key in _PROMPT_KEYS], ensure_ascii=False)
    return int(len(text) / CHARS_PER_TOKEN)


def _without_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_marks(part) for key, part in value.items() if key != "cache_control"}
    return [_without_marks(part) for part in value] if isinstance(value, list) else value


def _shared_length(before: str, after: str) -> int:
    low = 0
    high = min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[:middle] == after[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _too_long(api: str, prompt: int, window: int) -> str:
    if api == "anthropic":
        return f"prompt is too long: {prompt} tokens > {window} maximum"
    if api == "gemini":
        return (
            f"The input token count ({prompt}) exceeds the maximum number of tokens "
            f"allowed ({window})."
        )
    return (
        f"This model's maximum context length is {window} tokens. However, your messages "
        f"resulted in {prompt} tokens. Please reduce the length of the messages."
    )


def _error(api: str, message: str) -> dict[str, Any]:
    if api == "anthropic":
        error = {"type": "invalid_request_error", "message": message}
        return {"type": "error", "error": error}
    if api == "gemini":
        return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    return {"error": {"message": message, "type": "invalid_request_error", "code": None}}


def _encode(
    api: str, path: str, body: Mapping[str, Any], told: Any, sizes: Sizes
) -> tuple[Any, Iterable[Event] | None]:
    if api == "gemini":
        model = path.partition("/models/")[2].partition(":")[0]
        whole = answers.gemini_answer(model, told, sizes)
        return whole, [("", whole)] if ":stream" in path else None
    if api == "anthropic":
        whole = answers.anthropic_answer(body, told, sizes)
        events = answers.anthropic_events(whole)
    elif api == "openai_chat":
        whole = answers.chat_answer(body, told, sizes)
        usage = (body.get("stream_options") or {}).get("include_usage")
        events = answers.chat_events(whole, with_usage=bool(usage))
    else:
        whole = answers.responses_answer(body, told, sizes)
        events = answers.responses_events(whole)
    return whole, events if body.get("stream") else None


def _decode(raw: bytes, encoding: str | None) -> bytes:
    if encoding == "zstd":
        return zstd.decompress(raw)
    return gzip.decompress(raw) if encoding == "gzip" else raw


class _Handler(BaseHTTPRequestHandler):
    """Read requests for a provider, and write its answers."""

    provider: StrictProvider
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_list = self.path.partition("?")[0].endswith("/models")
        listed = self.provider.models()
        if is_list:
            self._send(200, listed)
        elif "/models/" in self.path:
            self._send(200, {**listed["data"][0], **listed["models"][0]})
        else:
            self._send(404, {"error": {"message": f"unknown path {self.path}"}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(_decode(raw, self.headers.get("content-encoding")))
        except ValueError:
            self._send(400, {"error": {"message": "the body is not JSON"}})
            return
        status, whole, events = self.provider.respond(self.path, body)
        if events is None:
            self._send(status, whole)
        else:
            self._stream(events)

    def _send(self, status: int, value: Any) -> None:
        self._write(status, "application/json", json.dumps(value).encode())

    def _stream(self, events: Iterable[Event]) -> None:
        lines = []
        for name, data in events:
            lines += [f"event: {name}\n"] if name else []
            lines.append(f"data: {json.dumps(data)}\n\n")
        if self.path.endswith("/chat/completions"):
            lines.append("data: [DONE]\n\n")
        self._write(200, "text/event-stream", "".join(lines).encode())

    def _write(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _handler_for(provider: StrictProvider) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"provider": provider})
