"""Collect the status, codes, texts and counts of an error of any shape."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MAX_DEPTH = 16
_MAX_CHARS = 20_000
"""Characters read of one text; an error message is shorter, an echoed prompt may not be."""
_MAX_ITEMS = 50

_CODE_KEYS = frozenset(
    {
        "code",
        "type",
        "status",
        "reason",
        "name",
        "statuscode",
        "httpstatuscode",
        "httpstatus",
        "errortype",
    }
    | {"errorcode", "errcode", "providererrorcode", "stopreason", "finishreason"}
)
_SUBJECT_KEYS = ("param", "parameter", "loc", "field")
_MESSAGE_KEYS = frozenset({"message", "msg", "detail", "error"})
_ECHOED_REQUEST_KEYS = frozenset(
    {
        "input",
        "instructions",
        "messages",
        "output",
        "tools",
        "content",
        "choices",
        "prompt",
        "request",
        "headers",
    }
    | {
        "failedgeneration",
        "inputvalue",
        "httpheaders",
        "url",
        "id",
        "requestid",
        *_SUBJECT_KEYS,
    }
)
_COUNT_KEYS = {"nctx": "limit", "nprompttokens": "input"}
_ERROR_ATTRIBUTES = (
    "status_code",
    "status",
    "http_status",
    "code",
    "type",
    "message",
    "text",
)
_NESTED_ATTRIBUTES = ("body", "error", "response", "details", "exceptions")
_CODE_IN_TEXT_PATTERN = re.compile(
    r"""(?:["'](?:error_?)?(?:code|type|status|name|reason)\\?["']\s*:\s*\\?["']|(?:stop|finish)[ _]reason: )"""
    r"""([\w.\- ]{2,80})""",
    re.IGNORECASE,
)
_STATUS_IN_TEXT_PATTERN = re.compile(
    r"(?:error code|status code|http)[: ]+([1-5]\d\d)\b|^([45]\d\d) status code",
    re.IGNORECASE,
)
_COUNT_IN_TEXT_PATTERN = re.compile(r"""["'](n_ctx|n_prompt_tokens)\\?["']\s*:\s*(\d{1,9})""")


@dataclass(slots=True)
class Evidence:
    """The facts that an error states. `is_structured`: whether the error was an object or JSON, not plain text."""

    status: int | None = None
    codes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    is_structured: bool = False

    def add(self, value: Any, depth: int = 0) -> None:
        """Collect the facts in a part of an error: a text, JSON, a list, or an SDK's object."""
        if value is None or isinstance(value, bool | int | float) or depth > _MAX_DEPTH:
            return
        if isinstance(value, bytes | bytearray):
            value = bytes(value[: 4 * _MAX_CHARS]).decode("utf-8", "replace")
        if isinstance(value, str):
            self._add_text(value, depth)
        elif isinstance(value, Mapping):
            self._add_mapping(value, depth)
        elif isinstance(value, list | tuple):
            for item in value[:_MAX_ITEMS]:
                self.add(item, depth + 1)
        else:
            self._add_object(value, depth)

    def _add_text(self, text: str, depth: int) -> None:
        """Add a text; JSON inside it is parsed."""
        text = text.strip()
        if len(text) > _MAX_CHARS:
            text = text[: _MAX_CHARS * 3 // 4] + "\n" + text[-_MAX_CHARS // 4 :]
        first_brace = text.find("{")
        last_brace = text.rfind("}")
        if 0 <= first_brace < last_brace:
            with contextlib.suppress(ValueError, RecursionError):
                self.add(json.loads(text[first_brace : last_brace + 1]), depth + 1)
                text = text[:first_brace].strip()
        self.codes += _CODE_IN_TEXT_PATTERN.findall(text)
        for status in _STATUS_IN_TEXT_PATTERN.findall(text):
            self._add_code(status[0] or status[1])
        for key, number in _COUNT_IN_TEXT_PATTERN.findall(text):
            self.counts.setdefault(_COUNT_KEYS[_normalize_key(key)], int(number))
        if text and text not in self.texts[:_MAX_ITEMS]:
            self.texts.append(text)

    def _add_mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        self.is_structured = True
        fields_by_name = {
            _normalize_key(key): item for key, item in value.items() if isinstance(key, str)
        }
        subject = _find_subject(fields_by_name)
        for key, item in fields_by_name.items():
            if key in _COUNT_KEYS and type(item) is int and 0 < item < 10**9:
                self.counts.setdefault(_COUNT_KEYS[key], item)
            elif key in _CODE_KEYS and isinstance(item, str | int):
                self._add_code(str(item))
            elif key in _MESSAGE_KEYS and isinstance(item, str) and subject and "{" not in item:
                self._add_text(f"{subject}: {item}", depth)
            elif key not in _ECHOED_REQUEST_KEYS:
                self.add(item, depth + 1)

    def _add_code(self, code: str) -> None:
        number = int(code) if re.fullmatch("[0-9]{3}", code) else 0
        if 100 <= number <= 599:
            self.status = self.status or number
        else:
            self.codes.append(code[:200])

    def _add_object(self, value: Any, depth: int) -> None:
        """Add an exception or another object, by the attributes that SDKs give to errors and responses."""
        attributes: dict[str, Any] = {}
        for name in (*_ERROR_ATTRIBUTES, *_NESTED_ATTRIBUTES):
            # A property of a foreign object may raise anything.
            with contextlib.suppress(Exception):
                item = getattr(value, name, None)
                if name in _NESTED_ATTRIBUTES or isinstance(item, str | int):
                    attributes[name] = item
        if isinstance(value, BaseException):
            self.codes.append(type(value).__name__)
            attributes["error text"] = str(value)
            attributes["cause"] = value.__cause__ or value.__context__
        if any(item is not None for item in attributes.values()):
            self._add_mapping(attributes, depth + 1)


def _normalize_key(key: str) -> str:
    return re.sub(r"[^a-z]", "", key[:100].lower())


def _find_subject(fields_by_name: Mapping[str, Any]) -> str:
    """Return the parameter that a message is about, if a field names it."""
    for key in _SUBJECT_KEYS:
        value = fields_by_name.get(key)
        if isinstance(value, list | tuple):
            value = ".".join(str(part) for part in value[:10])
        if isinstance(value, str) and value:
            return value[:2000]
    return ""
