"""What people and servers hand in that is not as it should be: the next request is valid all the same."""

from __future__ import annotations

from typing import Any

import pytest

from everthread import validate_messages
from everthread.conversation.conversation import Conversation
from everthread.conversation.given_messages import UNFINISHED_RESULT
from everthread.core.types import Api, ModelReply
from everthread.errors import InputError, WireError
from everthread.testing import ScriptedModel
from everthread.thread.route import Route
from tests.chat_messages import call_reply, calls_reply, function_call, result_message
from tests.conversation.conversation_setup import Conversations, tool_result
from tests.conversation.http_setup import (
    NAMES,
    TOOL,
    OpenHttp,
    answer_script,
    served_model,
)


def calls_with_ids(*ids: Any) -> ModelReply:
    calls: Any = [function_call(each, "terminal") for each in ids]
    return calls_reply(*calls)


async def next_messages(conversation: Conversation, message: Any = None) -> list[Any]:
    """The messages of the next request, none of which a provider would refuse."""
    prepared = await conversation.prepare(message)
    assert validate_messages(prepared.request.messages) == []
    return prepared.request.messages


@pytest.mark.parametrize(
    "given",
    [
        {"role": "user"},
        {
            "role": "user",
            "content": "  ",
        },
        {
            "role": "user",
            "content": [],
        },
        {
            "role": "user",
            "content": 5,
        },
        [
            {
                "type": "text",
                "text": "",
            }
        ],
        result_message(["a"], "x"),
        {
            "role": "system",
            "content": "x",
        },
        {"content": "no role"},
        "",
        "   ",
        [3],
        7,
        b"bytes",
    ],
)
async def test_rejects_an_invalid_message_and_stores_nothing(
    conversations: Conversations, given: Any
) -> None:
    conversation = await conversations.open(ScriptedModel())
    with pytest.raises(InputError):
        await conversation.send(given)
    with pytest.raises(InputError, match="nothing to send"):
        await conversation.prepare()
    assert await conversations.store.list_messages(conversation.session.id) == []


async def test_send_without_a_model_stores_nothing(
    conversations: Conversations,
) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.use_model(Route("gpt-4o", "openai_chat", 128_000))
    with pytest.raises(InputError, match="no model to send to"):
        await conversation.send("Hello")
    assert conversation.messages == []


async def test_results_may_come_as_blocks_of_a_user_message(
    conversations: Conversations,
) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.prepare("Go.")
    await conversation.record(calls_with_ids("a", "b"))
    blocks = [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": "done",
        },
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": "no",
            "is_error": True,
        },
        {
            "type": "text",
            "text": "Hurry up.",
        },
    ]
    messages = await next_messages(
        conversation,
        {
            "role": "user",
            "content": blocks,
        },
    )
    assert [item.get("tool_call_id") for item in messages] == [
        None,
        None,
        "a",
        "b",
        None,
    ]
    assert messages[3]["is_error"] is True
    assert messages[-1]["content"] in ("Hurry up.", [blocks[2]])


async def test_a_call_has_one_result(conversations: Conversations) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.prepare("Go.")
    await conversation.record(call_reply(("terminal", "{}")))
    with pytest.raises(InputError, match="several for call_1"):
        await conversation.add_results(
            [
                tool_result("one"),
                tool_result("two"),
            ]
        )
    with pytest.raises(InputError, match="tool results only"):
        await conversation.add_results(
            [
                {
                    "role": "user",
                    "content": "x",
                }
            ]
        )
    assert len(conversation.messages) == 2


async def test_calls_left_open_are_closed_before_anything_is_sent(
    conversations: Conversations,
) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.prepare("Go.")
    await conversation.record(calls_with_ids("a", "b"))
    await conversation.add_results([tool_result("done", "a")])
    messages = await next_messages(conversation)
    assert messages[-1]["content"] == UNFINISHED_RESULT
    await conversation.record(calls_with_ids("c"))
    await conversation.record(
        ModelReply(
            {
                "role": "assistant",
                "content": "Never mind.",
            },
            "stop",
        )
    )
    await next_messages(conversation, "And now?")


@pytest.mark.parametrize(
    "ids",
    [
        (None, None),
        ("", ""),
        ("a", "a"),
        (3, "b"),
    ],
)
async def test_every_call_gets_an_id_of_its_own(
    conversations: Conversations, ids: tuple[Any, ...]
) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.prepare("Go.")
    answer = await conversation.record(calls_with_ids(*ids))
    assert len({item.id for item in answer.calls} - {""}) == 2
    await conversation.add_results([tool_result("done", item.id) for item in answer.calls])
    await next_messages(conversation)


@pytest.mark.parametrize("api", ["openai_chat", "openai_responses", "anthropic"])
@pytest.mark.parametrize("said", [None, "", "  "])
async def test_sends_valid_requests_after_an_empty_answer(
    open_http: OpenHttp, api: Api, said: str | None
) -> None:
    replies = iter(
        [
            ModelReply(
                {
                    "role": "assistant",
                    "content": said,
                },
                "stop",
            ),
            "Here I am.",
        ]
    )
    conversations = await open_http(
        [served_model(NAMES[api], 16_000)], answer_script(lambda _: next(replies))
    )
    provider = "anthropic" if api == "anthropic" else "custom"
    conversation = await conversations.open(
        NAMES[api],
        api=api,
        provider=provider,
        tools=[TOOL],
    )
    await conversation.send("Are you there?")
    assert (await conversation.send("Hello?")).text == "Here I am."


@pytest.mark.parametrize(
    "response",
    [
        None,
        {},
        {"choices": []},
        {"choices": [{"message": None}]},
        "text",
        5,
    ],
)
async def test_rejects_an_invalid_answer_and_continues(
    conversations: Conversations, response: Any
) -> None:
    conversation = await conversations.open(ScriptedModel(["Yes."]))
    await conversation.prepare("Are you there?")
    with pytest.raises(WireError):
        await conversation.record(response)
    assert (await conversation.send()).text == "Yes."


async def test_decodes_an_answer_in_the_protocol_of_its_request(
    conversations: Conversations,
) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.prepare("Are you there?")
    await conversation.use_model(
        Route("claude-sonnet-4-5", "anthropic", 200_000, provider="anthropic")
    )
    message = {
        "role": "assistant",
        "content": "Yes.",
    }
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 2,
    }
    answer = await conversation.record(
        {
            "choices": [
                {
                    "message": message,
                    "finish_reason": "stop",
                }
            ],
            "usage": usage,
        }
    )
    assert answer.text == "Yes."
    assert answer.usage.prompt_tokens == 20
    assert [record.model for record in await conversation.usage()] == ["gpt-4o"]
