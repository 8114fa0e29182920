"""Words of languages: months, stop words, irregular forms."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def load_language_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        resources.files("everthread.core")
        .joinpath("data/language.json")
        .read_text("utf-8")
    )
    return data
