"""Token usage in one form, whichever provider reported it.

`input`, `cache_read` and `cache_write` are disjoint and make up the prompt; `output`
contains the reasoning. Providers differ in whether their prompt figure includes the
cached part: it does not for Anthropic, Bedrock and llama.cpp, and does for all others.
A figure that is missing or not a count is read as zero.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CanonicalUsage:
    """Tokens of one call, or of several added up."""

    input_tokens: int = 0
    """Prompt tokens that were neither read from the cache nor written to it."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    """For information: part of the output already, never added or subtracted."""
    cache_write_1h_tokens: int = 0
    """The part of the written tokens that is kept for an hour, at a higher price."""
    raw: Any = field(default=None, compare=False, repr=False)
    """The unchanged object that the provider reported."""
    cache_miss: str = field(default="", compare=False)
    """Why the cache missed, as the provider says; empty if it was not asked."""

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: CanonicalUsage) -> CanonicalUsage:
        names = [item.name for item in fields(self) if item.compare]
        return CanonicalUsage(
            **{name: getattr(self, name) + getattr(other, name) for name in names}
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """The field names of a provider's figures: lower case, no underscores, dots for nesting.

    Several names of `prompt` and `output` are added up. Of the other figures the largest
    counts, because providers repeat them.
    """

    prompt: tuple[str, ...]
    output: tuple[str, ...]
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    includes_cache: bool = True
    prompt_parts: tuple[str, ...] = ()
    """Figures that add up to the prompt if its own figure is missing."""
    output_else: tuple[str, ...] = ()
    """Used if the output's own figure is missing: some dialects mix the names of two APIs."""


_WRITTEN_1H = ("cachecreation.ephemeral1hinputtokens", "cachewrite1htokens")
_WRITTEN_5M = ("cachecreation.ephemeral5minputtokens",)
_ANTHROPIC = _Shape(
    prompt=("inputtokens",),
    output=("outputtokens",),
    read=("cachereadinputtokens", "cachereadtokens", "cachereadinputtokencount"),
    write=(
        "cachecreationinputtokens",
        "cachewriteinputtokens",
        "cachewritetokens",
        "cachewriteinputtokencount",
    ),
    reasoning=("outputtokensdetails.thinkingtokens", "reasoningtokens"),
    includes_cache=False,
)
_CHAT = _Shape(
    prompt=("prompttokens",),
    output=("completiontokens",),
    read=(
        "prompttokensdetails.cachedtokens",
        "inputtokensdetails.cachedtokens",
        "cachedtokens",
        "promptcachehittokens",
        "cachereadinputtokens",
        "cachereadtokens",
    ),
    write=(
        "prompttokensdetails.cachewritetokens",
        "prompttokensdetails.cachecreationtokens",
        "cachecreationinputtokens",
        "cachewritetokens",
    ),
    reasoning=(
        "completiontokensdetails.reasoningtokens",
        "outputtokensdetails.reasoningtokens",
        "reasoningtokens",
    ),
    prompt_parts=("promptcachehittokens", "promptcachemisstokens"),
    output_else=("outputtokens",),
)
_RESPONSES = _Shape(
    prompt=("inputtokens",),
    output=("outputtokens",),
    read=(
        "inputtokensdetails.cachedtokens",
        "prompttokensdetails.cachedtokens",
        "cachedinputtokens",
        "cachedtokens",
        "cachereadinputtokens",
    ),
    write=(
        "inputtokensdetails.cachecreationtokens",
        "inputtokensdetails.cachewritetokens",
        "cachecreationinputtokens",
    ),
    reasoning=("outputtokensdetails.reasoningtokens", "reasoningtokens"),
)
_GEMINI = _Shape(
    prompt=("prompttokencount", "tooluseprompttokencount"),
    output=("candidatestokencount", "thoughtstokencount"),
    read=("cachedcontenttokencount",),
    reasoning=("thoughtstokencount",),
)
_OLLAMA = _Shape(prompt=("promptevalcount",), output=("evalcount",))
_SHORT = _Shape(
    prompt=("input",),
    output=("output",),
    read=("cacheread",),
    write=("cachewrite",),
    includes_cache=False,
)
_LLAMA = _Shape(
    prompt=("promptn",), output=("predictedn",), read=("cachen",), includes_cache=False
)

