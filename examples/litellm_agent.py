"""Calls through LiteLLM that outlive the model's window. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another server."""

import asyncio

import litellm

from everthread.integrations.litellm import EverthreadLogger

litellm.callbacks = [EverthreadLogger()]


async def main() -> None:
    history: list[dict[str, str]] = []
    for number in range(3):
        history.append({"role": "user", "content": f"What do you know of entry {number}?"})
        answer = await litellm.acompletion(
            model="openai/gpt-4o", messages=history, litellm_session_id="books"
        )
        history.append({"role": "assistant", "content": answer.choices[0].message.content})
        print(history[-1]["content"])


asyncio.run(main())
