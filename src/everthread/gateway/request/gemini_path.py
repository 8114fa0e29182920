"""Copy the model and the streaming option from the path of a Gemini request into fields of its body.

The gateway reads and rewrites a body with these fields, and removes them before a rewritten body is sent upstream.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_PATH_PATTERN = re.compile(
    r"/v1(?:beta|alpha)?(?:\d+)?/(?:models|tunedModels)/(?P<model>[^/:]+):(?P<method>generateContent|streamGenerateContent)"
)
_MODEL_PATTERN = re.compile(r"/(?:models|tunedModels)/(?P<model>[^/:]+):\w+$")


@dataclass(frozen=True, slots=True)
class GeminiPathFields:
    """The fields in the path of a conversation."""

    model: str
    wants_stream: bool

    @property
    def text(self) -> bytes:
        """The text of these fields in the body."""
        return (
            f'"model":{json.dumps(self.model)},"stream":{json.dumps(self.wants_stream)},'.encode()
        )


def read_path_fields(path: str) -> GeminiPathFields | None:
    """Return the fields in the path of a request, or None if the path does not answer conversations."""
    match = _PATH_PATTERN.fullmatch(path.rstrip("/"))
    if match is None:
        return None
    return GeminiPathFields(match["model"], match["method"] == "streamGenerateContent")


def find_path_model(path: str) -> str | None:
    """Return the model in any path of Gemini, or None if it names none."""
    match = _MODEL_PATTERN.search(path)
    return None if match is None else match["model"]


def add_path_fields(path: str, body: bytes) -> bytes:
    """Return the body with the path's fields first; unchanged if it is not an object."""
    path_fields = read_path_fields(path)
    start = body.find(b"{")
    if path_fields is None or start < 0 or body[:start].strip():
        return body
    return body[: start + 1] + path_fields.text + body[start + 1 :]


def remove_path_fields(path: str, body: bytes) -> bytes:
    """Return the body without the path's fields, which `add_path` has added."""
    path_fields = read_path_fields(path)
    return body if path_fields is None else body.replace(path_fields.text, b"", 1)
