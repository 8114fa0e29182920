"""Find the parts of a history that are not conversation, give them keys, and keep them verbatim."""

from __future__ import annotations

from typing import Any, cast

import pytest

from everthread.core.messages import Message
from everthread.core.types import Api
from everthread.wire.codecs import CODECS
from everthread.wire.permanent_parts import (
    find_answered_call_ids,
    find_permanent_parts,
    has_fixed_position,
    has_tool_reference,
    join_instructions,
    keep_parts,
    loads_tools,
)
from tests.chat_messages import (
    assistant_message,
    call_block,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.wire.client_shapes import load_shape

LOADED = [
    {"type": "tool_reference", "tool_name": "TideTable"},
    {"type": "tool_reference", "tool_name": "CraneLog"},
]
LOADING = result_block("search_1", LOADED)
LISTING = result_block("list_1", "north.txt south.txt")
QUESTION: Message = user_message("Plan the berths for tomorrow.")
MARK = {"cache_control": {"type": "ephemeral"}}


def decode(api: Api, *wire: Any) -> list[Message]:
    return CODECS[api].decode_messages(list(wire))


def encode(api: Api, *messages: Message) -> list[Any]:
    return CODECS[api].encode_messages(messages)


def instructions(*texts: str) -> Message:
    return {
        "role": "system",
        "content": [text_part(text) for text in texts],
    }


def block_message(role: str, *blocks: Any) -> Message:
    """Return a message with blocks in Anthropic's form, as a caller of the library writes it."""
    return cast("Message", {"role": role, "content": list(blocks)})


def keys_of(message: Message) -> list[set[str]]:
    return [set(part.keys) for part in find_permanent_parts(message)]


class TestFinding:
    def test_finds_tools_that_claude_code_loads(self) -> None:
        messages = decode("anthropic", *load_shape("claude_code")["messages"])
        found = [
            (message["role"], keys_of(message))
            for message in messages
            if find_permanent_parts(message)
        ]
        assert found[0][0] == "system"
        assert found[1:] == [
            ("tool", [{"tool TideTable"}]),
            ("tool", [{"tool BerthPlan", "tool CraneLog"}]),
        ]
        assert [message["content"] for message in messages if loads_tools(message)] == [
            LOADED[:1],
            [{"type": "tool_reference", "tool_name": "BerthPlan"}, LOADED[1]],
        ]

    def test_finds_tools_that_codex_loads(self) -> None:
        messages = decode("openai_responses", *load_shape("codex")["input"])
        loading = [message for message in messages if loads_tools(message)]
        assert [keys_of(message) for message in loading] == [[{"tool mcp__harbour__tides"}]]
        assert [message["role"] for message in messages if find_permanent_parts(message)] == [
            "developer",
            "developer",
            "tool",
        ]

    def test_finds_results_in_blocks(self) -> None:
        message = block_message("user", text_part("Go on."), LISTING, LOADING)
        [part] = find_permanent_parts(message)
        assert part.position == 2
        assert part.keys == {"tool TideTable", "tool CraneLog"}
        assert loads_tools(message)
        assert not loads_tools(block_message("user", LISTING))
        assert not loads_tools(user_message("Go on."))

    @pytest.mark.parametrize(
        "content",
        ["tool_reference", None, [], [text_part("tool_reference")]],
    )
    def test_an_ordinary_result_loads_nothing(self, content: Any) -> None:
        message: Message = result_message("c", content)
        assert not has_tool_reference(content)
        assert not loads_tools(message)
        assert find_permanent_parts(message) == []

    @pytest.mark.parametrize("role", ["user", "assistant", "critic"])
    def test_plain_messages_have_no_permanent_parts(self, role: Any) -> None:
        assert find_permanent_parts({"role": role, "content": "The tide is high."}) == []

    @pytest.mark.parametrize("kind", ["tool_addition", "tool_removal"])
    @pytest.mark.parametrize(
        ("tool", "key"),
        [
            ({"type": "tool_reference", "name": "tides"}, "tool tides"),
            (
                {"type": "custom", "definition": {"name": "tides", "input_schema": {}}},
                "tool tides",
            ),
            (
                {"type": "mcp_tool", "server_name": "harbour", "name": "tides"},
                "tool harbour__tides",
            ),
        ],
    )
    def test_tool_changes_have_the_key_of_their_tool(self, kind: str, tool: Any, key: str) -> None:
        [message] = decode(
            "anthropic", {"role": "system", "content": [{"type": kind, "tool": tool}]}
        )
        assert keys_of(message) == [{key}]

    def test_provider_search_has_the_keys_of_the_found_tools(self) -> None:
        found = {"type": "tool_search_tool_search_result", "tool_references": LOADED}
        result = {
            "type": "tool_search_tool_result",
            "tool_use_id": "srv_1",
            "content": found,
        }
        [message] = decode(
            "anthropic",
            assistant_message([text_part("Wait."), result]),
        )
        [part] = find_permanent_parts(message)
        assert part.position == 1
        assert part.keys == {"tool TideTable", "tool CraneLog"}

    def test_finds_items_of_a_run(self) -> None:
        listed = {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "harbour",
            "tools": [{"name": "tides"}],
        }
        tools = [{"type": "function", "name": "cranes"}, "no tool"]
        search = {
            "type": "tool_search_call",
            "execution": "server",
            "arguments": {"paths": ["cranes"]},
        }
        found = {"type": "tool_search_output", "execution": "server", "tools": tools}
        compacted = {"type": "compaction", "encrypted_content": "gAAA"}
        reasoning = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "encrypted_content": "gAAA",
        }
        [message] = decode("openai_responses", reasoning, listed, search, found, compacted)
        parts = find_permanent_parts(message)
        assert [part.position for part in parts] == [1, 2, 3, 4]
        assert [set(part.keys) for part in parts] == [
            {"tools of harbour"},
            set(),
            {"tool cranes"},
            set(),
        ]
        assert "gAAA" in parts[3].content, "the content distinguishes two compactions"

    def test_client_search_is_not_permanent_by_itself(self) -> None:
        search = {
            "type": "tool_search_call",
            "call_id": "search_1",
            "arguments": {},
            "execution": "client",
        }
        [message] = decode("openai_responses", search)
        assert find_permanent_parts(message) == []

    def test_finds_tools_in_the_input(self) -> None:
        added = {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", "name": "cranes"}],
        }
        [message] = decode("openai_responses", added)
        assert keys_of(message) == [{"tool cranes"}]


