"""Hold a conversation in `llm` with a model that its user added by name and address."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    folder = Path(os.environ["LLM_USER_PATH"])
    known = {
        "model_id": "behind",
        "model_name": job["model"],
        "api_base": f"{job['url']}/v1",
        "api_key_name": "any",
    }
    (folder / "extra-openai-models.yaml").write_text(json.dumps([known]), "utf-8")
    (folder / "keys.json").write_text('{"any": "any"}', "utf-8")
    import llm  # noqa: PLC0415  it reads the folder now

    conversation = llm.get_model("behind").conversation()
    answers = []
    for number, text in enumerate(job["texts"]):
        system = job["system"] if not number else None
        answers.append(conversation.prompt(text, system=system, stream=bool(number % 2)).text())
    print(json.dumps(answers))


main()
