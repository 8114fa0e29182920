"""How a request caps its answer: each protocol has its own field, and chat has two."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from everthread.core.types import Api, Request
from everthread.providers.catalog import known_model
from everthread.wire.anthropic import DEFAULT_MAX_TOKENS

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
    known = known_model(model)
    return min((known and known.max_output) or DEFAULT_MAX_TOKENS, max(window // 2, 1))
