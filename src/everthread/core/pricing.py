"""What calls used, what they cost, and when a rewrite pays.

Usage comes in one form, whichever provider reported it: `input`, `cache_read` and `cache_write` are disjoint and make
up the prompt; `output` contains the reasoning. The providers differ in whether their prompt figure already contains the
cached part: Anthropic's, Bedrock's and llama.cpp's does not, everybody else's does. A figure that is missing or no
count is nothing, never an exception.

The price table is a package (`genai-prices`) that carries its data: it is loaded when the first price is asked for, and
never goes to the network here. Prices change, some by the hour, so a price is always asked for a moment.

What further calls will come is read from the pattern of the calls there were: how fast a thread grows, how often a
pause outlives the provider's cache. A thread that has lasted for so many calls is expected to last for about as many
more.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

# --- usage ------------------------------------------------------------------------------------------------------------


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
_NESTED = frozenset(
    name.partition(".")[0]
    for shape in (*_BY_FIELDS, _RESPONSES)
    for name in (*shape.read, *shape.write, *shape.reasoning, *_WRITTEN_1H, *_WRITTEN_5M)
    if "." in name
)
"""Objects that hold figures."""


def normalize_usage(raw: Any, *, api: str | None = None) -> CanonicalUsage:
    """The usage that a provider reported: a dict or an SDK's object. `api` settles what the fields leave open."""
    if isinstance(raw, CanonicalUsage):
        return raw
    named = _fields_by_name(raw)
    counts = _read_counts(named)
    shape = _shape(named, counts, api)
    if shape is None:
        named = next((_fields_by_name(named[key]) for key in _ENVELOPES if key in named), named)
        counts = _read_counts(named)
        shape = _shape(named, counts, api) or _ANTHROPIC
    read, write = _largest(counts, shape.read), _largest(counts, shape.write)
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


def _shape(named: Mapping[str, Any], counts: Mapping[str, int], api: str | None) -> _Shape | None:
    """The API's own form if it has figures there, else the first form that has."""
    name = api.lower() if isinstance(api, str) else ""
    stated = next((shapes for word, shapes in _BY_API.items() if word in name), ())
    for shape in (*stated, *_BY_FIELDS):
        if any(map(counts.get, (*shape.prompt, *shape.output, *shape.prompt_parts))):
            is_openai = shape is _ANTHROPIC and shape not in stated and not _OPENAI_ONLY.isdisjoint(named)
            return _RESPONSES if is_openai else shape
    return None


def _sum(counts: Mapping[str, int], names: Iterable[str], otherwise: Iterable[str]) -> int | None:
    stated = [counts[name] for name in names if name in counts] or [counts[n] for n in otherwise if n in counts]
    return sum(stated) if stated else None


def _largest(counts: Mapping[str, int], names: Iterable[str]) -> int:
    return max((counts[name] for name in names if name in counts), default=0)


def _read_counts(named: Mapping[str, Any]) -> dict[str, int]:
    """The counts by name, those of an object inside behind its name and a dot; what is no count is left out."""
    flat = {name: value for name, value in named.items() if name not in _NESTED}
    for name in _NESTED.intersection(named):
        flat |= {f"{name}.{inner}": value for inner, value in _fields_by_name(named[name]).items()}
    return {name: int(value) for name, value in flat.items() if _is_count(value)}


def _is_count(value: Any) -> bool:
    return re.fullmatch(r"[0-9]{1,15}", value) is not None if isinstance(value, str) else _is_figure(value)


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**15


_PLAIN = (type(None), str, int, float, list, tuple, Mapping)
"""What has no fields, or has them as items."""


def _fields_by_name(raw: Any) -> dict[str, Any]:
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


# --- prices -----------------------------------------------------------------------------------------------------------


