"""Look up a model: its catalogue entry, the limits its endpoint reports, its window and output cap."""

from __future__ import annotations

import asyncio
import functools
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from everthread.core.costs.prices import find_listed_window
from everthread.core.types import Api, ModelRequest
from everthread.wire.anthropic import DEFAULT_MAX_TOKENS
from everthread.wire.codecs import CODECS
from everthread.wire.request_fields import OUTPUT_CAP_FIELDS

if TYPE_CHECKING:
    import httpx2

CacheKind = Literal["marks", "automatic"]
PLACEHOLDER_KEY = "none"
"""Sent if no key is needed, because the SDKs require one."""

_VARIANT_SUFFIXES_PATTERN = re.compile(
    r"(?:-(?:\d{8}|\d{6}|\d{4}-\d{2}-\d{2}|\d{4}|\d{2}-\d{2}|latest|preview|beta|exp|instruct|it|thinking|v\d(?:-\d(?!\d))?)(?![^-]))*+"
)
"""Suffixes that do not mean another model: dates, stages, Bedrock's versions."""
_BEDROCK_PREFIX_PATTERN = re.compile(
    r"^(?:[a-z]{2,6}\.)?(?:anthropic|meta|mistral|amazon|deepseek|openai|qwen)\."
)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """An entry of the catalogue; a field is None if it is unknown."""

    family: str
    """The longest part of the model's name that is in the table."""
    window: int | None = None
    max_output: int | None = None
    cache: CacheKind | None = None
    cache_min: int | None = None
    is_exact: bool = False
    """Whether the name itself, apart from dates and stages, is in the table, not only its family."""


def find_known_model(name: str) -> KnownModel | None:
    """Return the catalogue entry of a model, under any provider's name for it."""
    model = _find_family(name)
    if model is not None and model.is_exact:
        return model
    window = find_listed_window(name)
    if window is None:
        return model
    model = model or KnownModel(normalize_model_name(name))
    has_lower_cap = model.max_output is not None and model.max_output < window
    return replace(model, window=window, max_output=model.max_output if has_lower_cap else None)


def normalize_model_name(name: str) -> str:
    """Return a model's name without vendor, variant and punctuation.

    `openrouter/anthropic/claude-3.5-haiku:beta` becomes `claude-3-5-haiku`, and so do Bedrock's and Vertex's names for
    this model.
    """
    text = name.strip().lower().rsplit("/", 1)[-1]
    text = _BEDROCK_PREFIX_PATTERN.sub("", text).split(":", 1)[0]
    return re.sub(r"[._@ ]", "-", text)


def list_families() -> list[KnownModel]:
    """Return every family of the catalogue, sorted by name."""
    return [_load_families()[name] for name in sorted(_load_families())]


@functools.lru_cache(maxsize=256)
def _find_family(name: str) -> KnownModel | None:
    model_name = normalize_model_name(name)
    table = _load_families()
    ends = [
        len(model_name),
        *(index for index in range(len(model_name) - 1, 0, -1) if not model_name[index].isalnum()),
    ]
    family = next((model_name[:end] for end in ends if model_name[:end] in table), None)
    if family is None:
        return None
    return replace(
        table[family],
        is_exact=_VARIANT_SUFFIXES_PATTERN.fullmatch(model_name[len(family) :]) is not None,
    )


