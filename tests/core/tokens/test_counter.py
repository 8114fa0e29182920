"""Count a request: text, overhead, calls, tools and media in either form, each once."""

from __future__ import annotations

import base64
import copy
import gc
import json
import pickle
import struct
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given

from everthread.core.tokens import TokenCounter, estimate_request_tokens
from everthread.core.tokens.prompt_formats import OPENAI_FORMAT
from everthread.core.tokens.tokenizers import Tokenizer
from tests.chat_messages import (
    assistant_message,
    call_block,
    calls_message,
    custom_call,
    function_call,
    image_part,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.core.strategies import histories
from tests.shared_data import shared_path

GPT = "gpt-4.1"
CLAUDE = "claude-sonnet-4-5"
DEEPSEEK = "deepseek-chat"
MODELS = [GPT, CLAUDE, DEEPSEEK, None]


def picture(width: int, height: int) -> str:
    head = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)
    )
    return base64.b64encode(head + b"\x00" * 30_000).decode()


WEATHER = {
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            },
            "unit": {
                "type": "string",
                "description": "The unit of temperature to return",
                "enum": ["celsius", "fahrenheit"],
            },
        },
        "required": ["location"],
    },
}


def test_plain_messages_cost_text_and_documented_overhead() -> None:
    counter = TokenCounter("gpt-4o")
    hello = counter.text("hello world")
    assert hello == 2
    assert counter.message(user_message("hello world")) == hello + 4
    assert counter.request([user_message("hello world")]) == hello + 4 + 3
    assert counter.message(
        {**user_message("hello world"), "name": "ann"}
    ) == hello + 4 + 1 + counter.text("ann")


def test_matches_openais_tool_example() -> None:
    messages = [
        {
            "role": "system",
            "content": "You are a helpful assistant that can answer to questions about the weather.",
        },
        user_message("What's the weather like in San Francisco?"),
    ]
    assert (
        estimate_request_tokens(
            messages, tools=[{"type": "function", "function": WEATHER}], model="gpt-4o"
        )
        == 101
    )


def test_system_prompt_counts_the_same_in_every_form() -> None:
    for model in MODELS:
        counter = TokenCounter(model)
        text = "You are careful."
        assert counter.system(text) == counter.system([text_part(text)])
        assert counter.system(text) == counter.message({"role": "system", "content": text})
        assert counter.system(None) == counter.system("") == counter.system([]) == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_string_is_one_text_block(model: str | None) -> None:
    counter = TokenCounter(model)
    expected = counter.message(user_message("fix the test"))
    for kind in ("text", "input_text", "output_text"):
        assert counter.message(user_message([{"type": kind, "text": "fix the test"}])) == expected
    assert counter.message(user_message(["fix the test"])) == expected


@pytest.mark.parametrize("model", MODELS)
def test_calls_count_the_same_in_both_forms(model: str | None) -> None:
    counter = TokenCounter(model)
    arguments = {
        "path": "src/app.py",
        "limit": 20,
        "options": {"deep": True},
    }
    openai = calls_message(
        function_call("c1", "read", json.dumps(arguments)),
        function_call("c2", "read", json.dumps(arguments)),
        text="Reading.",
    )
    anthropic = assistant_message(
        [
            text_part("Reading."),
            call_block("c1", "read", arguments),
            call_block("c2", "read", arguments),
        ]
    )
    assert counter.message(openai) == counter.message(anthropic)
    assert counter.message(openai) > counter.message(assistant_message("Reading."))


def test_counts_arguments_as_each_provider_writes_them() -> None:
    code = '{"file_text": "' + 'print(\\"hello\\")\\n' * 50 + '"}'
    written = calls_message(function_call("c1", "write", code))
    spaced = calls_message(function_call("c1", "f", '{"a": 1, "b": 2}'))
    compact = calls_message(function_call("c1", "f", '{"a":1,"b":2}'))
    claude = TokenCounter(CLAUDE)
    gpt = TokenCounter(GPT)
    plain = claude.text('print("hello")\n' * 50)
    assert plain < claude.message(written) < plain + 80
    assert gpt.message(written) > gpt.text('print("hello")\n' * 50) * 1.2
    assert gpt.message(spaced) == gpt.message(compact)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("arguments", ["not json", "", None, '["a", "b"]', '"text"', "null", 7])
