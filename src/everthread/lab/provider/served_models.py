"""The models that the provider serves, and how the four protocols differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from everthread.core.tokens.tokenizers import bare_name
from everthread.core.types import Api
from everthread.errors import InputError
from everthread.lab.provider.cache import CacheUse
from everthread.lab.provider.faults import DIALECTS, OWN_DIALECTS
from everthread.wire.codecs import CODECS, Codec


@dataclass(frozen=True, slots=True)
class Protocol:
    """An API of the provider: its path, fields and usage format."""

    api: Api
    path: str
    id_prefix: str
    """Prefix of the ids of its replies."""
    cap_fields: tuple[str, ...]
    """The fields that limit the output; the first that is present is used."""
    content_field: str
    """The field with a reply's content."""
    make_usage: Callable[[CacheUse, int, int], dict[str, Any]]
    """Makes the usage object from the cache use, the output tokens and the reasoning tokens among them."""
    usage_field: str = "usage"

    @property
    def codec(self) -> Codec:
        return CODECS[self.api]

    def read_output_cap(self, body: Mapping[str, Any]) -> int | None:
        """Return the request's own limit on the tokens of the reply, or None if it sets none."""
        values = (_read_nested(body, name.split(".")) for name in self.cap_fields)
        return next((value for value in values if isinstance(value, int)), None)


def _read_nested(fields: Any, names: list[str]) -> Any:
    for name in names:
        fields = fields.get(name) if isinstance(fields, Mapping) else None
    return fields


def _make_chat_usage(use: CacheUse, output_tokens: int, reasoning_tokens: int) -> dict[str, Any]:
    write_field = {"cache_write_tokens": use.write} if use.write else {}
    return {
        "prompt_tokens": use.prompt,
        "completion_tokens": output_tokens,
        "total_tokens": use.prompt + output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": use.read,
            "audio_tokens": 0,
            **write_field,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens, "audio_tokens": 0},
    }


