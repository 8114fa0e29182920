"""Conversations with the real small model, for any window."""

from __future__ import annotations

from pathlib import Path

from everthread import open_conversation, open_store
from everthread.config import parse_config
from everthread.core.types import Api
from everthread.providers.local import LocalModel
from everthread.testing import PrefixWatch
from everthread.thread.events import CompactionDone, LimitLearnt, Recovery
from tests.conversation.conversation_setup import make_text, numbered_text


async def pass_the_window(folder: Path, file: Path, *, window: int, api: Api) -> int:
    """Fill the window more than twice, with a restart in between; return the number of times it was passed."""
    watch = PrefixWatch()
    config = parse_config("compression: {background: false, protect_last_n: 2}")
    store = open_store(folder / "store.db")
    model = LocalModel(
        file,
        window=window,
        api=api,
        max_tokens=12,
    )
    cached_tokens = []
    thread = None
    sent_words = 0
    try:
        for part in range(2):
            conversation = await open_conversation(
                model,
                config=config,
                store=store,
                resume=thread,
                system="You count sheep.",
                listener=watch,
                summarizer="journal",
            )
            thread = conversation.id
            while sent_words < (part + 1) * 1.2 * window:
                question = f"{make_text(window // 12, f'sheep {sent_words}')}. How many?"
                answer = await conversation.send(question)
                sent_words += len(question.split())
                assert answer.usage.prompt_tokens <= window
                cached_tokens.append(answer.usage.cache_read_tokens)
            await conversation.close()
        assert len(watch.of(CompactionDone)) >= 2, "it passed its window several times"
        assert max(cached_tokens) > window // 10, "the server read its own cache"
        assert not watch.broken
        assert len(await store.load_history(thread or "")) == 2 * len(cached_tokens)
        return len(watch.of(CompactionDone))
    finally:
        await model.aclose()
        await store.close()


async def overflow_for_real(folder: Path, file: Path, *, window: int) -> int:
    """Use a model whose real window is smaller than configured; return the window learnt from its server's error."""
    watch = PrefixWatch()
    store = open_store(folder / "store.db")
    model = LocalModel(file, window=window, max_tokens=8)
    await model.start()
    model.window = 64_000
    try:
        conversation = await open_conversation(
            model,
            config=parse_config(""),
            store=store,
            listener=watch,
            summarizer="journal",
        )
        turns = 0
        while not watch.of(Recovery):
            turns += 1
            await conversation.send(numbered_text(turns, window // 8, "sheep"))
        learnt = watch.of(LimitLearnt)[0]
        assert learnt.window == window
        assert learnt.stored
        assert conversation.window == window
        assert watch.of(CompactionDone)[0].reason == "overflow"
        thread = conversation.id
        await conversation.close()
        again = await open_conversation(
            model,
            config=parse_config(""),
            store=store,
            resume=thread,
        )
        assert again.window == window, "what was learnt outlives the conversation"
        assert len(await store.load_history(thread)) == 2 * turns
        await again.close()
        return conversation.window
    finally:
        await model.aclose()
        await store.close()
