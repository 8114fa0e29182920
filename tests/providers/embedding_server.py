"""A server of vectors on this machine, as OpenAI's: words of one meaning lie in one direction."""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SIZE = 256
MEANINGS = {"automobile": "car", "vehicle": "car", "crimson": "red", "colour": "red", "purchased": "bought"}
EMPTY = {"the", "a", "of", "in", "is", "was", "it", "which", "did", "what", "and", "to", "her", "his", "has"}


@dataclass
class Served:
    """What is asked of it, and what it is to do about that."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None


def vector(text: str) -> list[float]:
    numbers = [0.0] * SIZE
    for word in re.findall(r"\w+", text.lower()):
        if word not in EMPTY:
            numbers[zlib.crc32(MEANINGS.get(word, word).encode()) % SIZE] += 1.0
    return numbers if any(numbers) else [1.0] * SIZE


@contextmanager
def embedding_server() -> Iterator[Served]:
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            served.asked.append({"path": self.path, **asked})
            served.keys.append(self.headers["authorization"])
            rows = [
                {"object": "embedding", "index": place, "embedding": vector(text)}
                for place, text in enumerate(asked["input"])
            ]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            answer = {"object": "list", "model": asked["model"], "data": rows[::-1], "usage": usage}
            body = served.body if served.body is not None else json.dumps(answer).encode()
            self.send_response(served.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named so by its base
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