def _make_responses_usage(
    use: CacheUse, output_tokens: int, reasoning_tokens: int
) -> dict[str, Any]:
    return {
        "input_tokens": use.prompt,
        "input_tokens_details": {
            "cached_tokens": use.read,
            "cache_write_tokens": use.write,
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": use.prompt + output_tokens,
    }


def _make_anthropic_usage(
    use: CacheUse, output_tokens: int, _reasoning_tokens: int
) -> dict[str, Any]:
    return {
        "input_tokens": use.input,
        "cache_creation_input_tokens": use.write,
        "cache_read_input_tokens": use.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": use.write_5m,
            "ephemeral_1h_input_tokens": use.write_1h,
        },
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _make_gemini_usage(use: CacheUse, output_tokens: int, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "promptTokenCount": use.prompt,
        "cachedContentTokenCount": use.read,
        "candidatesTokenCount": output_tokens - reasoning_tokens,
        "thoughtsTokenCount": reasoning_tokens,
        "totalTokenCount": use.prompt + output_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": use.prompt}],
    }


CHAT = Protocol(
    "openai_chat",
    "/v1/chat/completions",
    id_prefix="chatcmpl-lab",
    cap_fields=("max_completion_tokens", "max_tokens"),
    content_field="choices",
    make_usage=_make_chat_usage,
)
RESPONSES = Protocol(
    "openai_responses",
    "/v1/responses",
    id_prefix="resp_lab",
    cap_fields=("max_output_tokens",),
    content_field="output",
    make_usage=_make_responses_usage,
)
ANTHROPIC = Protocol(
    "anthropic",
    "/v1/messages",
    id_prefix="msg_lab",
    cap_fields=("max_tokens",),
    content_field="content",
    make_usage=_make_anthropic_usage,
)
GEMINI = Protocol(
    "gemini",
    "/v1beta/models/{name}:generateContent",
    "lab",
    cap_fields=("generationConfig.maxOutputTokens",),
    content_field="candidates",
    make_usage=_make_gemini_usage,
    usage_field="usageMetadata",
)
PROTOCOLS = (CHAT, RESPONSES, ANTHROPIC, GEMINI)


WindowField = Literal[
    "max_model_len",
    "n_ctx_train",
    "context_length",
    "context_window",
    "inputTokenLimit",
]
"""The field in the list of models that states the window, as in vLLM, llama.cpp, OpenRouter, Groq and Google."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. By default it behaves like the real provider of the protocol that the request uses."""

    name: str
    window: int = 128_000
    dialect: str | None = None
    """The provider whose error bodies it uses (one of `DIALECTS`); None: the provider that made the protocol."""
    max_output: int | None = None
    """Maximum output tokens that a request may ask for; None means all that the window leaves."""
    shows: WindowField | None = None
    """The field in which `GET /v1/models` states the window, or None if it does not."""
    cache_minimum: int | None = None
    """The shortest prefix that Claude's cache takes; None: as documented for the model's name."""
    errors_in_stream: bool = False
    """Whether a streamed request that does not fit gets its error in a stream with status 200."""
    compacts: bool = True
    """Whether it answers `compaction_trigger` and `/v1/responses/compact` with a compaction item."""
    max_images: int | None = None
    """Maximum images and documents in a request; None means any number."""
    tokenizer: str | None = None
    """Name of another model whose tokenizer counts the tokens; None: the tokenizer of this model's own name."""

    def __post_init__(self) -> None:
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise InputError(
                f"dialect {self.dialect!r} is unknown; use one of: {', '.join(DIALECTS)}"
            )
        if self.window < 1:
            raise InputError(f"the window of {self.name} is {self.window}; it must be at least 1")

    def choose_dialect(self, api: Api) -> str:
        """Return the dialect in which this model writes its errors on this protocol."""
        return self.dialect or OWN_DIALECTS[api]

    @property
    def min_cached_tokens(self) -> int:
        return find_cache_minimum(self.name) if self.cache_minimum is None else self.cache_minimum


Models = Mapping[str, int] | Iterable[ServedModel]
DEFAULT_MODELS: Mapping[str, int] = {"gpt-5": 400_000, "claude-sonnet-5": 200_000}


def index_models(models: Models | None) -> dict[str, ServedModel]:
    """Return the models by name. `models`: windows by name, or `ServedModel`s; None: the default models."""
    models = DEFAULT_MODELS if models is None else models
    if isinstance(models, Mapping):
        models = [ServedModel(name, window) for name, window in models.items()]
    models_by_name = {model.name: model for model in models}
    if not models_by_name:
        raise InputError("a provider serves at least one model")
    return models_by_name


def parse_model(
    text: str, *, shows: WindowField | None = None, compacts: bool = True
) -> ServedModel:
    """Parse a model from `NAME=WINDOW[:dialect]` of the command line."""
    name, equals, window_and_dialect = text.rpartition("=")
    window, _, dialect = window_and_dialect.partition(":")
    if not (equals and name and window.replace("_", "").isdecimal()):
        raise InputError(
            f"--model {text!r} is not NAME=WINDOW or NAME=WINDOW:DIALECT, as in gpt-5=400000:openai"
        )
    return ServedModel(name, int(window), dialect or None, shows=shows, compacts=compacts)


def find_cache_minimum(model: str) -> int:
    """Return the shortest prefix in tokens that Claude's cache takes, as documented for each model."""
    name = bare_name(model).replace(".", "-")
    return next(
        (tokens for pattern, tokens in _CACHE_MINIMUMS if re.search(pattern, name)),
        1024,
    )


_CACHE_MINIMUMS = (
    (r"(?:opus|fable)-5|mythos-5", 512),
    (r"mythos|opus-4-7|haiku-3|3-5-haiku|3-haiku", 2048),
    (r"opus-4-[56]|haiku-4", 4096),
)
