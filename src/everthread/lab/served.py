"""Which models the simulated provider serves, and how each behaves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from everthread.core.exchange import Api
from everthread.core.tokenizers import bare_name
from everthread.errors import InputError
from everthread.lab.dialects import DIALECTS, dialect_for

Shown = Literal["max_model_len", "n_ctx_train", "context_length", "context_window"]
"""Where the list of models states the window: as vLLM, llama.cpp, OpenRouter and Groq do."""


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
    """The shortest prefix Claude's cache takes; None: what is documented for the model's name."""
    errors_in_stream: bool = False
    """A streamed request that does not fit is told so in a stream with status 200."""

    def __post_init__(self) -> None:
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise InputError(f"dialect {self.dialect!r} is unknown; use one of: {', '.join(DIALECTS)}")
        if self.window < 1:
            raise InputError(f"the window of {self.name} is {self.window}; it must be at least 1")

    def speaks(self, api: Api) -> str:
        """The dialect of its errors on this protocol."""
        return self.dialect or dialect_for(api)

    @property
    def minimum(self) -> int:
        return cache_minimum(self.name) if self.cache_minimum is None else self.cache_minimum


Models = Mapping[str, int] | Iterable[ServedModel]
DEFAULT_MODELS: Mapping[str, int] = {"gpt-5": 400_000, "claude-sonnet-5": 200_000}


def served(models: Models | None) -> dict[str, ServedModel]:
    """The models by name, from windows by name or from whole descriptions."""
    given = DEFAULT_MODELS if models is None else models
    listed = [ServedModel(*pair) for pair in given.items()] if isinstance(given, Mapping) else list(given)
    if not listed:
        raise InputError("a provider serves at least one model")
    return {model.name: model for model in listed}


def parse_model(text: str) -> ServedModel:
    """A model from `NAME=WINDOW[:dialect]`, as the command line has it."""
    name, equals, rest = text.rpartition("=")
    window, _, dialect = rest.partition(":")
    if not (equals and name and window.replace("_", "").isdecimal()):
        raise InputError(f"--model {text!r} is not NAME=WINDOW or NAME=WINDOW:DIALECT, as in gpt-5=400000:openai")
    return ServedModel(name, int(window), dialect or None)


def cache_minimum(model: str) -> int:
    """The shortest prefix in tokens that Claude's cache takes, as documented for each model."""
    name = bare_name(model).replace(".", "-")
    return next((tokens for pattern, tokens in _MINIMUMS if re.search(pattern, name)), 1024)


_MINIMUMS = (
    (r"(?:opus|fable)-5|mythos-5", 512),
    (r"mythos|opus-4-7|haiku-3|3-5-haiku|3-haiku", 2048),
    (r"opus-4-[56]|haiku-4", 4096),
)