_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per million tokens; None where there is no price."""

    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None


def cost(usage: CanonicalUsage, prices: Prices) -> Decimal | None:
    """The dollars for this usage; None if a bucket was used that has no price."""
    written_5m = usage.cache_write_tokens - usage.cache_write_1h_tokens
    total = Decimal(0)
    for tokens, price in (
        (usage.input_tokens, prices.input),
        (usage.output_tokens, prices.output),
        (usage.cache_read_tokens, prices.cache_read),
        (written_5m, prices.cache_write_5m),
        (usage.cache_write_1h_tokens, prices.cache_write_1h),
    ):
        if tokens and price is None:
            return None
        total += tokens * (price or Decimal(0))
    return total / _MILLION


def cost_of(usage: CanonicalUsage, model: str, *, at: datetime, provider: str | None = None) -> Decimal | None:
    """The dollars for one call to a model at a moment; None if the model or the price of a used bucket is unknown."""
    prices = prices_for(model, at=at, provider=provider, prompt_tokens=usage.prompt_tokens)
    return None if prices is None else cost(usage, prices)


def prices_for(model: str, *, at: datetime, provider: str | None = None, prompt_tokens: int = 0) -> Prices | None:
    """A model's prices at a moment, for a call with a prompt of this size (some charge all of a long one more).

    `provider` is the name of who serves it; without one the model's own name decides, its prefixes
    (`openrouter/anthropic/…`) included.
    """
    entry = _find_model(model, provider)
    if entry is None:
        return None
    table = entry.get_prices(at)
    return Prices(
        input=_price(table, prompt_tokens, "input_mtok"),
        output=_price(table, prompt_tokens, "output_mtok"),
        cache_read=_price(table, prompt_tokens, "cache_read_mtok"),
        cache_write_5m=_price(table, prompt_tokens, "cache_write_5m_mtok", "cache_write_mtok"),
        cache_write_1h=_price(table, prompt_tokens, "cache_write_1h_mtok"),
    )


def stated_window(model: str, *, provider: str | None = None) -> int | None:
    """The window that the price table states for a model, where it does."""
    entry = _find_model(model, provider)
    return None if entry is None else entry.context_window


def _price(table: ModelPrice, prompt_tokens: int, *keys: str) -> Decimal | None:
    """The first of these prices that there is; of a tiered one, the tier that the whole prompt falls into."""
    value = None
    for key in keys:
        value = getattr(table, key) if value is None else value
    if value is None or isinstance(value, Decimal):
        return value
    reached = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    price: Decimal = reached[-1] if reached else value.base
    return price


@functools.lru_cache(maxsize=256)
def _find_model(model: str, provider: str | None) -> ModelInfo | None:
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - 1.5 MB of tables, loaded when asked for

    snapshot = get_snapshot()
    for name, host in _readings(model, provider):
        try:
            return snapshot.find_provider_model(name, None, host, None)[1]
        except LookupError:
            continue
    return None


def _readings(model: str, provider: str | None) -> Iterator[tuple[str, str | None]]:
    """What a model's name may mean: as it is, then each prefix as the provider of the rest."""
    yield model, provider
    while "/" in model:
        prefix, model = model.split("/", 1)
        yield model, provider or prefix
        if provider is None:
            yield model, None


# --- when a rewrite pays ----------------------------------------------------------------------------------------------


_FEWEST = 8
"""Further calls of a thread that has just begun."""
_MOST = 400
"""The most further calls that are expected."""
_FADING = 0.9
"""How much of what was seen before counts beside the newest call."""


@dataclass(frozen=True, slots=True)
class CallPattern:
    """What the calls of a thread showed. A *run* is a row of calls without a pause that outlives the cache."""

    calls: int = 0
    pauses: int = 0
    run: int = 0
    """Calls since the last such pause."""
    last: float | None = None
    """When the last call was answered, in seconds since 1970."""
    prompt: int = 0
    """Its prompt tokens."""
    growth: float = 0.0
    """Tokens that come with a call, the newest counting most."""
    read_share: float = 1.0
    """Of the tokens a warm cache could have held, how many were reported as read."""

    def after(self, usage: CanonicalUsage, at: float, *, ttl: float) -> CallPattern:
        """The pattern with one more call."""
        prompt = usage.prompt_tokens
        if not prompt:
            return self
        cold = self.is_cold(at, ttl=ttl)
        grown, share = self.growth, self.read_share
        if self.prompt and prompt > self.prompt:
            grown = _fade(self.growth, prompt - self.prompt) if self.growth else float(prompt - self.prompt)
        if not cold and prompt >= self.prompt > 0:
            share = _fade(self.read_share, min(1.0, usage.cache_read_tokens / self.prompt))
        paused = cold and self.calls > 0
        run = 1 if paused else self.run + 1
        return CallPattern(self.calls + 1, self.pauses + paused, run, at, prompt, grown, share)

    def is_cold(self, at: float, *, ttl: float) -> bool:
        """Whether a cached prefix has been forgotten by then. Before the first call there is none."""
        return self.last is None or at - self.last >= ttl

    def rewritten(self) -> CallPattern:
        """After a compaction the next prompt is compared with nothing."""
        return replace(self, prompt=0)

    @property
    def further(self) -> int:
        """Calls that are still expected."""
        return min(max(self.calls, _FEWEST), _MOST)

    @property
    def until_pause(self) -> float | None:
        """Calls until the next pause that outlives the cache; None where none was ever seen."""
        return max(1.0, self.calls / self.pauses - self.run) if self.pauses else None

    def pauses_in(self, calls: float) -> float:
        """How many such pauses so many calls bring."""
        return calls * self.pauses / self.calls if self.calls else 0.0

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, state: Any) -> CallPattern:
        """From what `dump` gave; fields of another shape are ignored."""
        stored = state if isinstance(state, Mapping) else {}
        names = (item.name for item in fields(cls))
        return cls(**{name: stored[name] for name in names if _is_figure(stored.get(name))})


def _fade(before: float, now: float) -> float:
    return _FADING * before + (1 - _FADING) * now


