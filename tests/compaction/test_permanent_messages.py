"""Only conversation is covered: instructions in the list, definitions of tools and items of a provider stay."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.messages import Message, kind_of
from everthread.core.summary_marks import is_summary
from everthread.core.types import Api
from everthread.core.validation import validate_messages
from everthread.wire.codecs import CODECS
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import JOURNAL, make_engine, tool_turns
from tests.wire.client_shapes import assert_anthropic, load_shape, references, rounds


async def compact(api: Api, values: list[Any], window: int = 16_000) -> tuple[list[Any], str]:
    """Compact a client's request; return the request sent upstream, and the summary."""
    codec = CODECS[api]
    result = await make_engine(window, JOURNAL).compress(codec.decode_messages(values))
    assert result.changed, result.reason
    return codec.encode_messages(result.messages), result.summary


class TestClaudeCode:
    @pytest.mark.parametrize("last", [[], [{"role": "user", "content": "And the cranes?"}]])
    async def test_instructions_and_loaded_tools_stay(self, last: list[Any]) -> None:
        sent = load_shape("claude_code")["messages"]
        wire, summary = await compact("anthropic", [*sent, *rounds("anthropic", 30), *last])
        assert_anthropic(wire)
        assert [message for message in wire if message["role"] == "system"] == [sent[1]]
        assert references(wire) == ["TideTable", "BerthPlan", "CraneLog"]
        assert "Tool loaded" not in summary, "the client says that, not the user"
        kept = [
            block
            for message in wire
            for block in message["content"]
            if kind_of(block) == "tool_use"
        ]
        assert "toolu_2" not in [block["id"] for block in kept], (
            "the command beside the search is covered"
        )

    async def test_instructions_stay_once_over_many_compactions(self) -> None:
        wire = [*load_shape("claude_code")["messages"], *rounds("anthropic", 30)]
        for number in range(4):
            wire, _ = await compact("anthropic", wire)
            assert_anthropic(wire)
            assert sum(message["role"] == "system" for message in wire) == 1
            assert references(wire) == ["TideTable", "BerthPlan", "CraneLog"]
            wire += rounds("anthropic", 30, start=100 * (number + 1))

    async def test_a_tool_that_is_loaded_again_is_kept_once(self) -> None:
        sent = load_shape("claude_code")["messages"]
        search = {
            "type": "tool_use",
            "id": "toolu_9",
            "name": "ToolSearch",
            "input": {},
        }
        loaded = [{"type": "tool_reference", "tool_name": "TideTable"}]
        again = [
            {"role": "assistant", "content": [search]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": loaded}],
            },
        ]
        before = rounds("anthropic", 5)
        after = rounds("anthropic", 30, start=9)
        wire, _ = await compact("anthropic", [*sent, *before, *again, *after])
        assert references(wire) == ["BerthPlan", "CraneLog", "TideTable"]

    async def test_the_newest_change_of_each_tool_stays(self) -> None:
        def change(kind: str, name: str) -> dict[str, Any]:
            return {"type": kind, "tool": {"type": "tool_reference", "name": name}}

        sent = [
            {"role": "user", "content": "Plan the berths."},
            {
                "role": "system",
                "content": [
                    change("tool_addition", "tides"),
                    change("tool_addition", "cranes"),
                ],
            },
            *rounds("anthropic", 8),
            {"role": "system", "content": [change("tool_removal", "cranes")]},
            *rounds("anthropic", 30, start=50),
        ]
        wire, _ = await compact("anthropic", sent)
        assert_anthropic(wire)
        changes = [
            block for message in wire if message["role"] == "system" for block in message["content"]
        ]
        assert changes == [
            change("tool_addition", "tides"),
            change("tool_removal", "cranes"),
        ]

    async def test_a_search_of_the_provider_keeps_its_two_blocks(self) -> None:
        use = {
            "type": "server_tool_use",
            "id": "srv_1",
            "name": "tool_search_tool_regex",
            "input": {"query": "tide"},
        }
        found = {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "x"}],
        }
        result = {
            "type": "tool_search_tool_result",
            "tool_use_id": "srv_1",
            "content": found,
        }
        call = {"type": "tool_use", "id": "work_x", "name": "x", "input": {}}
        sent = [
            {"role": "user", "content": "Plan the berths."},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Searching."}, use, result, call],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "work_x",
                        "content": "high at noon",
                    }
                ],
            },
            *rounds("anthropic", 30),
        ]
        wire, _ = await compact("anthropic", sent)
        assert_anthropic(wire)
        kept = [block for message in wire for block in message["content"] if "srv_1" in str(block)]
        assert kept == [use, result]