@functools.cache
def _load_families() -> dict[str, KnownModel]:
    text = files(__package__).joinpath("catalog.toml").read_text("utf-8")
    entries: list[dict[str, Any]] = tomllib.loads(text)["family"]
    return {
        normalize_model_name(name): KnownModel(
            normalize_model_name(name),
            entry.get("window"),
            entry.get("output"),
            entry.get("cache"),
            entry.get("cache_min"),
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
    "max_context_length",  # Mistral, LM Studio: the largest window it can be loaded with
    "max_input_tokens",  # Anthropic, LiteLLM
    "inputTokenLimit",  # Google
    "n_ctx",  # llama.cpp, under meta
)
_NESTED_FIELDS = ("meta", "top_provider", "model_info", "limits")
_HOSTS_WITHOUT_WINDOWS = ("api.openai.com",)
"""Hosts whose model lists state no windows; they are not asked."""
_PLAUSIBLE_WINDOWS = range(256, 1_000_000_000)


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The window that a server reports; if it reports none, `note` gives the reason."""

    window: int | None
    source: str = ""
    """The address and the field in which the server states the window."""
    note: str = ""


async def ask_endpoint(
    base_url: str, model: str, *, api: Api = "openai_chat", api_key: str | None = None
) -> EndpointReport:
    """Return the window of `model` that the server at `base_url` reports. Never raise for a server's answer."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or parts.hostname in _HOSTS_WITHOUT_WINDOWS:
        return EndpointReport(None, note=f"{base_url} does not tell the windows of its models.")
    notes: list[str] = []
    trained_report: EndpointReport | None = None
    is_reachable = True
    # Its code and the certificates are read beside the event loop, which may have others waiting.
    httpx2 = await asyncio.to_thread(import_module, "httpx2")
    headers = make_endpoint_headers(api, api_key)
    async with await asyncio.to_thread(
        httpx2.AsyncClient, timeout=PROBE_SECONDS, headers=headers
    ) as client:
        for url in _list_probe_urls(base_url, model, api):
            try:
                body = (await client.get(url)).raise_for_status().json()
            except (httpx2.HTTPError, ValueError) as error:
                notes.append(f"{url}: {type(error).__name__}")
                if isinstance(error, httpx2.ConnectError | httpx2.TimeoutException):
                    is_reachable = False
                    break
                continue
            entry = _find_entry(body, model)
            for name, value in _find_stated_windows(entry):
                return EndpointReport(value, f"{url} ({name})")
            trained_report = trained_report or _find_trained_window(entry, url)
        if trained_report is None and api == "openai_chat" and is_reachable:
            trained_report = await _ask_ollama(client, _remove_version(base_url), model)
    return trained_report or EndpointReport(
        None,
        note=f"The server did not tell the window ({'; '.join(notes) or base_url}).",
    )


async def _ask_ollama(client: httpx2.AsyncClient, root: str, model: str) -> EndpointReport | None:
    """Return the window that Ollama reports: `num_ctx` if it is set, else the trained window."""
    url = f"{root}/api/show"
    http_error = import_module("httpx2").HTTPError
    try:
        answer = await client.post(url, json={"model": model})
        model_details = answer.raise_for_status().json()
    except (http_error, ValueError):
        return None
    if not isinstance(model_details, Mapping):
        return None
    setting = re.search(r"^num_ctx\s+(\d+)", str(model_details.get("parameters")), re.MULTILINE)
    if setting and (size := _read_plausible_size(setting[1])):
        return EndpointReport(size, f"{url} (num_ctx)")
    info = model_details.get("model_info")
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if str(name).endswith(".context_length") and (size := _read_plausible_size(value)):
            return EndpointReport(size, f"{url} ({name})")
    return None


def _list_probe_urls(base_url: str, model: str, api: Api) -> Iterator[str]:
    models = make_models_url(base_url, api)
    # The name comes from a client: do not let it lead to another path of the server.
    if not {"", ".", ".."} & set(model.split("/")):
        yield f"{models}/{quote(model, safe='/:')}"
    yield models
    if api not in ("anthropic", "gemini"):
        yield f"{_remove_version(base_url)}/props"


def make_models_url(base_url: str, api: Api) -> str:
    """Return the address of a server's model list."""
    if api == "gemini":
        return f"{_remove_version(base_url)}/v1beta/models"
    if api == "anthropic":
        return f"{_remove_version(base_url)}/v1/models"
    return f"{base_url.rstrip('/')}/models"


def _remove_version(base_url: str) -> str:
    return re.sub(r"/v\d+(?:beta)?$", "", base_url.rstrip("/"))


def make_endpoint_headers(api: Api, api_key: str | None) -> dict[str, str]:
    """Return the headers that authorise a request."""
    if api == "anthropic":
        return {
            "x-api-key": api_key or PLACEHOLDER_KEY,
            "anthropic-version": "2023-06-01",
        }
    if api == "gemini":
        return {"x-goog-api-key": api_key or PLACEHOLDER_KEY}
    return {"authorization": f"Bearer {api_key or PLACEHOLDER_KEY}"}


def _find_entry(body: Any, model: str) -> Mapping[str, Any]:
    """Return the entry of this model: the body itself, the matching item of a list, or the only item."""
    if not isinstance(body, Mapping):
        return {}
    model_list = body.get("data", body.get("models"))
    if not isinstance(model_list, list):
        return model_list if isinstance(model_list, Mapping) else body
    entries = [entry for entry in model_list if isinstance(entry, Mapping)]
    for entry in entries:
        aliases = entry.get("aliases")
        names = (entry.get("id"), str(entry.get("name")).removeprefix("models/"))
        if model in (*names, *(aliases if isinstance(aliases, list) else ())):
            return entry
    return entries[0] if len(entries) == 1 else {}


def _find_stated_windows(entry: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the windows that the entry states, with the field of each; the smallest first if a field occurs twice.

    OpenRouter states the window of the model and the window of the provider that it would choose.
    """
    settings = entry.get("default_generation_settings")
    if isinstance(settings, Mapping) and (size := _read_plausible_size(settings.get("n_ctx"))):
        yield "default_generation_settings.n_ctx", size
    for name in _WINDOW_FIELDS:
        sections = [
            ("", entry),
            *(
                (f"{key}.", entry[key])
                for key in _NESTED_FIELDS
                if isinstance(entry.get(key), Mapping)
            ),
        ]
        sizes = [
            (f"{prefix}{name}", size)
            for prefix, section in sections
            if (size := _read_plausible_size(section.get(name)))
        ]
        yield from sorted(sizes, key=lambda item: item[1])


def _find_trained_window(entry: Mapping[str, Any], url: str) -> EndpointReport | None:
    """Return the context length that a model was trained with, as an upper bound if the server states no window."""
    meta = entry.get("meta")
    size = _read_plausible_size(meta.get("n_ctx_train")) if isinstance(meta, Mapping) else None
    return EndpointReport(size, f"{url} (meta.n_ctx_train)") if size else None


def _read_plausible_size(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value in _PLAUSIBLE_WINDOWS else None


DEFAULT_WINDOW = 128_000

WindowSource = Literal["setting", "learnt", "request", "endpoint", "catalogue", "default"]


@dataclass(frozen=True, slots=True)
class Window:
    """A window in tokens, its source, and a sentence for people."""

    tokens: int
    source: WindowSource
    sentence: str
    fallback_reason: str = ""
    """Why a better source had no answer."""

    def __str__(self) -> str:
        return self.sentence


BETA_HEADER = "anthropic-beta"
LONG_CONTEXT_BETA = "context-1m"
LONG_CONTEXT_TOKENS = 1_000_000
"""Window that a client of Claude requests with the header."""


def make_learnt_window(tokens: int, source: str) -> Window:
    """Return a window that a server stated in an error, which is the `source`."""
    return Window(tokens, "learnt", f"{tokens:,} tokens, learnt from the server: {source}")


async def resolve_window(
    model: str,
    *,
    setting: int | None = None,
    learnt_window: Window | None = None,
    ask_server: Callable[[], Awaitable[EndpointReport]] | None = None,
    betas: str = "",
) -> Window:
    """Return the window of `model`. `ask_server` is called only if neither a setting nor a learnt window decides.

    `betas`: the result of `read_window_betas`, because a request may ask for a longer window than usual.
    """
    if learnt_window is not None and (setting is None or learnt_window.tokens < setting):
        return learnt_window
    if setting is not None:
        return Window(setting, "setting", f"{setting:,} tokens, as configured (context_length)")
    if LONG_CONTEXT_BETA in betas and "claude" in model.lower():
        return Window(
            LONG_CONTEXT_TOKENS,
            "request",
            f"{LONG_CONTEXT_TOKENS:,} tokens, by the header {BETA_HEADER}",
        )
    report = await ask_server() if ask_server else EndpointReport(None)
    if report.window is not None:
        return Window(
            report.window,
            "endpoint",
            f"{report.window:,} tokens, as the server says: {report.source}",
        )
    return find_catalogue_window(model, fallback_reason=report.note)


def find_catalogue_window(model: str, *, fallback_reason: str = "") -> Window:
    """Return the window from the catalogue, without a request."""
    catalogue_entry = find_known_model(model)
    if catalogue_entry is None or catalogue_entry.window is None:
        sentence = (
            f"{DEFAULT_WINDOW:,} tokens, assumed: nothing is known about {model}. "
            "Set model.context_length if it is another."
        )
        return Window(DEFAULT_WINDOW, "default", sentence, fallback_reason)
    return Window(
        catalogue_entry.window,
        "catalogue",
        f"{catalogue_entry.window:,} tokens, from the catalogue ({catalogue_entry.family})",
        fallback_reason,
    )


def read_window_betas(headers: Mapping[str, str] | None) -> str:
    """Return the beta headers that change the window, normalized; learnt limits are stored per value."""
    header = next(
        (value for name, value in (headers or {}).items() if name.lower() == BETA_HEADER),
        "",
    )
    return ",".join(
        sorted({beta.strip() for beta in header.split(",") if beta.strip().startswith("context-")})
    )


def get_output_cap(request: ModelRequest) -> int | None:
    """Return the output cap of a request, under any of its names."""
    values = (request.params.get(field) for field in OUTPUT_CAP_FIELDS)
    return next(
        (value for value in values if isinstance(value, int) and not isinstance(value, bool)),
        None,
    )


def with_output_cap(
    request: ModelRequest, tokens: int, *, api: Api, base_url: str = ""
) -> ModelRequest:
    """Return the request with this output cap only, under the server's name for it, in its old position."""
    old_field = next((field for field in OUTPUT_CAP_FIELDS if field in request.params), None)
    name = choose_output_cap_field(api, base_url)
    params = {
        name if key == old_field else key: value
        for key, value in request.params.items()
        if key == old_field or key not in OUTPUT_CAP_FIELDS
    }
    return replace(request, params={**params, name: tokens})


def choose_output_cap_field(api: Api, base_url: str = "") -> str:
    return CODECS[api].request_fields.choose_output_cap_field(base_url)


def find_default_output_cap(model: str, window: int) -> int:
    """Return the model's largest output, at most half of the window."""
    catalogue_entry = find_known_model(model)
    return min(
        (catalogue_entry and catalogue_entry.max_output) or DEFAULT_MAX_TOKENS,
        max(window // 2, 1),
    )
