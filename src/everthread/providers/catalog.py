"""What is known of a model: the catalogue, what its endpoint reports, its window, its output cap."""

from __future__ import annotations

import asyncio
import functools
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from everthread.core.pricing import stated_window
from everthread.core.types import Api, Request
from everthread.wire.anthropic import DEFAULT_MAX_TOKENS

Caching = Literal["marks", "automatic"]
NO_KEY = "none"
"""What is sent where no key is needed: a server on this machine ignores it, and the SDKs insist on one."""

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


def known_model(name: str) -> KnownModel | None:
    """What is known about the model of this name, as it is called at any provider."""
    model = _family(name)
    if model is not None and model.exact:
        return model
    window = stated_window(name)
    if window is None:
        return model
    model = model or KnownModel(plain_name(name))
    capped = model.max_output is not None and model.max_output < window
    return replace(model, window=window, max_output=model.max_output if capped else None)


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
    family = next((plain[:end] for end in ends if plain[:end] in table), None)
    if family is None:
        return None
    return replace(table[family], exact=_VARIANT.fullmatch(plain[len(family) :]) is not None)


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


PROBE_SECONDS = 3.0
_WINDOW_FIELDS = (
    "loaded_context_length",  # LM Studio: how it was loaded
    "context_length",  # OpenRouter, Together, Fireworks
    "max_model_len",  # vLLM, SGLang
    "context_window",  # Groq
    "max_context_length",  # Mistral, LM Studio: what it could be loaded with
    "max_input_tokens",  # Anthropic, LiteLLM
    "n_ctx",  # llama.cpp, under meta
)
_NESTED = ("meta", "top_provider", "model_info", "limits")
_SILENT_HOSTS = ("api.openai.com",)
"""Those known to list their models without a word about windows: asking costs time and brings nothing."""
_PLAUSIBLE = range(256, 1_000_000_000)


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The window a server reports; without one, `note` says why."""

    window: int | None
    where: str = ""
    """The address and field it was read from."""
    note: str = ""


async def ask_endpoint(
    base_url: str, model: str, *, api: Api = "openai_chat", api_key: str | None = None
) -> EndpointReport:
    """The window of `model` as the server at `base_url` reports it. Never raises for what the server does."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or parts.hostname in _SILENT_HOSTS:
        return EndpointReport(None, note=f"{base_url} does not tell the windows of its models.")
    notes: list[str] = []
    trained: EndpointReport | None = None
    # Its code and the certificates are read beside the event loop, which may have others waiting.
    httpx2 = await asyncio.to_thread(import_module, "httpx2")
    headers = endpoint_headers(api, api_key)
    async with await asyncio.to_thread(httpx2.AsyncClient, timeout=PROBE_SECONDS, headers=headers) as client:
        for url in _urls(base_url, model, api):
            try:
                body = (await client.get(url)).raise_for_status().json()
            except (httpx2.HTTPError, ValueError) as error:
                notes.append(f"{url}: {type(error).__name__}")
                if isinstance(error, httpx2.ConnectError | httpx2.TimeoutException):
                    break
                continue
            entry = _entry(body, model)
            for name, value in _windows(entry):
                return EndpointReport(value, f"{url} ({name})")
            trained = trained or _trained_window(entry, url)
    return trained or EndpointReport(None, note=f"The server did not tell the window ({'; '.join(notes) or base_url}).")


def _urls(base_url: str, model: str, api: Api) -> Iterator[str]:
    models = models_url(base_url, api)
    if not {"", ".", ".."} & set(model.split("/")):  # a client's word: it names a model and leads nowhere else
        yield f"{models}/{quote(model, safe='/:')}"
    yield models
    if api != "anthropic":
        yield f"{_root(base_url)}/props"


def models_url(base_url: str, api: Api) -> str:
    """Where a server lists its models."""
    return f"{_root(base_url)}/v1/models" if api == "anthropic" else f"{base_url.rstrip('/')}/models"


def _root(base_url: str) -> str:
    return re.sub(r"/v\d+$", "", base_url.rstrip("/"))


