"""Valid payloads of OpenAI's protocols, and histories in Anthropic's form, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

few = settings(max_examples=30)
"""For properties of whole payloads: those are slow to make, and each holds many cases."""

words = st.text(max_size=12)
names = st.text("abcdef_", min_size=1, max_size=8)
ids = st.uuids().map(str)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
extras = st.dictionaries(st.text("xyz", min_size=1, max_size=3), values, max_size=1)
"""Fields no protocol knows."""

Strategy = st.SearchStrategy[Any]


def object_with(**fields: Any) -> Strategy:
    """Return objects with these fields (constants or strategies), and maybe an unknown one."""
    known = {
        key: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for key, value in fields.items()
    }
    return st.tuples(st.fixed_dictionaries(known), extras).map(lambda pair: {**pair[1], **pair[0]})


def with_optional(strategy: Strategy, **fields: Any) -> Strategy:
    """Return the objects with or without each of these fields."""
    optional = st.fixed_dictionaries(
        {}, optional={key: _strategy(value) for key, value in fields.items()}
    )
    return st.tuples(strategy, optional).map(lambda pair: {**pair[0], **pair[1]})


def _strategy(value: Any) -> Strategy:
    return value if isinstance(value, st.SearchStrategy) else st.just(value)


@st.composite
def broken_payloads(draw: st.DrawFn, payloads: Strategy) -> Any:
    """Draw a payload in which one value, at any depth, is replaced."""
    payload = draw(payloads)

    def spoil(value: Any) -> Any:
        keys = (
            list(value)
            if isinstance(value, dict)
            else list(range(len(value)))
            if isinstance(value, list)
            else []
        )
        if not keys or draw(st.integers(0, 3)) == 0:
            return draw(values)
        key = draw(st.sampled_from(keys))
        changed = value.copy()
        changed[key] = spoil(value[key])
        return changed

    return spoil(payload)


cache_control = st.just({"type": "ephemeral"})

# Chat

text_part = with_optional(object_with(type="text", text=words), cache_control=cache_control)
user_part = (
    text_part
    | object_with(type="image_url", image_url=object_with(url="data:image/png;base64,AA=="))
    | object_with(type="file", file=object_with(file_id=ids))
    | object_with(type="input_audio", input_audio=object_with(data="AA==", format="wav"))
    | object_with(type=names)
)
function_call = object_with(name=names, arguments=words)
tool_call = object_with(id=ids, type="function", function=function_call) | object_with(
    id=ids, type="custom", custom=object_with(name=names, input=words)
)
reasoning_detail = object_with(
    type="reasoning.text", text=words, signature=words, index=st.integers(0, 3)
) | object_with(type="reasoning.encrypted", data=words)
assistant = with_optional(
    object_with(
        role="assistant",
        content=st.none()
        | words
        | st.lists(text_part | object_with(type="refusal", refusal=words), max_size=2),
    ),
    tool_calls=st.lists(tool_call, min_size=1, max_size=3),
    refusal=st.none() | words,
    reasoning_content=words,
    reasoning=words,
    reasoning_details=st.lists(reasoning_detail, max_size=3),
    cache_control=cache_control,
    function_call=function_call,
)
chat_message = st.one_of(
    with_optional(
        object_with(
            role=st.sampled_from(["system", "developer"]),
            content=words | st.lists(text_part, max_size=2),
        ),
        name=names,
    ),
    with_optional(
        object_with(role="user", content=words | st.lists(user_part, max_size=3)),
        name=names,
    ),
    assistant,
    object_with(role="tool", tool_call_id=ids, content=words | st.lists(user_part, max_size=2)),
)
chat_tool = object_with(
    type="function", function=object_with(name=names, parameters=values)
) | object_with(type="custom", custom=object_with(name=names))
chat_request = with_optional(
    object_with(model=names, messages=st.lists(chat_message, max_size=6)),
    tools=st.none() | st.lists(chat_tool, max_size=2),
    temperature=st.floats(0, 2),
    stream=st.booleans(),
)
usage = object_with(prompt_tokens=st.integers(0, 99), completion_tokens=st.integers(0, 99))
chat_reply = with_optional(
    object_with(
        id=words,
        object="chat.completion",
        created=1,
        model=words,
        choices=st.lists(
            with_optional(
                object_with(
                    index=0,
                    message=assistant,
                    finish_reason=st.none()
                    | st.sampled_from(["stop", "length", "tool_calls", "eos"]),
                )
            ),
            min_size=1,
            max_size=2,
        ),
    ),
    usage=st.none() | usage,
    system_fingerprint=st.none() | words,
)

# Responses

input_part = (
    object_with(type="input_text", text=words)
    | object_with(type="input_image", image_url="data:image/png;base64,AA==", detail="auto")
    | object_with(type="input_image", file_id=ids)
    | object_with(type="input_file", file_id=ids)
    | object_with(type="input_file", file_url="https://example.org/a.pdf")
    | object_with(type=names)
)
output_part = st.one_of(
    with_optional(object_with(type="output_text", text=words), annotations=st.just([])),
    object_with(type="refusal", refusal=words),
    object_with(type=names),
)
status = st.sampled_from(["completed", "incomplete"])
output_item = st.one_of(
    with_optional(
        object_with(type="message", role="assistant", content=st.lists(output_part, max_size=2)),
        id=ids,
        status=status,
        phase=st.sampled_from(["commentary", "final_answer"]),
    ),
    with_optional(
        object_with(
            type="reasoning",
            id=ids,
            summary=st.lists(object_with(type="summary_text", text=words), max_size=2),
        ),
        encrypted_content=words,
    ),
    with_optional(
        object_with(type="function_call", call_id=ids, name=names, arguments=words),
        id=ids,
        status=status,
    ),
    with_optional(
        object_with(type="custom_tool_call", call_id=ids, name=names, input=words),
        id=ids,
    ),
    object_with(
        type="local_shell_call",
        id=ids,
        call_id=ids,
        status="completed",
        action=object_with(type="exec", command=st.lists(words, max_size=2)),
    ),
    object_with(
        type="computer_call",
        id=ids,
        call_id=ids,
        action=object_with(type="click"),
        pending_safety_checks=st.just([]),
    ),
    object_with(
        type="mcp_approval_request",
        id=ids,
        name=names,
        arguments=words,
        server_label=names,
    ),
    object_with(type="mcp_call", id=ids, name=names, arguments=words, output=words),
    object_with(
        type="tool_search_call",
        call_id=st.none() | ids,
        arguments=values,
        execution="server",
    ),
    object_with(type="web_search_call", id=ids, status="completed"),
    object_with(type="compaction", id=ids, encrypted_content=words),
    object_with(type=names),
)
input_item = st.one_of(
    with_optional(
        object_with(
            role=st.sampled_from(["user", "system", "developer"]),
            content=words | st.lists(input_part, max_size=2),
        ),
        type="message",
    ),
    object_with(role="assistant", content=words),
    object_with(
        type="function_call_output",
        call_id=ids,
        output=words | st.lists(input_part, max_size=2),
    ),
    object_with(type="custom_tool_call_output", call_id=ids, output=words),
    object_with(type="local_shell_call_output", id=ids, output=words),
    object_with(
        type="shell_call_output",
        call_id=ids,
        output=st.lists(object_with(stdout=words, stderr=words), max_size=2),
    ),
    object_with(
        type="computer_call_output",
        call_id=ids,
        output=object_with(type="computer_screenshot", image_url="data:image/png;base64,AA=="),
    ),
    object_with(type="mcp_approval_response", approval_request_id=ids, approve=st.booleans()),
    object_with(
        type="tool_search_output",
        call_id=st.none() | ids,
        tools=st.lists(values, max_size=1),
    ),
    object_with(id=ids),
    output_item,
)
responses_tool = (
    with_optional(
        object_with(type="function", name=names, parameters=values),
        strict=st.booleans(),
    )
    | with_optional(
        object_with(type="custom", name=names),
        format=object_with(type="grammar", syntax="lark", definition=words)
        | object_with(type="text"),
    )
    | object_with(type=names)
)
responses_request = with_optional(
    object_with(model=names),
    input=st.none() | words | st.lists(input_item, max_size=6),
    instructions=st.none() | words,
    tools=st.none() | st.lists(responses_tool, max_size=3),
    store=st.booleans(),
)
responses_reply = with_optional(
    object_with(
        id=words,
        object="response",
        created_at=1,
        model=words,
        output=st.lists(output_item, max_size=5),
    ),
    status=st.sampled_from(["completed", "incomplete", "failed", "in_progress", "cancelled"]),
    usage=st.none()
    | object_with(input_tokens=st.integers(0, 99), output_tokens=st.integers(0, 99)),
    error=st.none(),
    incomplete_details=st.none()
    | st.just({"reason": "max_output_tokens"})
    | st.just({"reason": "content_filter"}),
)


# Histories in Anthropic's form

media = st.sampled_from(
    [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
        },
        {
            "type": "image",
            "source": {"type": "url", "url": "https://example.org/a.png"},
        },
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {
            "type": "document",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": "AA==",
            },
        },
        {"type": "document", "source": {"type": "text", "data": "words"}},
    ]
)
said = st.builds(lambda text: {"type": "text", "text": text}, st.text("ab", min_size=1))
thinking = st.just({"type": "thinking", "thinking": "hm", "signature": "s"})


@st.composite
def anthropic_history(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw turns of a user, an assistant that thinks and calls tools, and results, in blocks."""
    history: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": draw(st.just("hi") | st.lists(said | media, min_size=1, max_size=3)),
        }
    ]
    for _ in range(draw(st.integers(0, 4))):
        calls = draw(st.lists(ids, max_size=3, unique=True))
        blocks = [*draw(st.lists(thinking | said, max_size=3))]
        blocks += [
            {
                "type": "tool_use",
                "id": call,
                "name": "look",
                "input": draw(st.just({}) | st.just({"a": 1})),
            }
            for call in calls
        ]
        history.append({"role": "assistant", "content": blocks})
        content = draw(st.none() | words | st.lists(said | media, max_size=2)) if calls else None
        answers = [
            {"type": "tool_result", "tool_use_id": call, "content": content} for call in calls
        ]
        history.append(
            {
                "role": "user",
                "content": [
                    *answers,
                    *draw(st.lists(said | media, min_size=0 if calls else 1, max_size=2)),
                ],
            }
        )
    return history
