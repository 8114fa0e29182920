"""`open_conversation` and `open_agent`: awaited, entered, or without an event loop; and their refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread import compress, open_agent, open_conversation
from everthread.config import parse_config
from everthread.core.types import StreamDelta
from everthread.errors import InputError
from everthread.testing import ScriptedModel
from tests.chat_messages import assistant_message, user_message

TALK: list[Any] = []
for number in range(30):
    TALK.append(user_message(f"user {number}: " + "word " * 300))
    TALK.append(assistant_message(f"assistant {number}: " + "word " * 300))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))


async def test_opens_when_entered_or_awaited(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with open_conversation(ScriptedModel(["one"]), store=store) as conversation:
        answer = await conversation.send("Hi")
        assert answer.text == "one"
    again = await open_conversation(ScriptedModel(["two"]), store=store, resume=conversation.id)
    assert len(again.messages) == 2
    await again.close()


def test_opens_without_an_event_loop(tmp_path: Path) -> None:
    with open_conversation(ScriptedModel(["one", "two"]), store=tmp_path / "s.db") as conversation:
        assert conversation.send("Hi").text == "one"
        pieces = list(conversation.stream("More"))
        texts = [piece.text for piece in pieces if isinstance(piece, StreamDelta)]
        assert "".join(texts).strip() == "two"
        assert len(conversation.messages) == 4
        assert repr(conversation).startswith(f"<Conversation {conversation.id}: 4 messages, ")
    with open_agent(
        model=ScriptedModel(["done"]), store=tmp_path / "a.db", workspace=tmp_path
    ) as agent:
        assert agent.send("Go").text == "done"


def test_ends_its_thread_after_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError),
        open_conversation(ScriptedModel(), store=tmp_path / "s.db", resume="nobody"),
    ):
        pass


@pytest.mark.parametrize("settings", ["", "model: {default: claude-sonnet-4-5}"])
async def test_a_conversation_with_a_named_model_uses_the_given_window(
    tmp_path: Path, settings: str
) -> None:
    async with open_conversation(
        "gpt-4o",
        own_client=True,
        config=parse_config(settings),
        window=40_000,
        store=tmp_path / "s.db",
    ) as conversation:
        assert conversation.window == 40_000


async def test_a_conversation_with_a_model_object_uses_the_given_window(tmp_path: Path) -> None:
    async with open_conversation(
        ScriptedModel(),
        window=40_000,
        store=tmp_path / "s.db",
    ) as conversation:
        assert conversation.window == 40_000


async def test_agents_use_the_given_window(tmp_path: Path) -> None:
    async with open_agent(
        model=ScriptedModel(),
        window=40_000,
        workspace=tmp_path,
        store=tmp_path / "s.db",
    ) as agent:
        assert agent.conversation.window == 40_000


@pytest.mark.parametrize("window", [10, -5, "40000"])
async def test_refuses_an_invalid_window(tmp_path: Path, window: Any) -> None:
    with pytest.raises(InputError, match=f"window={window!r} is not allowed; .* at least 1,000"):
        await open_conversation("gpt-4o", window=window, store=tmp_path / "s.db", own_client=True)


async def test_combines_custom_and_built_in_tools(tmp_path: Path) -> None:
    class Weather:
        name = "weather"

        @property
        def schema(self) -> Any:
            return {
                "type": "function",
                "function": {"name": "weather", "parameters": {"type": "object"}},
            }

        def needs(self, _arguments: Any, _context: Any) -> None:
            return None

        async def call(self, _arguments: Any, _context: Any) -> Any:
            raise NotImplementedError

    async def list_tools(**options: Any) -> list[str]:
        async with open_agent(
            model=ScriptedModel(),
            store=tmp_path / "s.db",
            workspace=tmp_path,
            **options,
        ) as agent:
            return [tool["function"]["name"] for tool in agent.tools]

    built_in = await list_tools()
    custom = await list_tools(tools=[Weather()])
    both = await list_tools(tools=[Weather()], builtin_tools=True)
    none = await list_tools(builtin_tools=False)
    assert "terminal" in built_in
    assert custom == ["weather"]
    assert {"weather", "terminal"} <= set(both)
    assert none == []


async def test_refuses_invalid_tools(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "model": ScriptedModel(),
        "store": tmp_path / "s.db",
        "workspace": tmp_path,
    }
    with pytest.raises(
        InputError,
        match=r"a tool is an object with name, schema, needs, call .* not {'type'",
    ):
        await open_agent(tools=[{"type": "function"}], **options)  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"builtin_tools=.* give True or False"):
        await open_agent(builtin_tools=["terminal"], **options)  # type: ignore[arg-type]


async def test_reprs_are_short(tmp_path: Path) -> None:
    compaction = compress(TALK, window=8_000, summarizer="journal")
    assert "->" in repr(compaction)
    async with open_agent(
        model=ScriptedModel(["Yes."]), store=tmp_path / "s.db", workspace=tmp_path
    ) as agent:
        answer = await agent.send("word " * 200)
        request = await agent.conversation.prepare("More.")
        for value in (compaction, agent, answer, request, agent.conversation):
            assert len(repr(value)) < 120, repr(value)
            assert " object at 0x" not in repr(value)


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ("text", {}, "takes a list of messages"),
        ({"role": "user"}, {}, "takes a list of messages"),
        (["text"], {}, "every message must be an object with a role"),
        (TALK, {"template": "fancy"}, "use handoff or classic"),
        (
            TALK,
            {"summarizer": "extractive"},
            "use auto, journal, or a summariser of your own",
        ),
        (TALK, {"window": 0}, "window=0 is not allowed"),
        (TALK, {"window": "8000"}, "window='8000' is not allowed"),
    ],
)
def test_compress_refuses_invalid_arguments(
    messages: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compress(messages, **{"window": 8_000, **options})


def test_compress_uses_a_configuration() -> None:
    config = parse_config("compression: {target_ratio: 0.6, user_words: 0.0}")
    usual = compress(TALK, window=16_000, summarizer="journal")
    own = compress(TALK, window=16_000, config=config, summarizer="journal")
    assert len(own.messages) > len(usual.messages), "a larger tail is kept"
    assert len(own.summary) < len(usual.summary), "without the user's words"


def test_compress_changes_nothing_below_the_threshold() -> None:
    """So that it can be called before each request of a loop of one's own."""
    history: list[Any] = [user_message("Keep the ledger.")]
    compactions = 0
    for step in range(60):
        history.append(assistant_message(f"Done {step}."))
        history.append(user_message(f"Step {step}: " * 20))
        compaction = compress(history, window=8_000, summarizer="journal")
        if compaction.changed:
            compactions += 1
            assert compaction.tokens_before >= 4_000
        else:
            assert "below the threshold of 4,000" in compaction.reason
            assert compaction.messages == history
        history = compaction.messages
    assert 1 <= compactions <= 3
    short = compress(TALK[: len(TALK) // 2], window=64_000, summarizer="journal")
    assert not short.changed
    forced = compress(TALK, window=64_000, summarizer="journal", force=True)
    assert forced.changed
    preview = compress(TALK, window=64_000, preview=True)
    assert preview.tokens_after == forced.tokens_after