class TestReplacing:
    """Instructions with the same keys replace each other."""

    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            ("<rights>\nRead.\n</rights>", "<rights>\nWrite.\n</rights>"),
            (
                "<rights of all>Read.</rights of all>",
                "<rights of all>Write.</rights of all>",
            ),
            ('<rights of="all">Read.</rights>', '<rights of="all">Write.</rights>'),
            ("Answer in French.", " Answer in French.\n"),
        ],
    )
    def test_same_tag_or_text_has_the_same_key(self, older: str, newer: str) -> None:
        assert keys_of(instructions(older)) == keys_of(instructions(newer)) != [set()]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("Answer in French.", "Answer in Norwegian."),
            (
                "<system-reminder>Read.</system-reminder>",
                "<system-reminder>Write.</system-reminder>",
            ),
            ("<rights> never closed", "<rights> not closed either"),
            ("<>a</>", "<>b</>"),
            (f"<{'x' * 61}>a</{'x' * 61}>", f"<{'x' * 61}>b</{'x' * 61}>"),
        ],
        ids=["texts", "a tag for everything", "unclosed", "nameless", "long"],
    )
    def test_other_texts_have_other_keys(self, one: str, other: str) -> None:
        assert keys_of(instructions(one)) != keys_of(instructions(other))

    def test_part_without_text_has_no_key(self) -> None:
        image = {
            "type": "image",
            "source": {"type": "url", "url": "https://example.com/quay.png"},
        }
        [part] = find_permanent_parts(block_message("system", image))
        assert part.keys == frozenset()
        assert "quay.png" in part.content


class TestAnsweredCalls:
    def test_ids_of_a_tool_message(self) -> None:
        message: Message = result_message("search_1", cast("Any", LOADED))
        assert find_answered_call_ids(message, {0}) == {"search_1"}
        assert find_answered_call_ids(message, ()) == set()

    def test_ids_of_result_blocks(self) -> None:
        message = block_message("user", text_part("Go on."), LISTING, LOADING)
        assert find_answered_call_ids(message, {2}) == {"search_1"}
        assert find_answered_call_ids(message, {0}) == set(), "a text answers no call"

    def test_other_messages_answer_no_call(self) -> None:
        assert find_answered_call_ids(instructions("Answer in French."), {0}) == set()