def test_counts_arguments_that_are_not_objects(model: str | None, arguments: Any) -> None:
    counter = TokenCounter(model)
    empty = counter.message(calls_message(function_call("c1", "f", "")))
    assert counter.message(calls_message(function_call("c1", "f", arguments))) >= empty


def test_counts_custom_and_broken_calls() -> None:
    counter = TokenCounter(GPT)
    custom = custom_call("c", "shell", "ls -la")
    message = calls_message(custom, "?", {"id": "x"})
    assert counter.message(message) == 4 + 3 * 5 + 2 * counter.text("shell") + counter.text(
        "ls -la"
    )


@pytest.mark.parametrize("model", MODELS)
def test_results_count_in_both_forms_with_their_content(model: str | None) -> None:
    counter = TokenCounter(model)
    openai = {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "read",
        "content": "three files found",
    }
    anthropic = user_message([result_block("c1", "three files found")])
    blocks = user_message([result_block("c1", [text_part("three files found")])])
    assert counter.message(openai) == counter.message(anthropic) == counter.message(blocks)


def test_images_count_by_size_in_every_position() -> None:
    counter = TokenCounter(CLAUDE)
    data = picture(1000, 1000)
    block = {
        "type": "image",
        "source": {
            "type": "base64",
            "media_type": "image/png",
            "data": data,
        },
    }
    link = image_part(f"data:image/png;base64,{data}")
    assert (
        counter.message(user_message([block])) == counter.message(user_message([link])) == 3 + 1334
    )
    assert counter.message(user_message([result_block("c", [block])])) == 3 + 1334
    assert counter.message(result_message("c", [link])) == 3 + 1334


def test_reasoning_counts_as_text_or_by_encrypted_size() -> None:
    counter = TokenCounter(CLAUDE)
    thought = "First I look at the failing test, then at the fixture it uses. " * 5
    spoken = counter.message(user_message(thought))
    assert (
        counter.message(
            user_message(
                [
                    {
                        "type": "thinking",
                        "thinking": thought,
                        "signature": "x" * 300,
                    }
                ]
            )
        )
        == spoken
    )
    assert (
        counter.message(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": thought,
            }
        )
        == spoken
    )
    summary = {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": thought}, "?"],
    }
    assert counter.message(user_message([summary])) == spoken
    assert (
        counter.message(user_message([{"type": "redacted_thinking", "data": "x" * 1_600}]))
        == 3 + 300
    )
    assert (
        counter.message(
            user_message(
                [
                    {
                        "type": "reasoning",
                        "encrypted_content": "x" * 1_600,
                        "summary": [],
                    }
                ]
            )
        )
        == 3 + 300
    )


def test_text_documents_count_as_their_text() -> None:
    counter = TokenCounter(CLAUDE)
    text = "Clause one. Clause two."
    plain = {
        "type": "document",
        "source": {
            "type": "text",
            "media_type": "text/plain",
            "data": text,
        },
    }
    parts = {
        "type": "document",
        "source": {
            "type": "content",
            "content": [text_part(text)],
        },
    }
    tokens = counter.message(user_message(text))
    assert counter.message(user_message([plain])) == tokens
    assert counter.message(user_message([parts])) == tokens


def test_counts_documents_by_their_size() -> None:
    counter = TokenCounter(CLAUDE)
    pdf = {
        "type": "document",
        "title": "Lease",
        "source": {"type": "base64", "data": "A" * 200_000},
    }
    file_of_unknown_size = {"type": "file", "file": {"file_id": "f"}}
    assert counter.message(user_message([pdf])) == 3 + 9_000 + counter.text("Lease")
    assert counter.message(user_message([file_of_unknown_size])) == 3 + 15_000