def endpoint_headers(api: Api, api_key: str | None) -> dict[str, str]:
    """How a request is authorised."""
    if api == "anthropic":
        return {"x-api-key": api_key or NO_KEY, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {api_key or NO_KEY}"}


def _entry(body: Any, model: str) -> Mapping[str, Any]:
    """What is said about this model: the body itself, or its entry in a list. A list of one is about the only one."""
    if not isinstance(body, Mapping):
        return {}
    listed = body.get("data", body.get("models"))
    if not isinstance(listed, list):
        return listed if isinstance(listed, Mapping) else body
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    for entry in entries:
        aliases = entry.get("aliases")
        if model in (entry.get("id"), entry.get("name"), *(aliases if isinstance(aliases, list) else ())):
            return entry
    return entries[0] if len(entries) == 1 else {}


def _windows(entry: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What the entry states, the smallest first of what it states twice: OpenRouter tells the model's window and
    that of the provider it would choose."""
    settings = entry.get("default_generation_settings")
    if isinstance(settings, Mapping) and (size := _size(settings.get("n_ctx"))):
        yield "default_generation_settings.n_ctx", size
    for name in _WINDOW_FIELDS:
        holders = [("", entry), *((f"{key}.", entry[key]) for key in _NESTED if isinstance(entry.get(key), Mapping))]
        sizes = [(f"{prefix}{name}", size) for prefix, holder in holders if (size := _size(holder.get(name)))]
        yield from sorted(sizes, key=lambda item: item[1])


def _trained_window(entry: Mapping[str, Any], url: str) -> EndpointReport | None:
    """The length a model was trained with: what a server may have at most, taken where it says nothing else."""
    meta = entry.get("meta")
    size = _size(meta.get("n_ctx_train")) if isinstance(meta, Mapping) else None
    return EndpointReport(size, f"{url} (meta.n_ctx_train)") if size else None


def _size(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value in _PLAUSIBLE else None


DEFAULT_WINDOW = 128_000

WindowSource = Literal["setting", "learnt", "request", "endpoint", "catalogue", "default"]


@dataclass(frozen=True, slots=True)
class LearntLimit:
    """A limit that a server stated in an error."""

    limit: int
    source: str


@dataclass(frozen=True, slots=True)
class Window:
    """A window in tokens, where it comes from, and the sentence that is shown."""

    tokens: int
    source: WindowSource
    sentence: str
    note: str = ""
    """Why a better source said nothing."""

    def __str__(self) -> str:
        return self.sentence


BETA_HEADER = "anthropic-beta"
LONG_CONTEXT_BETA, LONG_CONTEXT = "context-1m", 1_000_000
"""By which a client of Claude asks for a longer window, and what it gets."""


async def resolve_window(
    model: str,
    *,
    setting: int | None = None,
    learnt: LearntLimit | None = None,
    ask: Callable[[], Awaitable[EndpointReport]] | None = None,
    betas: str = "",
) -> Window:
    """The window of `model`. `ask` is called only if neither a setting nor a learnt limit decides.

    `betas`: the `window_headers` of the request; a long context that it asks for is no model's own.
    """
    if learnt is not None and (setting is None or learnt.limit < setting):
        return Window(learnt.limit, "learnt", f"{learnt.limit:,} tokens, learnt from the server: {learnt.source}")
    if setting is not None:
        return Window(setting, "setting", f"{setting:,} tokens, as configured (context_length)")
    if LONG_CONTEXT_BETA in betas and "claude" in model.lower():
        return Window(LONG_CONTEXT, "request", f"{LONG_CONTEXT:,} tokens, by the header {BETA_HEADER}")
    report = await ask() if ask else EndpointReport(None)
    if report.window is not None:
        return Window(report.window, "endpoint", f"{report.window:,} tokens, as the server says: {report.where}")
    return catalogue_window(model, note=report.note)


def catalogue_window(model: str, *, note: str = "") -> Window:
    """The window from the catalogue, without a request."""
    known = known_model(model)
    if known is None or known.window is None:
        sentence = (
            f"{DEFAULT_WINDOW:,} tokens, assumed: nothing is known about {model}. "
            "Set model.context_length if it is another."
        )
        return Window(DEFAULT_WINDOW, "default", sentence, note)
    return Window(known.window, "catalogue", f"{known.window:,} tokens, from the catalogue ({known.family})", note)


def window_headers(headers: Mapping[str, str] | None) -> str:
    """The part of the headers that changes the window, in one form: a learnt limit is kept for it."""
    header = next((value for name, value in (headers or {}).items() if name.lower() == BETA_HEADER), "")
    return ",".join(sorted({beta.strip() for beta in header.split(",") if beta.strip().startswith("context-")}))


FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def output_cap(request: Request) -> int | None:
    """The cap the request states, by whichever name."""
    stated = (request.params.get(field) for field in FIELDS)
    return next((value for value in stated if isinstance(value, int) and not isinstance(value, bool)), None)


def with_output_cap(request: Request, tokens: int, *, api: Api, base_url: str = "") -> Request:
    """The request with this cap and no other, under the name this server knows. It keeps the place it had."""
    old = next((field for field in FIELDS if field in request.params), None)
    name = cap_field(api, base_url)
    params = {
        name if key == old else key: value for key, value in request.params.items() if key == old or key not in FIELDS
    }
    return replace(request, params={**params, name: tokens})


def host_of(base_url: str) -> str:
    """The host of an address; nothing where it is none."""
    try:
        return urlsplit(base_url).hostname or ""
    except ValueError:
        return ""


def cap_field(api: Api, base_url: str = "") -> str:
    """OpenAI's own chat refuses `max_tokens` for reasoning models; those who imitate it often know no other."""
    if api == "openai_responses":
        return "max_output_tokens"
    host = host_of(base_url)
    own = host == "api.openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
    return "max_completion_tokens" if api == "openai_chat" and own else "max_tokens"


def own_cap(model: str, window: int) -> int:
    """What the model can write, but never so much that half the window is not left for the prompt."""
    model_facts = known_model(model)
    return min((model_facts and model_facts.max_output) or DEFAULT_MAX_TOKENS, max(window // 2, 1))
