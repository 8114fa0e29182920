"""What is known about a model beforehand, from its name: window, output cap, how its provider caches.

Our table (`catalog.toml`) knows families; the price table knows many single models, and newer ones. So a name our
table has as it is comes first, then the price table's window, then the family. Nobody is asked over the network.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

from everthread.core.pricing.prices import stated_window

Caching = Literal["marks", "automatic"]

_VARIANT = re.compile(
    r"(?:-(?:\d{8}|\d{6}|\d{4}-\d{2}-\d{2}|\d{4}|\d{2}-\d{2}|latest|preview|beta|exp|instruct|it|thinking|v\d(?:-\d(?!\d))?)(?![^-]))*+"
)
"""What may follow a model's name without making it another model: dates, stages, Bedrock's versions."""
_BEDROCK = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|meta|mistral|amazon|deepseek|openai|qwen)\.")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What the catalogue says of a model; None where it says nothing."""

    family: str
    """The name that was found: how far the model's own name was recognised."""
    window: int | None = None
    max_output: int | None = None
    cache: Caching | None = None
    cache_min: int | None = None
    exact: bool = False
    """The name is the one in the table, dates and the like aside; else it is only of that family."""


def known_model(name: str, *, provider: str | None = None) -> KnownModel | None:
    """What is known about the model of this name, as it is called at any provider."""
    found = _family(name)
    if found is not None and found.exact:
        return found
    window = stated_window(name, provider=provider)
    if window is None:
        return found
    found = found or KnownModel(plain_name(name))
    capped = found.max_output is not None and found.max_output < window
    return replace(found, window=window, max_output=found.max_output if capped else None)


def plain_name(name: str) -> str:
    """A model's name without vendor, variant and punctuation: `openrouter/anthropic/claude-3.5-haiku:beta` is
    `claude-3-5-haiku`, as are Bedrock's and Vertex's forms of it."""
    text = name.strip().lower().rsplit("/", 1)[-1]
    text = _BEDROCK.sub("", text).split(":", 1)[0]
    return re.sub(r"[._@ ]", "-", text)


def families() -> list[KnownModel]:
    """Every family of our table, by name."""
    return [_families()[name] for name in sorted(_families())]


@functools.lru_cache(maxsize=256)
def _family(name: str) -> KnownModel | None:
    plain, table = plain_name(name), _families()
    ends = [len(plain), *(at for at in range(len(plain) - 1, 0, -1) if not plain[at].isalnum())]
    found = next((plain[:end] for end in ends if plain[:end] in table), None)
    if found is None:
        return None
    return replace(table[found], exact=_VARIANT.fullmatch(plain[len(found) :]) is not None)


@functools.cache
def _families() -> dict[str, KnownModel]:
    text = files(__package__).joinpath("catalog.toml").read_text("utf-8")
    entries: list[dict[str, Any]] = tomllib.loads(text)["family"]
    return {
        plain_name(name): KnownModel(
            plain_name(name), entry.get("window"), entry.get("output"), entry.get("cache"), entry.get("cache_min")
        )
        for entry in entries
        for name in entry["names"]
    }
