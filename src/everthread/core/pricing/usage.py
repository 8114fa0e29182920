"""What a call used, in one form, whichever provider reported it.

`input`, `cache_read` and `cache_write` are disjoint and make up the prompt; `output` contains the reasoning. The
providers differ in whether their prompt figure already contains the cached part: Anthropic's, Bedrock's and
llama.cpp's does not, everybody else's does. A figure that is missing or no count is nothing, never an exception.
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
    """How many of the written ones were written for an hour; they cost more."""
    raw: Any = field(default=None, compare=False, repr=False)
    """What the provider reported, as it came."""

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: CanonicalUsage) -> CanonicalUsage:
        names = [item.name for item in fields(self) if item.name != "raw"]
        return CanonicalUsage(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a provider's figures are: names without case and underscores, dots into nested objects.

    Several names of `prompt` and `output` add up; of the other figures the largest counts, for providers repeat them.
    """

    prompt: tuple[str, ...]
    output: tuple[str, ...]
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    includes_cache: bool = True
    prompt_parts: tuple[str, ...] = ()
    """What makes up the prompt where its own figure is missing."""
    output_else: tuple[str, ...] = ()
    """The output where its own figure is missing: some dialects mix two APIs' names."""


_WRITTEN_1H = ("cachecreation.ephemeral1hinputtokens", "cachewrite1htokens")
_WRITTEN_5M = ("cachecreation.ephemeral5minputtokens",)
_ANTHROPIC = _Shape(
    prompt=("inputtokens",),
    output=("outputtokens",),
    read=("cachereadinputtokens", "cachereadtokens", "cachereadinputtokencount"),
    write=("cachecreationinputtokens", "cachewriteinputtokens", "cachewritetokens", "cachewriteinputtokencount"),
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
    reasoning=("completiontokensdetails.reasoningtokens", "outputtokensdetails.reasoningtokens", "reasoningtokens"),
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
_SHORT = _Shape(prompt=("input",), output=("output",), read=("cacheread",), write=("cachewrite",), includes_cache=False)
_LLAMA = _Shape(prompt=("promptn",), output=("predictedn",), read=("cachen",), includes_cache=False)

_BY_API = {"responses": (_RESPONSES,), "anthropic": (_ANTHROPIC,), "chat": (_CHAT,), "openai": (_CHAT, _RESPONSES)}
"""The forms of an API by a word of its name (`openai_chat`, `chat_completions`, `anthropic_messages` …)."""
_OPENAI_ONLY = frozenset({"inputtokensdetails", "cachedinputtokens", "cachedtokens", "prompttokensdetails"})
"""Beside `input_tokens` these show that it is OpenAI's, which contains the cache, not Anthropic's."""
_BY_FIELDS = (_CHAT, _GEMINI, _OLLAMA, _LLAMA, _ANTHROPIC, _SHORT)
"""Tried in this order: a prompt figure that contains the cache wins over Anthropic's names beside it."""
_ENVELOPES = ("usage", "usagemetadata", "tokens", "timings")
_KNOWN = frozenset(
    part
    for shape in (*_BY_FIELDS, _RESPONSES)
    for names in (shape.prompt, shape.output, shape.read, shape.write, shape.reasoning, shape.prompt_parts)
    for name in (*names, *_WRITTEN_1H, *_WRITTEN_5M, *_ENVELOPES)
    for part in name.split(".")
)


def normalize_usage(raw: Any, *, api: str | None = None) -> CanonicalUsage:
    """The usage that a provider reported: a dict or an SDK's object. `api` settles what the fields leave open."""
    if isinstance(raw, CanonicalUsage):
        return raw
    named = _named(raw)
    shape = _shape(named, api)
    if shape is None:
        named = next((_named(named[key]) for key in _ENVELOPES if key in named), named)
        shape = _shape(named, api) or _ANTHROPIC
    read, write = _largest(named, shape.read), _largest(named, shape.write)
    hour = _largest(named, _WRITTEN_1H)
    write = max(write, hour + _largest(named, _WRITTEN_5M))
    prompt = _sum(named, shape.prompt)
    if prompt is None:
        prompt = _sum(named, shape.prompt_parts)
    if shape.includes_cache and prompt is not None:
        read = min(read, prompt)
        write = min(write, prompt - read)
        prompt -= read + write
    output = _sum(named, shape.output)
    if output is None:
        output = _sum(named, shape.output_else)
    return CanonicalUsage(
        input_tokens=prompt or 0,
        output_tokens=output or 0,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=_largest(named, shape.reasoning),
        cache_write_1h_tokens=min(hour, write),
        raw=raw,
    )


def _shape(named: Mapping[str, Any], api: str | None) -> _Shape | None:
    """The API's own form if it has figures there, else the first form that has."""
    name = api.lower() if isinstance(api, str) else ""
    stated = next((shapes for word, shapes in _BY_API.items() if word in name), ())
    for shape in (*stated, *_BY_FIELDS):
        if any(_find(named, name) for name in (*shape.prompt, *shape.output, *shape.prompt_parts)):
            is_openai = shape is _ANTHROPIC and shape not in stated and not _OPENAI_ONLY.isdisjoint(named)
            return _RESPONSES if is_openai else shape
    return None


def _sum(named: Mapping[str, Any], names: Iterable[str]) -> int | None:
    counts = [count for count in (_find(named, name) for name in names) if count is not None]
    return sum(counts) if counts else None


def _largest(named: Mapping[str, Any], names: Iterable[str]) -> int:
    return max((_find(named, name) or 0 for name in names), default=0)


def _find(named: Mapping[str, Any], name: str) -> int | None:
    """The count under a name; None where there is none, or something that is no count."""
    outer, _, inner = name.partition(".")
    value = named.get(outer)
    if inner:
        value = _named(value).get(inner)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**15:
        return None
    return int(value)


_PLAIN = (type(None), str, int, float, list, tuple, Mapping)
"""What has no fields, or has them as items."""


def _named(raw: Any) -> dict[str, Any]:
    """The fields of a mapping or an object, by bare name; nothing for anything else."""
    items: dict[Any, Any] = {}
    with contextlib.suppress(Exception):  # a foreign object may refuse in any way; then it reports nothing
        if isinstance(raw, Mapping):
            items.update(raw)
        elif hasattr(raw, "model_dump"):
            items.update(raw.model_dump())
    if not items and not isinstance(raw, _PLAIN):
        for name in dir(raw):
            with contextlib.suppress(Exception):  # as above
                if _bare(name) in _KNOWN:
                    items[name] = getattr(raw, name)
    return {_bare(key): item for key, item in items.items() if isinstance(key, str) and item is not None}


@functools.lru_cache(maxsize=1_000)
def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
