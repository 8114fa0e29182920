"""Replace `requests.c` and `upstream.c` on a machine without a C compiler. Run it by its path, in a separate process.

usage: python_load.py requests FILE CONNECTIONS PAUSE_MS PORT...
       python_load.py upstream TEXT
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = "claude-sonnet-5"
HEADERS = {
    "content-type": "application/json",
    "x-api-key": "any",
    "anthropic-version": "2023-06-01",
}


def send_requests(file: str, connections: str, pause_ms: str, *ports: str) -> None:
    """Send the requests of a file and print a line for each answer."""
    bodies = _read_requests(Path(file))
    begun = time.monotonic()
    threads = [
        threading.Thread(
            target=_run_connection, args=(number, bodies[number], ports, int(pause_ms))
        )
        for number in range(int(connections))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"seconds {time.monotonic() - begun:.6f}\n")


def _read_requests(file: Path) -> dict[int, list[bytes]]:
    bodies: dict[int, list[bytes]] = {}
    with file.open("rb") as source:
        while line := source.readline():
            connection, length = line.split()
            bodies.setdefault(int(connection), []).append(source.read(int(length)))
    return bodies


def _run_connection(
    number: int, bodies: list[bytes], ports: tuple[str, ...], pause_ms: int
) -> None:
    channels = [http.client.HTTPConnection("127.0.0.1", int(port)) for port in ports]
    for body in bodies:
        for index, channel in enumerate(channels):
            begun = time.perf_counter()
            channel.request("POST", "/v1/messages", body, HEADERS)
            answer = channel.getresponse()
            first = time.perf_counter() - begun
            answer.read()
            last = time.perf_counter() - begun
            sys.stdout.write(
                f"{number} {index} {answer.status} {1e6 * first:.0f} {1e6 * last:.0f}\n"
            )
            time.sleep(pause_ms / 1_000)
    for channel in channels:
        channel.close()


def serve_at_once(text: str) -> None:
    """Answer every request with this text; print the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            streams = b'"stream":true' in self.rfile.read(length)
            answer = _make_answer(text, length // 4, streams=streams)
            kind = "text/event-stream" if streams else "application/json"
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def _make_answer(text: str, tokens: int, *, streams: bool) -> bytes:
    usage = {"input_tokens": tokens, "output_tokens": 20}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL}
    block = {"type": "text", "text": text}
    whole = {**message, "content": [block], "stop_reason": "end_turn", "usage": usage}
    if not streams:
        return json.dumps(whole).encode()
    events: list[dict[str, object]] = [
        {
            "type": "message_start",
            "message": {**message, "content": [], "usage": usage},
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 20},
        },
        {"type": "message_stop"},
    ]
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), json.dumps(event).encode())
        for event in events
    )


if __name__ == "__main__":
    if sys.argv[1] == "requests":
        send_requests(*sys.argv[2:])
    else:
        serve_at_once(*sys.argv[2:])