def test_counts_a_recording_of_unknown_length() -> None:
    recording = {"type": "input_audio", "input_audio": {}}
    assert TokenCounter(GPT).message(user_message([recording])) == 4 + 300


def test_unknown_blocks_count_without_embedded_files() -> None:
    counter = TokenCounter(GPT)
    search = {
        "type": "web_search_result",
        "title": "Bridges",
        "url": "https://example.org/bridges",
        "_seen": "x" * 900,
    }
    video = {
        "type": "video_url",
        "video_url": {"url": "data:video/mp4;base64," + "A" * 900_000},
        "list": [1, "two"],
    }
    assert 10 < counter.message(user_message([search])) < 40
    assert counter.message(user_message([video])) < 40
    assert counter.message(
        {"role": "assistant", "content": None, "refusal": "I cannot."}
    ) == 4 + counter.text("I cannot.")
    assert counter.message(
        user_message([{"type": "refusal", "refusal": "I cannot."}])
    ) == 4 + counter.text("I cannot.")


@pytest.mark.parametrize("model", MODELS)
def test_private_keys_are_not_counted(model: str | None) -> None:
    counter = TokenCounter(model)
    message = {
        **user_message("hello"),
        "_native": {"api": "anthropic", "value": "x" * 5_000},
        "cache_control": {"type": "ephemeral"},
    }
    assert counter.message(message) == counter.message(user_message("hello"))


@pytest.mark.parametrize("model", MODELS)
def test_tools_count_the_same_in_both_forms(model: str | None) -> None:
    counter = TokenCounter(model)
    openai = {"type": "function", "function": WEATHER}
    anthropic = {
        "name": WEATHER["name"],
        "description": WEATHER["description"],
        "input_schema": WEATHER["parameters"],
    }
    assert (
        counter.tools([openai])
        == counter.tools([anthropic])
        == counter.tools([{"type": "function", **WEATHER}])
    )
    assert counter.tools([openai, openai]) > counter.tools([openai]) > 40
    assert counter.tools([]) == counter.tools(None) == 0


def test_tools_cost_claudes_documented_prompt() -> None:
    assert (
        346 + 60
        < TokenCounter(CLAUDE).tools(
            [{"name": WEATHER["name"], "input_schema": WEATHER["parameters"]}]
        )
        < 346 + 120
    )


def test_writes_declarations_for_every_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "any": {},
            "flag": True,
            "many": {"type": "array", "items": {"type": "integer"}},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "one": {
                "oneOf": [
                    {"enum": [1, 2]},
                    {
                        "type": "object",
                        "properties": {"x": {"type": "number"}},
                    },
                ]
            },
        },
        "required": "any",
    }
    tool = {
        "name": "f",
        "description": "Does it.\nTwice.",
        "parameters": schema,
    }
    declared = (
        "// Does it.\n// Twice.\ntype f = (_: {\nany?: any,\nflag?: any,\nmany?: integer[],\neither?: string | null,\n"
        "one?: 1 | 2 | {\nx?: number,\n},\n}) => any;\n\n"
    )
    counter = TokenCounter(GPT)
    for offered, text in (
        (tool, declared),
        ({"name": "f"}, "type f = () => any;\n\n"),
    ):
        expected = OPENAI_FORMAT.tools_tokens + counter.text(text)
        assert counter.tools([offered]) == expected


DEEP: Any = {"type": "object"}
for _ in range(3_000):
    DEEP = {
        "type": "object",
        "properties": {"a": DEEP},
        "items": [DEEP],
    }
NESTED: Any = "x"
for _ in range(3_000):
    NESTED = [{"type": "tool_result", "content": NESTED}]
ROUND: dict[str, Any] = {"type": "mystery"}
ROUND["self"] = ROUND

