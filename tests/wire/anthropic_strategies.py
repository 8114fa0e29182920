"""Anthropic messages as a client may send them, and chat histories as a repair leaves them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.chat_messages import function_call, image_part, result_message, text_part

Block = dict[str, Any]

words = st.text(min_size=1, max_size=12).filter(str.strip)
any_text = st.text(max_size=12)
scalars = st.none() | st.booleans() | st.integers() | any_text
json_objects = st.dictionaries(
    st.text(max_size=5), scalars | st.lists(scalars, max_size=2), max_size=3
)
markers = st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
call_ids = st.integers(10**6, 10**8).map("toolu_{}".format)
image_sources = st.sampled_from(
    [
        {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "url", "url": "https://example.org/a.jpg"},
        {"type": "file", "file_id": "file_1"},
    ]
)
document_sources = st.sampled_from(
    [
        {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        {"type": "text", "media_type": "text/plain", "data": "plain"},
        {"type": "url", "url": "https://example.org/a.pdf"},
    ]
)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Block]:
    """Return blocks with these fields, some with a cache mark."""
    return st.fixed_dictionaries(
        {"type": st.just(kind), **fields}, optional={"cache_control": markers}
    )


text_blocks = block("text", text=any_text)
images = block("image", source=image_sources)
unknown = block("something_new", payload=json_objects)
media = st.one_of(
    text_blocks,
    images,
    block("document", source=document_sources, title=st.none() | words),
    unknown,
)
results = block(
    "tool_result",
    tool_use_id=call_ids,
    content=any_text | st.lists(st.one_of(text_blocks, images), max_size=2),
)
bare_results = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": call_ids},
    optional={"is_error": st.booleans()},
)
thoughts = st.one_of(
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": any_text, "signature": words}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": words}),
)
calls = block("tool_use", id=call_ids, name=st.sampled_from(["bash", "read"]), input=json_objects)
server = block("server_tool_use", id=call_ids, name=st.just("web_search"), input=json_objects)
said = st.one_of(text_blocks, thoughts, calls, server, unknown)


def message(role: str, blocks: st.SearchStrategy[Block]) -> st.SearchStrategy[Block]:
    return st.fixed_dictionaries(
        {"role": st.just(role), "content": any_text | st.lists(blocks, max_size=4)}
    )


wire_messages = st.lists(
    st.one_of(
        message("user", st.one_of(media, results, bare_results)),
        message("assistant", said),
        message("system", text_blocks),
    ),
    max_size=6,
)
"""Anything a client may send, also what is dirty: roles that do not alternate, results anywhere, blank texts."""

replies = st.fixed_dictionaries(
    {
        "id": words,
        "type": st.just("message"),
        "role": st.just("assistant"),
        "model": st.just("claude-sonnet-4-5"),
        "content": st.lists(said, max_size=4),
        "stop_reason": st.sampled_from(
            [
                "end_turn",
                "max_tokens",
                "tool_use",
                "refusal",
                "pause_turn",
                "new_reason",
            ]
        ),
        "stop_sequence": st.none() | words,
        "usage": st.fixed_dictionaries(
            {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)}
        ),
    },
    optional={
        "container": st.none() | json_objects,
        "stop_details": st.none() | json_objects,
    },
)


@st.composite
def chat_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Histories in OpenAI's form in which every call is answered directly after it, with all the rest of real life:
    ids of any alphabet, used again, arguments that are no JSON, blank texts, the assistant first."""
    history: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 5))):
        role = draw(
            st.sampled_from(["system", "developer", "user", "assistant", "assistant", "group"])
        )
        content = draw(any_text | st.lists(chat_parts, max_size=2))
        if role != "group":
            history.append({"role": role, "content": content})
            continue
        ids = draw(
            st.lists(
                st.sampled_from(["call_1", "a.b", "a_b", "", "日本"]),
                min_size=1,
                max_size=3,
                unique=True,
            )
        )
        arguments = draw(st.sampled_from(["{}", "", "null", "[1]", "{broken", "NaN", '{"a": "b"}']))
        made = [function_call(i, "t", arguments) for i in ids]
        history.append(
            {
                "role": "assistant",
                "content": draw(st.none() | any_text),
                "tool_calls": made,
            }
        )
        history += [
            result_message(i, draw(any_text | st.lists(chat_parts, max_size=2)))
            for i in draw(st.permutations(ids))
        ]
    return history


chat_parts = st.one_of(
    st.builds(text_part, any_text),
    st.just(image_part("data:image/png;base64,iVBORw0KGgo=")),
    st.just({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
)


def copy_of(value: Any) -> Any:
    """Return a copy, as a store returns a value."""
    return json.loads(json.dumps(value))
