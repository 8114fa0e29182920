"""A conversation from the caller's side: stored messages, requests and events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from everthread.conversation.answer_recorder import INTERRUPTED_ANSWER_TEXT, ModelAnswer
from everthread.conversation.conversation import Conversation
from everthread.core.summary_marks import SUMMARY_START, seal_summary
from everthread.core.types import ModelReply, StreamDelta
from everthread.errors import InputError, ModelError
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from everthread.thread.events import (
    Estimated,
    OutputStored,
    UsageRecorded,
)
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import (
    SYSTEM,
    Conversations,
    make_text,
    numbered_text,
    tool_result,
)


async def test_a_message_is_answered_stored_and_accounted_for(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(["Hello!"])
    conversation = await conversations.open(model)
    answer = await conversation.send("Hi")
    assert answer.text == "Hello!"
    assert answer.stop == "stop"
    assert model.requests[0].system == SYSTEM
    stored = await conversations.store.list_messages(conversation.session.id)
    assert [(item.body["role"], item.body["content"]) for item in stored] == [
        ("user", "Hi"),
        ("assistant", "Hello!"),
    ]
    (usage,) = await conversations.store.usage.list_usage(conversation.id)
    assert usage.usage.prompt_tokens == answer.usage.prompt_tokens > 0
    assert answer.cost is not None
    assert usage.cost == answer.cost
    assert conversations.events(UsageRecorded)[0].task == "main"
    assert conversations.events(Estimated)[0].window == 128_000


async def test_the_answer_comes_piece_by_piece(conversations: Conversations) -> None:
    conversation = await conversations.open(ScriptedModel(["one two three"]))
    pieces = [piece async for piece in conversation.stream("count")]
    assert "".join(p.text for p in pieces if isinstance(p, StreamDelta)).strip() == "one two three"
    assert isinstance(pieces[-1], ModelAnswer)
    assert pieces[-1].text == "one two three"


async def test_resumes_a_thread_by_the_prefix_of_its_id(
    conversations: Conversations,
) -> None:
    first = await conversations.open(ScriptedModel(["Noted."]))
    await first.send("The port is 8443.")
    await first.close()
    again = await conversations.open(ScriptedModel(["8443."]), resume=first.id[:8])
    answer = await again.send("Which port?")
    assert answer.text == "8443."
    assert again.id == first.id
    assert len(again.messages) == 4


async def test_the_same_event_is_stored_once(conversations: Conversations) -> None:
    conversation = await conversations.open(ScriptedModel())
    await conversation.prepare("Hi", event="e1")
    prepared = await conversation.prepare("Hi", event="e1")
    assert len(prepared.request.messages) == 1


async def test_tool_results_must_answer_an_open_call(conversations: Conversations) -> None:
    conversation = await conversations.open(ScriptedModel([call_reply(("ls", "{}")), "Done."]))
    answer = await conversation.send("List the files")
    assert [item.name for item in answer.calls] == ["ls"]
    with pytest.raises(InputError, match="no open call has the id call_9; open: call_1"):
        await conversation.add_results([tool_result("a", "call_9")])
    await conversation.add_results([tool_result("a.py")])
    assert (await conversation.send()).text == "Done."


async def test_a_large_result_is_stored_and_cited_and_can_be_read(
    conversations: Conversations,
) -> None:
    model = ScriptedModel([call_reply(("terminal", '{"command": "make"}')), "ok"])
    conversation = await conversations.open(model)
    await conversation.send("Build it")
    text = make_text(120_000, "object file")
    await conversation.add_results([tool_result(text)])
    await conversation.send()
    citation = str(model.requests[-1].messages[-1]["content"])
    (event,) = conversations.events(OutputStored)
    assert event.output in citation
    assert len(citation) < 3_000
    part = await conversation.read_output(event.output, offset=100, limit=50)
    assert part.startswith(text[100:150])
    assert "go on with offset 150" in part


async def test_injected_text_is_sent_once_and_never_stored(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(["a", "b"])
    conversation = await conversations.open(model)
    await conversation.send("one", inject="the weather is fine")
    await conversation.send("two")
    assert "weather" in str(model.requests[0].messages[-1])
    assert "weather" not in str(model.requests[1].messages)
    assert "weather" not in str(await conversations.store.load_history(conversation.id))


async def test_an_interrupted_stream_is_kept_and_accounted_for(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(["one two three four", "on we go"])
    conversation = await conversations.open(model)
    stream = conversation.stream("count")
    async for piece in stream:
        if isinstance(piece, StreamDelta) and piece.text.startswith("two"):
            break
    await stream.aclose()
    stored = await conversations.store.list_messages(conversation.session.id)
    assert stored[-1].body["content"] == f"one two \n\n{INTERRUPTED_ANSWER_TEXT}"
    (usage,) = await conversations.store.usage.list_usage(conversation.id)
    assert usage.estimated
    assert usage.usage.prompt_tokens > 0
    assert (await conversation.send("go on")).text == "on we go"


async def test_usage_of_a_broken_call_is_accounted_for(
    conversations: Conversations,
) -> None:
    partial = ModelReply(
        {
            "role": "assistant",
            "content": "half",
        },
        usage={
            "prompt_tokens": 70,
            "completion_tokens": 1,
        },
    )
    broken = ModelError("the connection was reset", partial=partial)
    conversation = await conversations.open(ScriptedModel([broken]))
    with pytest.raises(ModelError, match="reset"):
        await conversation.send("Hi")
    (spent,) = await conversations.store.usage.list_usage(conversation.id)
    assert spent.usage.prompt_tokens == 70
    assert len(await conversations.store.list_messages(conversation.session.id)) == 1, (
        "the user's message is safe"
    )


async def test_without_a_report_usage_is_estimated(conversations: Conversations) -> None:
    silent = ModelReply(
        {
            "role": "assistant",
            "content": "words " * 20,
        },
        "stop",
        usage={},
    )
    conversation = await conversations.open(ScriptedModel([silent]))
    answer = await conversation.send("Hi")
    assert answer.usage.output_tokens >= 20
    (usage,) = await conversations.store.usage.list_usage(conversation.id)
    assert usage.estimated


async def test_a_branch_is_independent_of_its_parent(conversations: Conversations) -> None:
    model = ScriptedModel(["a", "b", "c"])
    conversation = await conversations.open(model)
    first = await conversation.send("one")
    await conversation.send("two")
    branch = await conversation.branch(first.id)
    await branch.send("three")
    assert [str(item["content"]) for item in branch.messages] == [
        "one",
        "a",
        "three",
        "c",
    ]
    assert len(conversation.messages) == 4
    assert branch.session.kind == "branch"


async def test_two_conversations_on_one_thread_see_each_other(
    conversations: Conversations,
) -> None:
    first = await conversations.open(ScriptedModel(["a", "c"]))
    await first.send("first")
    second = await conversations.open(ScriptedModel(["b"]), resume=first.id)
    await second.send("second")
    await first.send("third")
    texts = [str(item["content"]) for item in first.messages]
    assert texts == ["first", "a", "second", "b", "third", "c"]


async def test_turns_of_one_conversation_do_not_mix(conversations: Conversations) -> None:
    conversation = await conversations.open(
        ScriptedModel(lambda request: f"re: {request.messages[-1]['content']}")
    )
    await asyncio.gather(*(conversation.send(f"m{index}") for index in range(5)))
    roles = [item["role"] for item in conversation.messages]
    assert roles == ["user", "assistant"] * 5


async def test_a_branch_knows_the_state_at_its_start(conversations: Conversations) -> None:
    """Including facts missing in the summary's text: here a command that passed long ago."""
    conversation = await conversations.open(
        ScriptedModel(lambda _: make_text(200, "answer"), window=16_000)
    )
    for message in (
        {
            "role": "user",
            "content": "Build it.",
        },
        call_reply(("bash", '{"command": "make release"}')).message,
        tool_result("built\nexit code: 0"),
        {
            "role": "assistant",
            "content": "It is built.",
        },
    ):
        await conversation.add(message)

    async def compacted(conversation: Conversation) -> Any:
        for turn in range(12):
            await conversation.add(
                {
                    "role": "user",
                    "content": numbered_text(turn, 250, "topic"),
                }
            )
            await conversation.add(
                {
                    "role": "assistant",
                    "content": make_text(200, "answer"),
                }
            )
        return await conversation.compress()

    assert "make release" in (await compacted(conversation)).state["commands"]
    branch = await conversation.branch()
    compaction = await compacted(branch)
    assert compaction.changed
    assert "make release" in compaction.state["commands"]