class TestCodex:
    async def test_a_search_stays_a_search(self) -> None:
        sent = load_shape("codex")["input"]
        wire, _ = await compact("openai_responses", [*sent, *rounds("openai_responses", 30)])
        assert wire[1:4] == sent[1:4]
        assert [item for item in wire if str(item.get("type")).startswith("tool_search")] == sent[
            4:6
        ]
        assert "tool_search" not in [item.get("name") for item in wire], (
            "no function of that name is made up"
        )

    async def test_a_large_definition_is_not_cut(self) -> None:
        sent = load_shape("codex")["input"]
        tool = sent[5]["tools"][0]["tools"][0]
        sent[5]["tools"][0]["tools"] = [{**tool, "name": f"tides_{number}"} for number in range(60)]
        wire, _ = await compact(
            "openai_responses", [*sent, *rounds("openai_responses", 3)], window=8_000
        )
        assert sent[5] in wire

    async def test_instructions_that_are_sent_again_replace_the_older_ones(
        self,
    ) -> None:
        def rights(text: str) -> dict[str, Any]:
            words = f"<permissions instructions>\n{text}\n</permissions instructions>"
            return {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": words}],
            }

        sent = load_shape("codex")["input"]
        conversation = [
            *sent,
            rights("Read."),
            *rounds("openai_responses", 8),
            rights("Write."),
        ]
        wire, _ = await compact(
            "openai_responses",
            [*conversation, *rounds("openai_responses", 30, start=50)],
        )
        said = [item["content"][0]["text"] for item in wire[4:] if item.get("role") == "developer"]
        assert [text.split("\n")[1] for text in said] == ["Write."]

    async def test_instructions_in_the_head_are_not_repeated(self) -> None:
        sent = load_shape("codex")["input"]
        conversation = [*sent, sent[1], *rounds("openai_responses", 30)]
        wire, _ = await compact("openai_responses", conversation)
        assert wire.count(sent[1]) == 1

    async def test_items_of_the_provider_stay(self) -> None:
        listed = {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "harbour",
            "tools": [{"name": "tides"}],
        }
        added = {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", "name": "cranes"}],
        }
        sent = load_shape("codex")["input"]
        reasoning = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "encrypted_content": "x",
        }
        conversation = [
            *sent,
            added,
            reasoning,
            listed,
            *rounds("openai_responses", 30),
        ]
        wire, _ = await compact("openai_responses", conversation)
        assert wire.count(listed) == 1
        assert wire.count(added) == 1
        assert reasoning not in wire

    def test_a_search_whose_answer_was_lost_leaves_the_list(self) -> None:
        """As a function call it would name a function that is not offered."""
        codec = CODECS["openai_responses"]
        call, _ = codec.decode_messages(load_shape("codex")["input"][4:6])
        stub: Message = {
            "role": "tool",
            "tool_call_id": "search_1",
            "content": "[No result]",
        }
        assert codec.encode_messages([call, stub]) == []


class TestChat:
    async def test_system_messages_in_the_list_stay(self) -> None:
        rule: Message = {"role": "system", "content": "From now on answer in French."}
        conversation = [
            user_message("Start."),
            assistant_message("Yes?"),
            *tool_turns(0, 5),
            rule,
            *tool_turns(10, 60),
            user_message("Go on."),
        ]
        result = await make_engine(16_000, JOURNAL).compress(conversation)
        assert result.messages.count(rule) == 1
        at = next(index for index, message in enumerate(result.messages) if is_summary(message))
        assert result.messages.index(rule) < at
        assert conversation.index(rule) not in result.covered
        assert validate_messages(result.messages) == []
