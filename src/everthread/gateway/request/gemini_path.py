"""Gemini names the model in the path of a request, and whether it streams: here both become fields of its body.

The gateway reads and rewrites a body with these fields, and takes them out again before a rewritten body goes upstream.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_PATH = re.compile(
    r"/v1(?:beta|alpha)?(?:\d+)?/(?:models|tunedModels)/(?P<model>[^/:]+):(?P<method>generateContent|streamGenerateContent)"
)
_MODEL = re.compile(r"/(?:models|tunedModels)/(?P<model>[^/:]+):\w+$")


@dataclass(frozen=True, slots=True)
class GeminiCall:
    """The fields in the path of a conversation."""

    model: str
    streams: bool

    @property
    def fields(self) -> bytes:
        """Its text in the body."""
        return f'"model":{json.dumps(self.model)},"stream":{json.dumps(self.streams)},'.encode()


def read_path(path: str) -> GeminiCall | None:
    """Return what the path of a request says; None if it asks for no answer to a conversation."""
    match = _PATH.fullmatch(path.rstrip("/"))
    return (
        None
        if match is None
        else GeminiCall(match["model"], match["method"] == "streamGenerateContent")
    )


def find_path_model(path: str) -> str | None:
    """Return the model that a path of Gemini's names, whatever it asks of it."""
    match = _MODEL.search(path)
    return None if match is None else match["model"]


def add_path(path: str, body: bytes) -> bytes:
    """Return the body with the path's fields first; unchanged if it is not an object."""
    call = read_path(path)
    start = body.find(b"{")
    if call is None or start < 0 or body[:start].strip():
        return body
    return body[: start + 1] + call.fields + body[start + 1 :]


def remove_path(path: str, body: bytes) -> bytes:
    """Return a body that was made from `add_path` without the path's fields."""
    call = read_path(path)
    return body if call is None else body.replace(call.fields, b"", 1)
