"""Contents and replies of Gemini as a client or the API may send them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Part = dict[str, Any]

words = st.text(min_size=1, max_size=12).filter(str.strip)
any_text = st.text(max_size=12)
scalars = st.none() | st.booleans() | st.integers() | any_text
json_objects = st.dictionaries(
    st.text(max_size=5), scalars | st.lists(scalars, max_size=2), max_size=3
)
names = st.sampled_from(["read_file", "run_shell_command"])
blobs = st.fixed_dictionaries(
    {
        "mimeType": st.sampled_from(["image/png", "application/pdf"]),
        "data": st.just("iVBO="),
    }
)

texts = st.fixed_dictionaries({"text": any_text}, optional={"thoughtSignature": words})
thoughts = st.fixed_dictionaries({"text": any_text, "thought": st.just(True)})
inline = st.fixed_dictionaries({"inlineData": blobs})
files = st.fixed_dictionaries(
    {"fileData": st.just({"fileUri": "https://example.org/a.pdf", "mimeType": "application/pdf"})}
)
code = st.fixed_dictionaries(
    {"executableCode": st.just({"language": "PYTHON", "code": "print(1)"})}
)
ran = st.fixed_dictionaries(
    {"codeExecutionResult": st.just({"outcome": "OUTCOME_OK", "output": "1"})}
)
unknown = st.fixed_dictionaries({"somethingNew": json_objects})
calls = st.fixed_dictionaries(
    {
        "functionCall": st.fixed_dictionaries(
            {"name": names}, optional={"args": json_objects, "id": words}
        )
    },
    optional={"thoughtSignature": words},
)
responses = st.fixed_dictionaries(
    {
        "functionResponse": st.fixed_dictionaries(
            {
                "name": names,
                "response": json_objects | st.builds(lambda text: {"output": text}, any_text),
            },
            optional={"id": words},
        )
    }
)

user_contents = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "function"]),
        "parts": st.lists(st.one_of(texts, inline, files, responses, unknown), max_size=4),
    }
)
model_contents = st.fixed_dictionaries(
    {
        "role": st.just("model"),
        "parts": st.lists(
            st.one_of(texts, thoughts, calls, inline, code, ran, unknown), max_size=4
        ),
    }
)
wire_contents = st.lists(st.one_of(user_contents, model_contents), max_size=6)
"""Anything a client may send, also what is dirty: roles that do not alternate, responses anywhere, blank texts."""

usages = st.fixed_dictionaries(
    {
        "promptTokenCount": st.integers(1, 99),
        "candidatesTokenCount": st.integers(0, 9),
        "totalTokenCount": st.integers(1, 108),
    },
    optional={
        "cachedContentTokenCount": st.integers(0, 9),
        "thoughtsTokenCount": st.integers(0, 9),
    },
)
candidates = st.fixed_dictionaries(
    {
        "content": model_contents,
        "finishReason": st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "NEW_REASON"]),
    },
    optional={"index": st.just(0), "safetyRatings": st.just([])},
)
replies = st.fixed_dictionaries(
    {
        "candidates": st.lists(candidates, min_size=1, max_size=2),
        "usageMetadata": usages,
    },
    optional={
        "modelVersion": st.just("gemini-2.5-pro"),
        "responseId": words,
        "promptFeedback": st.just({}),
    },
)

function_tools = st.lists(
    st.fixed_dictionaries(
        {"name": names},
        optional={
            "description": any_text,
            "parameters": json_objects,
            "parametersJsonSchema": json_objects,
            "behavior": st.just("BLOCKING"),
        },
    ),
    max_size=2,
)
wire_tools: st.SearchStrategy[list[Any]] = st.lists(
    st.one_of(
        st.fixed_dictionaries({"functionDeclarations": function_tools}),
        st.just({"googleSearch": {}}),
        st.fixed_dictionaries(
            {"functionDeclarations": function_tools, "googleSearch": st.just({})}
        ),
    ),
    max_size=2,
)
requests = st.fixed_dictionaries(
    {"model": st.just("gemini-2.5-pro"), "contents": wire_contents},
    optional={
        "systemInstruction": st.one_of(
            st.fixed_dictionaries(
                {"parts": st.lists(st.fixed_dictionaries({"text": words}), max_size=2)}
            ),
            st.just({"role": "system", "parts": [{"text": "Be brief."}]}),
        ),
        "tools": wire_tools,
        "generationConfig": st.just({"maxOutputTokens": 100}),
    },
)
