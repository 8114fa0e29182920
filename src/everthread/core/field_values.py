"""Choose fields of a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def pick_fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields of a value, such as for its JSON form."""
    return {name: getattr(value, name) for name in names}
