"""Messages with and without cache marks, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.chat_messages import (
    call_block,
)

MARK = {"type": "ephemeral"}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}


USE = call_block("t", "read", {})


blocks = st.sampled_from(
    [
        text("a"),
        text(""),
        text("b", cache_control=MARK),
        THINKING,
        USE,
        "stray",
        None,
        3,
    ]
)


contents = st.none() | st.sampled_from(["", "words"]) | st.lists(blocks, max_size=4) | st.integers()


histories = st.lists(
    st.builds(
        lambda role, content, more: {"role": role, "content": content, **more},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        contents,
        st.sampled_from(
            [
                {},
                {"cache_control": MARK},
                {"tool_calls": [{"id": "c"}]},
                {"tool_calls": None},
            ]
        ),
    )
    | st.sampled_from([None, "stray", {}]),
    max_size=12,
)
