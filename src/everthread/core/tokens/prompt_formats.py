"""The tokens that each provider adds around the text of a prompt."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from everthread.core.tokens.tokenizers import bare_name, tokenizer_for


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """The tokens that a provider adds around the text, measured on reported usage.

    `call_tokens` includes the wrapping of the call's result. A message with calls adds `first_call` once,
    `parallel_calls` if there are several, `text_with_calls` if it also has text. `parameter_tokens` is the price of one
    argument if arguments are written one by one; if it is 0, they are counted as JSON. `name_repeats`: how often the
    name is written. `tools_tokens` is the price of offering any tool; `declares_types`: tools are written as type
    declarations, not as JSON. `schema_factor` corrects that JSON, in which vocabularies differ less than in prose.
    """

    message_tokens: float
    call_tokens: float
    first_call: float = 0.0
    parallel_calls: float = 0.0
    text_with_calls: float = 0.0
    parameter_tokens: float = 0.0
    name_repeats: int = 1
    tools_tokens: int = 0
    declares_types: bool = False
    schema_factor: float = 1.0


OPENAI_FORMAT = PromptFormat(
    message_tokens=4,
    call_tokens=5,
    name_repeats=2,
    tools_tokens=11,
    declares_types=True,
)
OPENAI_REASONING_FORMAT = replace(
    OPENAI_FORMAT, call_tokens=10, first_call=2, parallel_calls=16, text_with_calls=7
)
"""OpenAI's models from GPT-5 on."""
CLAUDE_FORMAT = PromptFormat(
    message_tokens=3,
    call_tokens=55,
    first_call=-7,
    parameter_tokens=14.5,
    tools_tokens=346,
    schema_factor=0.91,
)
_REASONING_MODEL_PATTERN = re.compile(r"gpt-?[5-9]|codex")
CHAT_TEMPLATE_FORMAT = PromptFormat(message_tokens=5, call_tokens=10, tools_tokens=4)
"""Open models: a chat template that writes tools and calls as JSON."""


def find_format(model: str | None) -> PromptFormat:
    name = bare_name(model)
    if "claude" in name:
        return CLAUDE_FORMAT
    if tokenizer_for(model).vocabulary in ("o200k_base", "cl100k_base"):
        return OPENAI_REASONING_FORMAT if _REASONING_MODEL_PATTERN.search(name) else OPENAI_FORMAT
    return CHAT_TEMPLATE_FORMAT