GARBAGE: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"role": 3},
    user_message(7),
    user_message(None),
    user_message({"a": 1}),
    user_message([None, 7, {"type": []}]),
    user_message(NESTED),
]
GARBAGE += [
    user_message(
        [
            {"type": "image"},
            {"type": "document", "source": 3},
            {"type": "reasoning", "summary": 1},
            {"type": 1, "deep": DEEP},
        ]
    )
]
GARBAGE += [
    {"role": "assistant", "tool_calls": 5},
    {
        "role": "assistant",
        "tool_calls": [None, {"function": 3}],
    },
    user_message([ROUND]),
]
GARBAGE += [
    {
        "role": "assistant",
        "tool_calls": [
            function_call("c1", "f", DEEP),
            function_call("c1", "f", "[" * 100_000),
        ],
    },
    {"role": "user", "name": 9},
]


@pytest.mark.parametrize("model", MODELS)
def test_counts_garbage_without_failing(model: str | None) -> None:
    counter = TokenCounter(model)
    assert all(counter.message(item) >= 0 for item in GARBAGE)
    counter = TokenCounter(model)
    garbage: Any = [None, 7, {}, {"function": 3}, {"name": "f", "parameters": DEEP}]
    assert counter.tools(garbage) >= 0
    assert counter.messages(None) == 0  # type: ignore[arg-type]  # garbage on purpose


@given(histories())
def test_total_is_the_sum_of_its_messages(
    history: list[Any],
) -> None:
    before = copy.deepcopy(history)
    for model in MODELS:
        counter = TokenCounter(model)
        total = counter.request((), system="Be brief.", tools=[WEATHER])
        for message in history:
            assert counter.message(message) > 0
            total += counter.message(message)
        assert total == counter.request(history, system="Be brief.", tools=[WEATHER])
        assert counter.messages(history) == sum(
            TokenCounter(model).message(item) for item in history
        )
    assert history == before


def test_a_message_a_tool_and_a_system_text_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []

    def count(_self: Tokenizer, text: str) -> float:
        counted.append(text)
        return 1.0

    monkeypatch.setattr(Tokenizer, "count", count)
    counter = TokenCounter(GPT)
    message = user_message("hello there")
    tool = dict(WEATHER)
    system = "You are careful."
    first = counter.request([message], system=system, tools=[tool])
    counted.clear()
    assert counter.request([message], system=system, tools=[tool]) == first
    equal = [user_message("hello there")]
    assert counter.request(equal, system=system, tools=[dict(WEATHER)]) == first
    assert counted == []
    counter.message({**message, "name": "Ann"})
    assert counted == ["hello there", "Ann"]


def test_a_list_of_system_blocks_may_grow() -> None:
    counter = TokenCounter(GPT)
    blocks = [text_part("You are careful.")]
    before = counter.system(blocks)
    blocks.append(text_part("Earlier turns were compacted."))
    assert counter.system(blocks) > before


def test_cache_does_not_confuse_freed_messages() -> None:
    counter = TokenCounter(GPT)
    for size in range(1, 400):
        text = "word " * size
        assert counter.message(user_message(text)) == TokenCounter(GPT).message(user_message(text))
        gc.collect(0)


class FreeableMessage(dict[str, Any]):
    """A message that a weak reference can watch."""


class FreeableText(str):
    """A text that a weak reference can watch."""

    __slots__ = ("__weakref__",)


def count_kept(count: Callable[[Any], int], values: Iterable[Any]) -> int:
    """Count the tokens of each value; return how many of the values a cache still holds."""
    references = []
    for value in values:
        count(value)
        references.append(weakref.ref(value))
    del value
    gc.collect()
    return sum(reference() is not None for reference in references)


def test_cache_is_bounded() -> None:
    many = (FreeableMessage(user_message(f"message {n}")) for n in range(50_100))
    assert count_kept(TokenCounter(GPT).message, many) == 50_000
    image = image_part("https://example.com/a.png")
    large = (FreeableMessage(user_message([text_part(str(n)), image])) for n in range(200))
    assert 50 < count_kept(TokenCounter(GPT).message, large) < 150
    texts = (FreeableText(f"{n} " + "word " * 180_000) for n in range(6))
    assert count_kept(TokenCounter(GPT).text, texts) < 6


