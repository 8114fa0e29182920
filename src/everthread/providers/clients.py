"""Which class speaks which protocol."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.core.types import Api
from everthread.providers.anthropic import AnthropicModel
from everthread.providers.base import HttpModel
from everthread.providers.openai import OpenAIChatModel, OpenAIResponsesModel

CLIENTS: Mapping[Api, type[HttpModel]] = {
    "openai_chat": OpenAIChatModel,
    "openai_responses": OpenAIResponsesModel,
    "anthropic": AnthropicModel,
}