class TestKeeping:
    def test_keeps_a_tool_message_unchanged(self) -> None:
        message: Message = result_message("search_1", cast("Any", LOADED))
        assert keep_parts(message, {0}) is message

    def test_keeps_result_blocks_that_load_tools(self) -> None:
        message = block_message(
            "user",
            LISTING,
            {**LOADING, **MARK},
            text_part("Tool loaded."),
        )
        assert keep_parts(message, {1}) == user_message([LOADING])

    def test_keeps_answered_calls(self) -> None:
        sent = load_shape("claude_code")["messages"][4]
        thought = {"type": "thinking", "thinking": "Which berths?", "signature": "x"}
        [message] = decode("anthropic", {**sent, "content": [thought, *sent["content"]]})
        _, kept = encode("anthropic", QUESTION, keep_parts(message, (), {"toolu_3"}))
        assert kept == assistant_message(sent["content"][1:])

    def test_keeps_answered_call_blocks(self) -> None:
        calls: list[Any] = [call_block(name, "ToolSearch", {}) for name in ("a", "b")]
        message = block_message("assistant", text_part("Looking."), *calls)
        assert keep_parts(message, (), {"b"}) == assistant_message([calls[1]])

    def test_keeps_a_provider_search_with_its_result(self) -> None:
        use = {
            "type": "server_tool_use",
            "id": "srv_1",
            "name": "tool_search_tool_regex",
            "input": {"query": "tide"},
        }
        other = {**use, "id": "srv_2"}
        found = {"type": "tool_search_tool_search_result", "tool_references": LOADED}
        result = {
            "type": "tool_search_tool_result",
            "tool_use_id": "srv_1",
            "content": found,
        }
        [message] = decode("anthropic", assistant_message([other, use, result]))
        _, kept = encode("anthropic", QUESTION, keep_parts(message, {2}))
        assert kept == assistant_message([use, result])

    def test_empties_a_message_without_permanent_parts(self) -> None:
        assert keep_parts(assistant_message("The tide is high."), ()) == assistant_message(None)

    def test_keeps_items_verbatim(self) -> None:
        reasoning = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "encrypted_content": "gAAA",
        }
        listed = {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "harbour",
            "tools": [],
        }
        search = {
            "type": "tool_search_call",
            "call_id": "search_1",
            "arguments": {},
            "execution": "client",
        }
        other = {
            "type": "function_call",
            "call_id": "call_1",
            "name": "exec_command",
            "arguments": "{}",
        }
        run = [reasoning, listed, search, other]
        [message] = CODECS["openai_responses"].decode_messages(run, model="gpt-5.5")
        kept = keep_parts(message, {1}, {"search_1"})
        assert encode("openai_responses", kept) == [listed, search]
        assert kept["_native"]["model"] == "gpt-5.5"


class TestKeepingInstructions:
    BLOCKS = (
        text_part("Answer in French."),
        {"type": "text", "text": "Answer in Norwegian.", **MARK},
    )

    def test_keeps_parts_of_anthropics_without_cache_marks(self) -> None:
        [message] = decode("anthropic", {"role": "system", "content": list(self.BLOCKS)})
        [kept] = encode("anthropic", keep_parts(message, {1}))
        assert kept == {
            "role": "system",
            "content": [text_part("Answer in Norwegian.")],
        }

    def test_returns_complete_instructions_unchanged(self) -> None:
        [listed] = decode("anthropic", {"role": "system", "content": [self.BLOCKS[0]]})
        [text] = decode("anthropic", {"role": "system", "content": "Answer in French."})
        assert keep_parts(listed, {0}) is listed
        assert keep_parts(text, {0}) is text

    def test_keeps_other_protocols_instructions_whole(self) -> None:
        [item] = decode("openai_responses", load_shape("codex")["input"][1])
        assert keep_parts(item, {0}) is item
        plain = instructions("Answer in French.", "Answer in Norwegian.")
        assert keep_parts(plain, {0}) is plain


class TestJoiningInstructions:
    def test_joins_neighbours_of_anthropics_protocol(self) -> None:
        addition = {
            "type": "tool_addition",
            "tool": {"type": "tool_reference", "name": "tides"},
        }
        messages = decode(
            "anthropic",
            {"role": "system", "content": "Answer in French."},
            {"role": "system", "content": [addition]},
        )
        assert all(map(has_fixed_position, messages))
        [wire] = encode("anthropic", *join_instructions(messages))
        assert wire == {
            "role": "system",
            "content": [text_part("Answer in French."), addition],
        }

    def test_keeps_others_separate(self) -> None:
        messages = [instructions("Answer in French."), instructions("Be brief.")]
        assert not any(map(has_fixed_position, messages))
        assert join_instructions(messages) == messages
        [placed] = decode("anthropic", {"role": "system", "content": "Be brief."})
        assert join_instructions([messages[0], placed]) == [messages[0], placed]