EARLIEST = 0.5
"""Share of the threshold below which even a cold cache is no reason."""

Action = Literal["now", "later"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars for a token."""

    input: float
    output: float
    read: float
    """Read from the cache; as `input` where nothing is cached."""
    write: float
    """Written to the cache, or read by a provider that keeps it by itself."""

    @classmethod
    def of(cls, prices: Prices | None, *, ttl: str = "5m", marked: bool = True) -> Rates | None:
        """The rates of a model; None where its prices are unknown. `marked`: the cache is written where asked for,
        at a price of its own."""
        if prices is None or prices.input is None or prices.output is None:
            return None
        written = prices.cache_write_1h if ttl == "1h" else prices.cache_write_5m
        writing = prices.input if written is None or not marked else written
        reading = prices.input if prices.cache_read is None else prices.cache_read
        dollars = (prices.input, prices.output, reading, writing)
        return cls(*(float(value) / 1_000_000 for value in dollars))

    @property
    def caches(self) -> bool:
        return self.read < self.input

    def miss(self, tokens: int) -> float:
        """What a prompt of this size costs more than one that is read from the cache."""
        return tokens * (self.write - self.read) if self.caches else 0.0

    def at_read_share(self, share: float) -> Rates:
        """The rates where only this share of what could be read from the cache is."""
        return Rates(self.input, self.output, share * self.read + (1 - share) * self.input, self.write)


@dataclass(frozen=True, slots=True)
class CompactionCase:
    """The figures for a decision before a call."""

    tokens: int
    """The prompt as it is."""
    after: int
    """The prompt as a compaction would leave it."""
    fixed: int
    """The part of it that a rewrite does not touch: the system prompt and the tools, at its beginning."""
    threshold: int
    limit: int
    """85 % of the window, or less where the answer needs the room: here nothing can wait."""
    summary: float
    """Dollars for the summary, by the cheapest way there is now."""
    rates: Rates
    rhythm: CallPattern
    cold: str = ""
    """Why the cache does not hold this prompt; empty where it may."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Compact now, or later; with the figures it was made by, and a line for a person."""

    action: Action
    why: str
    cost: Decimal = Decimal(0)
    saves: Decimal = Decimal(0)
    calls: int = 0
    """Further calls the saving is reckoned over."""

    def __str__(self) -> str:
        return f"{self.action}: {self.why}"


def weigh(case: CompactionCase) -> Decision:
    """Whether to compact before this call."""
    if case.tokens >= case.limit:
        return Decision("now", f"{case.tokens:,} tokens are at the limit of {case.limit:,}; nothing can wait")
    rates = case.rates.at_read_share(case.rhythm.read_share)
    cold = bool(case.cold) and rates.caches
    gain = case.tokens - case.after
    early = case.tokens < case.threshold
    if gain <= 0:
        return Decision("later", "a compaction would take nothing out")
    if early and (not cold or case.tokens < EARLIEST * case.threshold):
        return Decision("later", f"{case.tokens:,} tokens are below the threshold of {case.threshold:,}")
    # It pays over the further calls, until the prompt would have to be rewritten anyway.
    until = ((case.threshold if early else case.limit) - case.tokens) / max(case.rhythm.growth, 1.0)
    calls = max(1, min(case.rhythm.further, int(until)))
    each = gain * rates.read
    again = case.rhythm.pauses_in(calls) * gain * (rates.write - rates.read) if rates.caches else 0.0
    saves = calls * each + again + (gain * (rates.write - rates.read) if cold else 0.0)
    lost = 0.0 if cold or not rates.caches else max(0, case.after - case.fixed) * (rates.write - rates.read)
    cost = case.summary + lost
    figures = _dollars(cost), _dollars(saves), calls
    balance = f"it costs ${cost:.4f} (summary ${case.summary:.4f}, cache ${lost:.4f}) and saves ${saves:.4f}"
    balance += f" in about {calls} calls"
    if saves <= cost:
        return Decision("later", f"{balance}: not worth it yet", *figures)
    if cold:
        return Decision("now", f"{balance}; the cache is cold: {case.cold}", *figures)
    waiting = case.rhythm.until_pause
    if waiting is not None and waiting * each < lost:
        balance += f", but a pause is expected within {waiting:.0f} calls: cheaper then"
        return Decision("later", balance, *figures)
    return Decision("now", balance, *figures)


def _dollars(amount: float) -> Decimal:
    return Decimal(f"{amount:.6f}")


def format_dollars(amount: Decimal | float | None) -> str:
    """Dollars for a reader, sums under a dollar with four digits. A missing price is `unknown`, never zero."""
    if amount is None:
        return "unknown"
    size, sign = abs(float(amount)), "−" if amount < 0 else ""
    if 0 < size < 0.0001:
        return "< $0.0001"
    return f"{sign}${size:,.4f}" if 0 < size < 1 else f"{sign}${size:,.2f}"
