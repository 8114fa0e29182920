"""Which class speaks which protocol."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.core.exchange import Api
from everthread.models.anthropic import AnthropicModel
from everthread.models.http import HttpModel
from everthread.models.openai_chat import OpenAIChatModel
from everthread.models.openai_responses import OpenAIResponsesModel

CLIENTS: Mapping[Api, type[HttpModel]] = {
    "openai_chat": OpenAIChatModel,
    "openai_responses": OpenAIResponsesModel,
    "anthropic": AnthropicModel,
}