_BY_API = {
    "responses": (_RESPONSES,),
    "anthropic": (_ANTHROPIC,),
    "gemini": (_GEMINI,),
    "chat": (_CHAT,),
    "openai": (_CHAT, _RESPONSES),
}
"""The forms of an API by a word of its name (`openai_chat`, `chat_completions`, `anthropic_messages` …)."""
_OPENAI_ONLY = frozenset(
    {"inputtokensdetails", "cachedinputtokens", "cachedtokens", "prompttokensdetails"}
)
"""Names that show that `input_tokens` is OpenAI's, which includes the cache."""
_BY_FIELDS = (_CHAT, _GEMINI, _OLLAMA, _LLAMA, _ANTHROPIC, _SHORT)
"""Tried in this order: a prompt figure that includes the cache wins over Anthropic's."""
_ENVELOPES = ("usage", "usagemetadata", "tokens", "timings")
_KNOWN = frozenset(
    part
    for shape in (*_BY_FIELDS, _RESPONSES)
    for names in (
        shape.prompt,
        shape.output,
        shape.read,
        shape.write,
        shape.reasoning,
        shape.prompt_parts,
    )
    for name in (*names, *_WRITTEN_1H, *_WRITTEN_5M, *_ENVELOPES)
    for part in name.split(".")
)
_NESTED = frozenset(
    name.partition(".")[0]
    for shape in (*_BY_FIELDS, _RESPONSES)
    for name in (
        *shape.read,
        *shape.write,
        *shape.reasoning,
        *_WRITTEN_1H,
        *_WRITTEN_5M,
    )
    if "." in name
)
"""Objects that hold figures."""


def normalize_usage(raw: Any, *, api: str | None = None) -> CanonicalUsage:
    """Normalize the usage that a provider reported, as a dict or an SDK's object.

    `api` decides if the fields fit several providers.
    """
    if isinstance(raw, CanonicalUsage):
        return raw
    named = _fields_by_name(raw)
    counts = _read_counts(named)
    shape = _shape(named, counts, api)
    if shape is None:
        named = next(
            (_fields_by_name(named[key]) for key in _ENVELOPES if key in named), named
        )
        counts = _read_counts(named)
        shape = _shape(named, counts, api) or _ANTHROPIC
    read = _largest(counts, shape.read)
    write = _largest(counts, shape.write)
    hour = _largest(counts, _WRITTEN_1H)
    write = max(write, hour + _largest(counts, _WRITTEN_5M))
    prompt = _sum(counts, shape.prompt, shape.prompt_parts)
    if shape.includes_cache and prompt is not None:
        read = min(read, prompt)
        write = min(write, prompt - read)
        prompt -= read + write
    return CanonicalUsage(
        input_tokens=prompt or 0,
        output_tokens=_sum(counts, shape.output, shape.output_else) or 0,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=_largest(counts, shape.reasoning),
        cache_write_1h_tokens=min(hour, write),
        raw=raw,
    )


def _shape(
    named: Mapping[str, Any], counts: Mapping[str, int], api: str | None
) -> _Shape | None:
    """Return the API's own shape if it has figures, else the first shape that has."""
    name = api.lower() if isinstance(api, str) else ""
    stated = next((shapes for word, shapes in _BY_API.items() if word in name), ())
    for shape in (*stated, *_BY_FIELDS):
        if any(map(counts.get, (*shape.prompt, *shape.output, *shape.prompt_parts))):
            is_openai = (
                shape is _ANTHROPIC
                and shape not in stated
                and not _OPENAI_ONLY.isdisjoint(named)
            )
            return _RESPONSES if is_openai else shape
    return None


def _sum(
    counts: Mapping[str, int], names: Iterable[str], otherwise: Iterable[str]
) -> int | None:
    stated = [counts[name] for name in names if name in counts] or [
        counts[n] for n in otherwise if n in counts
    ]
    return sum(stated) if stated else None


def _largest(counts: Mapping[str, int], names: Iterable[str]) -> int:
    return max((counts[name] for name in names if name in counts), default=0)


def _read_counts(named: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts by name, nested ones as `outer.inner`; skip other values."""
    flat = {name: value for name, value in named.items() if name not in _NESTED}
    for name in _NESTED.intersection(named):
        flat |= {
            f"{name}.{inner}": value
            for inner, value in _fields_by_name(named[name]).items()
        }
    return {name: int(value) for name, value in flat.items() if _is_count(value)}


def _is_count(value: Any) -> bool:
    return (
        re.fullmatch(r"[0-9]{1,15}", value) is not None
        if isinstance(value, str)
        else is_figure(value)
    )


def is_figure(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < 10**15
    )


_TYPES_WITHOUT_FIELDS = (type(None), str, int, float, list, tuple, Mapping)
"""Types without attributes to read."""


def _fields_by_name(raw: Any) -> dict[str, Any]:
    """Return the fields of a mapping or an object by bare name; none for other values."""
    items: dict[Any, Any] = {}
    # A foreign object may fail in any way; it then reports nothing.
    with contextlib.suppress(Exception):
        if isinstance(raw, Mapping):
            items.update(raw)
        elif hasattr(raw, "model_dump"):
            items.update(raw.model_dump())
    if not items and not isinstance(raw, _TYPES_WITHOUT_FIELDS):
        for name in dir(raw):
            with contextlib.suppress(Exception):  # as above
                if _bare(name) in _KNOWN:
                    items[name] = getattr(raw, name)
    return {
        _bare(key): item
        for key, item in items.items()
        if isinstance(key, str) and item is not None
    }


@functools.lru_cache(maxsize=1_000)
def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
