"""What a server says about its models: asked once, briefly. That it does not answer is told, and stops nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from everthread.core.types import Api
from everthread.providers.openai_chat import NO_KEY

if TYPE_CHECKING:
    import httpx2

SECONDS = 3.0
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
    """The window a server reports, where it said so; else `note` tells why there is none."""

    window: int | None
    where: str = ""
    """The address and field it was read from."""
    note: str = ""


async def ask_endpoint(  # noqa: PLR0913 - an address and how one is let in there
    base_url: str,
    model: str,
    *,
    api: Api = "openai_chat",
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> EndpointReport:
    """The window of `model` as the server at `base_url` reports it. Never raises for what the server does."""
    import httpx2  # noqa: PLC0415 - loaded only when somebody is asked

    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or parts.hostname in _SILENT_HOSTS:
        return EndpointReport(None, note=f"{base_url} does not tell the windows of its models.")
    notes: list[str] = []
    trained: EndpointReport | None = None
    async with httpx2.AsyncClient(timeout=seconds, headers=_headers(api, api_key, headers)) as client:
        for url in _urls(base_url, model, api):
            try:
                body = await _read(client, url)
            except (httpx2.HTTPError, ValueError) as error:
                notes.append(f"{url}: {type(error).__name__}")
                if isinstance(error, httpx2.ConnectError | httpx2.TimeoutException):
                    break
                continue
            entry = _entry(body, model)
            for name, value in _windows(entry):
                return EndpointReport(value, f"{url} ({name})")
            trained = trained or _trained(entry, url)
    return trained or EndpointReport(None, note=f"The server did not tell the window ({'; '.join(notes) or base_url}).")


def _urls(base_url: str, model: str, api: Api) -> Iterator[str]:
    base = base_url.rstrip("/")
    root = re.sub(r"/v\d+$", "", base)
    models = f"{root}/v1/models" if api == "anthropic" else f"{base}/models"
    yield f"{models}/{quote(model, safe='/:')}"
    yield models
    if api != "anthropic":
        yield f"{root}/props"


async def _read(client: httpx2.AsyncClient, url: str) -> Any:
    response = await client.get(url)
    response.raise_for_status()
    return response.json()


def _headers(api: Api, api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Both SDKs authorise with a bearer; Anthropic's servers also know a header of their own."""
    sent = {"authorization": f"Bearer {api_key or NO_KEY}", **(headers or {})}
    if api == "anthropic":
        sent = {"x-api-key": api_key or NO_KEY, "anthropic-version": "2023-06-01", **sent}
        del sent["authorization"]
    return sent


def _entry(body: Any, model: str) -> Mapping[str, Any]:
    """What is said about this model: the body itself, or its entry in a list. A list of one is about the only one."""
    if not isinstance(body, Mapping):
        return {}
    listed = body.get("data", body.get("models"))
    if not isinstance(listed, list):
        return listed if isinstance(listed, Mapping) else body
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    named = [entry for entry in entries if model in _names(entry)]
    return (named or (entries if len(entries) == 1 else []) or [{}])[0]


def _names(entry: Mapping[str, Any]) -> list[Any]:
    aliases = entry.get("aliases")
    return [entry.get("id"), entry.get("name"), *(aliases if isinstance(aliases, list) else [])]


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


def _trained(entry: Mapping[str, Any], url: str) -> EndpointReport | None:
    """The length a model was trained with: what a server may have at most, taken where it says nothing else."""
    meta = entry.get("meta")
    size = _size(meta.get("n_ctx_train")) if isinstance(meta, Mapping) else None
    return EndpointReport(size, f"{url} (meta.n_ctx_train)") if size else None


def _size(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value in _PLAUSIBLE else None
