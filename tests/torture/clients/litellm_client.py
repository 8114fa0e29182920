"""Send plain messages with LiteLLM's client, streamed every other time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import litellm

FAMILY = {"openai_chat": "openai", "anthropic": "anthropic"}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    litellm.telemetry = False
    address = job["url"] if job["api"] == "anthropic" else f"{job['url']}/v1"
    known: dict[str, Any] = {
        "model": f"{FAMILY[job['api']]}/{job['model']}",
        "api_base": address,
    }
    known["api_key"] = job.get("key", "any")
    # Without a cap it asks for as much as the real model can say, which is more than the whole window.
    known["max_tokens"] = job.get("most", 500)
    history = [{"role": "system", "content": job["system"]}]
    answers = []
    for number, text in enumerate(job["texts"]):
        history.append({"role": "user", "content": text})
        if number % 2:
            chunks: Any = litellm.completion(**known, messages=history, stream=True)
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            said = litellm.completion(**known, messages=history).choices[0].message.content
        history.append({"role": "assistant", "content": said})
        answers.append(said)
    print(json.dumps(answers))


main()