@pytest.mark.parametrize("pattern", ["*claude*", "*deepseek*"])
def test_recorded_requests_are_within_two_percent(pattern: str) -> None:
    for path in sorted(shared_path("requests").glob(pattern)):
        data = json.loads(path.read_text("utf-8"))
        model = path.name.rsplit("-", 1)[0].replace("__", "/")
        reported = data["response"]["usage"]["prompt_tokens"]
        estimate = estimate_request_tokens(data["messages"], tools=data["tools"], model=model)
        assert estimate == pytest.approx(reported, rel=0.02)


def test_older_claude_prompts_are_within_five_percent() -> None:
    counter = TokenCounter("anthropic/claude-3-7-sonnet-latest")
    for path in sorted(shared_path("token-truth").glob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        if data["messages"][0].get("role") != "system":
            continue  # recorded without its beginning
        for reported in data["usage"]:
            estimate = counter.request(data["messages"][: reported["before_message"]])
            assert estimate == pytest.approx(reported["prompt"], rel=0.05)


class TestHiddenThoughts:
    """A signature of Claude's contains all thinking; the text beside it may be a summary, or empty."""

    @staticmethod
    def signed(thinking: str, signature: object) -> dict[str, Any]:
        return {
            "type": "thinking",
            "thinking": thinking,
            "signature": signature,
        }

    def test_long_signature_counts_more_than_its_summary(self) -> None:
        counter = TokenCounter("claude-opus-5")
        summary = counter.message(assistant_message([self.signed("In short.", "s" * 40)]))
        whole = counter.message(assistant_message([self.signed("In short.", "s" * 4_000)]))
        assert whole - summary > 700

    def test_finds_signatures_in_the_native_value(self) -> None:
        counter = TokenCounter("claude-opus-5")
        message: Any = {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "In short.",
        }
        blocks = [
            self.signed("In short.", "s" * 4_000),
            "no block",
            self.signed("", None),
        ]
        value = assistant_message(blocks)
        native = {
            **message,
            "_native": {"api": "anthropic", "value": value},
        }
        assert counter.message(native) - counter.message(message) > 700
        empty = {
            **message,
            "_native": {
                "api": "anthropic",
                "value": assistant_message("Yes."),
            },
        }
        assert counter.message(empty) == counter.message(message)

    def test_a_short_signature_adds_nothing(self) -> None:
        counter = TokenCounter("claude-opus-5")
        bare = counter.message(assistant_message([self.signed("Thoughts of some length.", None)]))
        assert (
            counter.message(assistant_message([self.signed("Thoughts of some length.", "s" * 60)]))
            == bare
        )


def test_a_counter_is_pickled_without_its_caches() -> None:
    counter = TokenCounter("claude-opus-4-5")
    counter.text("some words")
    again = pickle.loads(pickle.dumps(counter))  # noqa: S301
    assert again.model == counter.model
    assert again.text("some words") == counter.text("some words")
    assert len(pickle.dumps(counter)) < 200


def test_parallel_calls_and_text_beside_calls_cost_more_from_gpt_5_on() -> None:
    def count(model: str, calls: int, text: str | None) -> int:
        function = {"name": "look", "arguments": "{}"}
        made = [
            {
                "id": f"c{n}",
                "type": "function",
                "function": function,
            }
            for n in range(calls)
        ]
        return TokenCounter(model).message(
            {
                "role": "assistant",
                "content": text,
                "tool_calls": made,
            }
        )

    one, two, three = (count("gpt-5.5", calls, None) for calls in (1, 2, 3))
    assert (two - one) - (three - two) == 16
    word = TokenCounter("gpt-5.5").text("Look.")
    assert count("gpt-5.5", 1, "Look.") - one == word + 7
    assert count("gpt-4.1", 1, "Look.") - count("gpt-4.1", 1, None) == word
