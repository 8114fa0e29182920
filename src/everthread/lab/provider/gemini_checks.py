"""Find problems in a request's contents for which Gemini refuses the request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.lab.provider.signatures import is_forged_call

_GENERATION_PATTERN = re.compile(r"gemini-(\d+)")
_FIRST_SIGNED_GENERATION = 3


def find_gemini_problems(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of the contents, in Gemini's words."""
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        yield "* GenerateContentRequest.contents: contents is not specified"
        return
    for index, content in enumerate(contents):
        if not content.get("parts"):
            yield f"* GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty."
        for part in content.get("parts") or ():
            if not part or part == {"thought": True}:
                yield "Unable to submit request because it must have a text parameter."
            if is_forged_call(part):
                yield "Corrupted thought signature."
    yield from _find_pairing_problems(contents)
    yield from _find_signature_problems(str(body.get("model")), contents)


def _find_pairing_problems(contents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for index, content in enumerate(contents):
        call_count = _count_parts(content, "functionCall")
        if call_count and index and contents[index - 1].get("role") == "model":
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        answer_count = (
            _count_parts(contents[index + 1], "functionResponse")
            if index + 1 < len(contents)
            else 0
        )
        # A call without results is accepted if the user continues the conversation after it.
        is_dropped = index == len(contents) - 2 and not answer_count
        if call_count != answer_count and not is_dropped:
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
    if _count_parts(contents[0], "functionResponse"):
        yield "Please ensure that function response turn comes immediately after a function call turn."


def _find_signature_problems(model: str, contents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Check that calls since the user's last message have a signature, from the third generation on."""
    generation = _GENERATION_PATTERN.search(model)
    if generation is None or int(generation[1]) < _FIRST_SIGNED_GENERATION:
        return
    for content in reversed(contents):
        if content.get("role") != "model" and not _count_parts(content, "functionResponse"):
            return
        calls = [part for part in content.get("parts") or () if "functionCall" in part]
        if calls and not calls[0].get("thoughtSignature"):
            name = calls[0]["functionCall"].get("name")
            yield (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                f"work correctly. Additional data, function call `default_api:{name}`."
            )


def _count_parts(content: Mapping[str, Any], name: str) -> int:
    return sum(name in part for part in content.get("parts") or ())
