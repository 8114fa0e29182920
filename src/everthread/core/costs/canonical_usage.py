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

from everthread.core.json_values import without_keys


@dataclass(frozen=True, slots=True)
class CanonicalUsage:
    """Tokens of one call, or the sum of several calls."""

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
    """Why the cache missed, as the provider says, or an empty string if it was not asked."""

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
class _UsageFieldNames:
    """The field names of a provider's figures: lower case, no underscores, dots for nesting.

    Several names of `prompt` and `output` are added up. For the other figures, the largest counts, because providers
    repeat them.
    """

    prompt: tuple[str, ...]
    output: tuple[str, ...]
    cache_read: tuple[str, ...] = ()
    cache_write: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    includes_cache: bool = True
    prompt_parts: tuple[str, ...] = ()
    """Figures that add up to the prompt if its own figure is missing."""
    fallback_output: tuple[str, ...] = ()
    """Used if the output's own figure is missing: some dialects mix the names of two APIs."""


_CACHE_WRITE_1H_NAMES = ("cachecreation.ephemeral1hinputtokens", "cachewrite1htokens")
_CACHE_WRITE_5M_NAMES = ("cachecreation.ephemeral5minputtokens",)
_ANTHROPIC_NAMES = _UsageFieldNames(
    prompt=("inputtokens",),
    output=("outputtokens",),
    cache_read=("cachereadinputtokens", "cachereadtokens", "cachereadinputtokencount"),
    cache_write=(
        "cachecreationinputtokens",
        "cachewriteinputtokens",
        "cachewritetokens",
        "cachewriteinputtokencount",
    ),
    reasoning=("outputtokensdetails.thinkingtokens", "reasoningtokens"),
    includes_cache=False,
)
_CHAT_NAMES = _UsageFieldNames(
    prompt=("prompttokens",),
    output=("completiontokens",),
    cache_read=(
        "prompttokensdetails.cachedtokens",
        "inputtokensdetails.cachedtokens",
        "cachedtokens",
        "promptcachehittokens",
        "cachereadinputtokens",
        "cachereadtokens",
    ),
    cache_write=(
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
    fallback_output=("outputtokens",),
)
_RESPONSES_NAMES = _UsageFieldNames(
    prompt=("inputtokens",),
    output=("outputtokens",),
    cache_read=(
        "inputtokensdetails.cachedtokens",
        "prompttokensdetails.cachedtokens",
        "cachedinputtokens",
        "cachedtokens",
        "cachereadinputtokens",
    ),
    cache_write=(
        "inputtokensdetails.cachecreationtokens",
        "inputtokensdetails.cachewritetokens",
        "cachecreationinputtokens",
    ),
    reasoning=("outputtokensdetails.reasoningtokens", "reasoningtokens"),
)
_GEMINI_NAMES = _UsageFieldNames(
    prompt=("prompttokencount", "tooluseprompttokencount"),
    output=("candidatestokencount", "thoughtstokencount"),
    cache_read=("cachedcontenttokencount",),
    reasoning=("thoughtstokencount",),
)
_OLLAMA_NAMES = _UsageFieldNames(prompt=("promptevalcount",), output=("evalcount",))
_SHORT_NAMES = _UsageFieldNames(
    prompt=("input",),
    output=("output",),
    cache_read=("cacheread",),
    cache_write=("cachewrite",),
    includes_cache=False,
)
_LLAMA_NAMES = _UsageFieldNames(
    prompt=("promptn",),
    output=("predictedn",),
    cache_read=("cachen",),
    includes_cache=False,
)

_NAMES_BY_API = {
    "responses": (_RESPONSES_NAMES,),
    "anthropic": (_ANTHROPIC_NAMES,),
    "gemini": (_GEMINI_NAMES,),
    "chat": (_CHAT_NAMES,),
    "openai": (_CHAT_NAMES, _RESPONSES_NAMES),
}
"""Field names of an API, by a word of the API's name (`openai_chat`, `anthropic_messages` …)."""
_OPENAI_ONLY_FIELDS = frozenset(
    {"inputtokensdetails", "cachedinputtokens", "cachedtokens", "prompttokensdetails"}
)
"""Fields that show that `input_tokens` is OpenAI's, which includes the cache."""
_DETECTION_ORDER = (
    _CHAT_NAMES,
    _GEMINI_NAMES,
    _OLLAMA_NAMES,
    _LLAMA_NAMES,
    _ANTHROPIC_NAMES,
    _SHORT_NAMES,
)
"""Tried in this order: a prompt figure that includes the cache wins over Anthropic's."""
_ENVELOPE_FIELDS = ("usage", "usagemetadata", "tokens", "timings")
_KNOWN_FIELDS = frozenset(
    part
    for shape in (*_DETECTION_ORDER, _RESPONSES_NAMES)
    for names in (
        shape.prompt,
        shape.output,
        shape.cache_read,
        shape.cache_write,
        shape.reasoning,
        shape.prompt_parts,
    )
    for name in (
        *names,
        *_CACHE_WRITE_1H_NAMES,
        *_CACHE_WRITE_5M_NAMES,
        *_ENVELOPE_FIELDS,
    )
    for part in name.split(".")
)
_NESTED_FIELDS = frozenset(
    name.partition(".")[0]
    for shape in (*_DETECTION_ORDER, _RESPONSES_NAMES)
    for name in (
        *shape.cache_read,
        *shape.cache_write,
        *shape.reasoning,
        *_CACHE_WRITE_1H_NAMES,
        *_CACHE_WRITE_5M_NAMES,
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
    fields_by_name = _index_fields(raw)
    counts = _read_counts(fields_by_name)
    names = _detect_names(fields_by_name, counts, api)
    if names is None:
        for key in _ENVELOPE_FIELDS:
            if key in fields_by_name:
                fields_by_name = _index_fields(fields_by_name[key])
                break
        counts = _read_counts(fields_by_name)
        names = _detect_names(fields_by_name, counts, api) or _ANTHROPIC_NAMES
    read_tokens = _find_largest_count(counts, names.cache_read)
    write_tokens = _find_largest_count(counts, names.cache_write)
    write_1h_tokens = _find_largest_count(counts, _CACHE_WRITE_1H_NAMES)
    write_tokens = max(
        write_tokens,
        write_1h_tokens + _find_largest_count(counts, _CACHE_WRITE_5M_NAMES),
    )
    prompt_tokens = _sum_counts(counts, names.prompt, names.prompt_parts)
    if names.includes_cache and prompt_tokens is not None:
        read_tokens = min(read_tokens, prompt_tokens)
        write_tokens = min(write_tokens, prompt_tokens - read_tokens)
        prompt_tokens -= read_tokens + write_tokens
    return CanonicalUsage(
        input_tokens=prompt_tokens or 0,
        output_tokens=_sum_counts(counts, names.output, names.fallback_output) or 0,
        cache_read_tokens=read_tokens,
        cache_write_tokens=write_tokens,
        reasoning_tokens=_find_largest_count(counts, names.reasoning),
        cache_write_1h_tokens=min(write_1h_tokens, write_tokens),
        raw=raw,
    )


def _detect_names(
    fields_by_name: Mapping[str, Any], counts: Mapping[str, int], api: str | None
) -> _UsageFieldNames | None:
    """Return the field names of the API if the usage has them, else the first known field names that it has."""
    api_name = api.lower() if isinstance(api, str) else ""
    api_names = next(
        (candidates for word, candidates in _NAMES_BY_API.items() if word in api_name),
        (),
    )
    for names in (*api_names, *_DETECTION_ORDER):
        if any(map(counts.get, (*names.prompt, *names.output, *names.prompt_parts))):
            is_openai = (
                names is _ANTHROPIC_NAMES
                and names not in api_names
                and not _OPENAI_ONLY_FIELDS.isdisjoint(fields_by_name)
            )
            return _RESPONSES_NAMES if is_openai else names
    return None


def _sum_counts(
    counts: Mapping[str, int], names: Iterable[str], fallback_names: Iterable[str]
) -> int | None:
    values = [counts[name] for name in names if name in counts] or [
        counts[name] for name in fallback_names if name in counts
    ]
    return sum(values) if values else None


def _find_largest_count(counts: Mapping[str, int], names: Iterable[str]) -> int:
    return max((counts[name] for name in names if name in counts), default=0)


def _read_counts(fields_by_name: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts by name; nested counts are named `outer.inner`. Skip values that are not counts."""
    flat_fields = without_keys(fields_by_name, *_NESTED_FIELDS)
    for name in _NESTED_FIELDS.intersection(fields_by_name):
        flat_fields |= {
            f"{name}.{inner_name}": value
            for inner_name, value in _index_fields(fields_by_name[name]).items()
        }
    return {name: int(value) for name, value in flat_fields.items() if _is_count(value)}


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[0-9]{1,15}", value) is not None
    return is_nonnegative_number(value)


def is_nonnegative_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**15


_TYPES_WITHOUT_FIELDS = (type(None), str, int, float, list, tuple, Mapping)
"""Types without attributes to read."""


def _index_fields(raw: Any) -> dict[str, Any]:
    """Return the fields of a mapping or an object by normalized name, or an empty dict for other values."""
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
                if _normalize_name(name) in _KNOWN_FIELDS:
                    items[name] = getattr(raw, name)
    return {
        _normalize_name(key): item
        for key, item in items.items()
        if isinstance(key, str) and item is not None
    }


@functools.lru_cache(maxsize=1_000)
def _normalize_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
