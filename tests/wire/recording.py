"""A small real HTTP server on loopback that records what it is sent and answers from a script.

with recording_server([json_reply({...}), sse_reply([b"..."])]) as server:
    client = SomeSdk(base_url=server.url)
    ...
server.requests[0].body
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it arrived; header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer. Several chunks are flushed one by one, so a client meets them at those boundaries."""

    chunks: tuple[bytes, ...]
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RecordingServer:
    url: str
    requests: list[Recorded] = field(default_factory=list)


def json_reply(body: Any, *, status: int = 200) -> Scripted:
    return Scripted((json.dumps(body).encode(),), status=status)


def sse_reply(chunks: Iterable[bytes]) -> Scripted:
    return Scripted(tuple(chunks), content_type="text/event-stream; charset=utf-8")


_UNSCRIPTED = json_reply({"error": {"message": "no reply was scripted"}}, status=500)


@contextmanager
def recording_server(replies: Sequence[Scripted]) -> Iterator[RecordingServer]:
    """Answers the n-th request with the n-th reply; one more than scripted gets status 500."""
    script = iter(replies)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                recording.requests.append(Recorded(self.command, self.path, headers, raw))
                reply = next(script, None) or json_reply(
                    {"error": {"message": "no reply was scripted"}}, status=500
                )
            self.send_response(reply.status)
            self.send_header("content-type", reply.content_type)
            self.send_header("transfer-encoding", "chunked")
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in reply.chunks:
                if chunk:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_args: Any) -> None:
            """Quiet: the requests are in the record."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    recording = RecordingServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield recording
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
