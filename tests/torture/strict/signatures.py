"""Signatures of reasoning: they hold only if the text comes back unchanged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

_KEY = b"strict provider"


def sign(text: str) -> str:
    """Return the signature of a text."""
    digest = hmac.digest(_KEY, text.encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def is_signed(text: str, signature: str) -> bool:
    """Return whether a signature belongs to a text."""
    return hmac.compare_digest(sign(text), signature)


def call_text(call: Mapping[str, Any]) -> str:
    """Return the signed text of a Gemini function call."""
    return json.dumps([call["name"], call.get("args") or {}], sort_keys=True)
