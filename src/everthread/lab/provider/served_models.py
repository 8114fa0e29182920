"""Which models the provider serves, how each behaves, and what differs between the four protocols."""

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
    api: Api
    path: str
    prefix: str
    """Of the ids of its replies."""
    caps: tuple[str, ...]
    """The fields that limit the output; the first that is there counts."""
    content: str
    """The field a reply's substance is in."""
    usage: Callable[[CacheUse, int, int], dict[str, Any]]
    """The usage object from what became of the prompt, the output and the reasoning in it."""
    usage_field: str = "usage"

    @property
    def codec(self) -> Codec:
        return CODECS[self.api]

    def cap(self, body: Mapping[str, Any]) -> int | None:
        """How many tokens the reply may have, as asked."""
        stated = (_nested(body, name.split(".")) for name in self.caps)
        return next((value for value in stated if isinstance(value, int)), None)


def _nested(fields: Any, names: list[str]) -> Any:
    for name in names:
        fields = fields.get(name) if isinstance(fields, Mapping) else None
    return fields


def _chat_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    written = {"cache_write_tokens": use.write} if use.write else {}
    return {
        "prompt_tokens": use.prompt,
        "completion_tokens": output,
        "total_tokens": use.prompt + output,
        "prompt_tokens_details": {
            "cached_tokens": use.read,
            "audio_tokens": 0,
            **written,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def _responses_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": use.prompt,
        "input_tokens_details": {
            "cached_tokens": use.read,
            "cache_write_tokens": use.write,
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": use.prompt + output,
    }


def _anthropic_usage(use: CacheUse, output: int, _reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": use.input,
        "cache_creation_input_tokens": use.write,
        "cache_read_input_tokens": use.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": use.write_5m,
            "ephemeral_1h_input_tokens": use.write_1h,
        },
        "output_tokens": output,
        "service_tier": "standard",
    }


def _gemini_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    return {
        "promptTokenCount": use.prompt,
        "cachedContentTokenCount": use.read,
        "candidatesTokenCount": output - reasoning,
        "thoughtsTokenCount": reasoning,
        "totalTokenCount": use.prompt + output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": use.prompt}],
    }


CHAT = Protocol(
    "openai_chat",
    "/v1/chat/completions",
    prefix="chatcmpl-lab",
    caps=("max_completion_tokens", "max_tokens"),
    content="choices",
    usage=_chat_usage,
)
RESPONSES = Protocol(
    "openai_responses",
    "/v1/responses",
    prefix="resp_lab",
    caps=("max_output_tokens",),
    content="output",
    usage=_responses_usage,
)
ANTHROPIC = Protocol(
    "anthropic",
    "/v1/messages",
    prefix="msg_lab",
    caps=("max_tokens",),
    content="content",
    usage=_anthropic_usage,
)
GEMINI = Protocol(
    "gemini",
    "/v1beta/models/{name}:generateContent",
    "lab",
    caps=("generationConfig.maxOutputTokens",),
    content="candidates",
    usage=_gemini_usage,
    usage_field="usageMetadata",
)
PROTOCOLS = (CHAT, RESPONSES, ANTHROPIC, GEMINI)


Shown = Literal[
    "max_model_len",
    "n_ctx_train",
    "context_length",
    "context_window",
    "inputTokenLimit",
]
"""Where the list of models states the window: as vLLM, llama.cpp, OpenRouter, Groq and Google do."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. A new one behaves as the real provider of the protocol it is asked by."""

    name: str
    window: int = 128_000
    dialect: str | None = None
    """Whose error bodies it answers with (a key of `DIALECTS`); None: those of the protocol's own provider."""
    max_output: int | None = None
    """The most a request may ask for; None: whatever the window leaves."""
    shows: Shown | None = None
    """Whether, and where, `GET /v1/models` states the window."""
    cache_minimum: int | None = None
    """The shortest prefix that Claude's cache takes; None: as documented for the model's name."""
    errors_in_stream: bool = False
    """A streamed request that does not fit gets its error in a stream with status 200."""
    compacts: bool = True
    """It answers `compaction_trigger` and `/v1/responses/compact` with an item; False: it has never heard of them."""

    max_images: int | None = None
    """The most images and documents a request may hold; None: any number."""
    tokenizer: str | None = None
    """Name of the model whose tokenizer counts its tokens; None: the one for its own name."""

    def __post_init__(self) -> None:
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise InputError(
                f"dialect {self.dialect!r} is unknown; use one of: {', '.join(DIALECTS)}"
            )
        if self.window < 1:
            raise InputError(
                f"the window of {self.name} is {self.window}; it must be at least 1"
            )

    def speaks(self, api: Api) -> str:
        """The dialect of its errors on this protocol."""
        return self.dialect or OWN_DIALECTS[api]

    @property
    def minimum(self) -> int:
        return (
            cache_minimum(self.name)
            if self.cache_minimum is None
            else self.cache_minimum
        )


Models = Mapping[str, int] | Iterable[ServedModel]
DEFAULT_MODELS: Mapping[str, int] = {"gpt-5": 400_000, "claude-sonnet-5": 200_000}


def index_models(models: Models | None) -> dict[str, ServedModel]:
    """The models by name, from windows by name or from whole descriptions."""
    models = DEFAULT_MODELS if models is None else models
    listed = (
        [ServedModel(*pair) for pair in models.items()]
        if isinstance(models, Mapping)
        else list(models)
    )
    if not listed:
        raise InputError("a provider serves at least one model")
    return {model.name: model for model in listed}


def parse_model(
    text: str, *, shows: Shown | None = None, compacts: bool = True
) -> ServedModel:
    """A model from `NAME=WINDOW[:dialect]`, as the command line has it."""
    name, equals, rest = text.rpartition("=")
    window, _, dialect = rest.partition(":")
    if not (equals and name and window.replace("_", "").isdecimal()):
        raise InputError(
            f"--model {text!r} is not NAME=WINDOW or NAME=WINDOW:DIALECT, as in gpt-5=400000:openai"
        )
    return ServedModel(
        name, int(window), dialect or None, shows=shows, compacts=compacts
    )


def cache_minimum(model: str) -> int:
    """The shortest prefix in tokens that Claude's cache takes, as documented for each model."""
    name = bare_name(model).replace(".", "-")
    return next(
        (tokens for pattern, tokens in _MINIMUMS if re.search(pattern, name)), 1024
    )


_MINIMUMS = (
    (r"(?:opus|fable)-5|mythos-5", 512),
    (r"mythos|opus-4-7|haiku-3|3-5-haiku|3-haiku", 2048),
    (r"opus-4-[56]|haiku-4", 4096),
)
