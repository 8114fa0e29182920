"""Permission for each call of a metered model."""

from __future__ import annotations

import pytest

from everthread.core.types import ModelRequest
from everthread.errors import (
    ModelError,
)
from everthread.providers.resilience import (
    MeteredModel,
)
from tests.providers.fake_model import StepwiseModel, make_reply
from tests.providers.http_models import (
    collect_pieces,
)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_sends_no_request_without_permission(*, is_stream: bool) -> None:
    async def refuse(_: ModelRequest) -> None:
        raise ModelError("the limit of today is reached")

    model = StepwiseModel([[make_reply()]], name="gpt-4o")
    metered = MeteredModel(model, lambda _: None, refuse)
    request = ModelRequest(model.name, [{"role": "user", "content": "Hello"}])
    answer = collect_pieces(metered, request) if is_stream else metered.complete(request)
    with pytest.raises(ModelError, match="limit of today"):
        await answer
    assert model.requests == []