async def test_keeps_a_first_message_that_looks_like_a_summary(
    conversations: Conversations,
) -> None:
    """In one long turn the summary is merged into it, and is found again each time it is rewritten."""
    first_text = seal_summary(f"{SUMMARY_START}: 3 earlier messages]\n\n## Goal\nGo on from here.")
    conversation = await conversations.open(
        ScriptedModel(["ok"], window=16_000),
        changes={"summary_key": b"the home's"},
    )
    await conversation.add(
        {
            "role": "user",
            "content": first_text,
        }
    )
    for turn in range(3):
        for step in range(40):
            call_id = f"call_{turn}_{step}"
            call = call_reply(
                ("bash", json.dumps({"command": f"make part{step}"}), call_id)
            ).message
            await conversation.add(
                {
                    **call,
                    "content": f"Now part {step}: {make_text(60, f'part {step}')}.",
                }
            )
            await conversation.add(tool_result(make_text(200, f"log {turn} {step}"), call_id))
        assert (await conversation.compress()).changed
        first_message = conversation.messages[0]
        assert str(first_message["content"]).startswith(f"{first_text}\n\n{SUMMARY_START}")
        assert str(conversation.messages).count(SUMMARY_START) == 2


async def test_a_branch_with_a_title_keeps_everything_else(
    conversations: Conversations,
) -> None:
    new = NewSession(platform="cli", user="ada")
    conversation = await conversations.open(ScriptedModel(["one", "two"]), new=new)
    await conversation.send("First question")
    branch = await conversation.branch(title="Another way")
    session = branch.session
    assert session.title == "Another way"
    assert session.system == SYSTEM
    assert session.platform == "cli"
    assert session.user == "ada"
    assert session.model == conversation.session.model
    assert session.kind == "branch"
